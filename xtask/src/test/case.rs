//! One test case.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::{build::Built, qemu::Version, workspace};

use super::rig::Rig;

/// What a machine case works with.
pub struct Context {
    pub version: Version,
    pub built: Built,
}

/// What a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only the host.
    Host,
    /// A machine that counts instructions: others may run beside it.
    Icount,
    /// A machine in real time: nothing may run beside it.
    RealTime,
}

type OnHost = Box<dyn Fn(&Path) -> Result<()> + Send + Sync>;
type OnMachine = Box<dyn Fn(&Lab<'_>) -> Result<()> + Send + Sync>;

enum Body {
    Host(OnHost),
    Machine(OnMachine),
}

/// A test case.
pub struct Case {
    /// `group/name`.
    pub name: String,
    pub kind: Kind,
    body: Body,
}

/// Where a machine case makes its machines.
pub struct Lab<'a> {
    pub context: &'a Context,
    /// The folder for its logs.
    pub dir: &'a Path,
    kind: Kind,
}

impl Lab<'_> {
    /// A machine of this case's kind: 4 CPUs, 512 MiB, no guest. `label` names its logs.
    pub fn rig(&self, label: &str) -> Rig<'_> {
        Rig::new(self, label, self.kind == Kind::Icount)
    }
}

impl Case {
    pub fn host(
        name: impl Into<String>,
        body: impl Fn(&Path) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            kind: Kind::Host,
            body: Body::Host(Box::new(body)),
        }
    }

    pub fn icount(
        name: impl Into<String>,
        body: impl Fn(&Lab<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            kind: Kind::Icount,
            body: Body::Machine(Box::new(body)),
        }
    }

    pub fn real_time(
        name: impl Into<String>,
        body: impl Fn(&Lab<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            kind: Kind::RealTime,
            body: Body::Machine(Box::new(body)),
        }
    }

    /// Where its logs are.
    pub fn dir(&self) -> PathBuf {
        workspace::target_dir()
            .join("lull/test")
            .join(self.name.replace('/', "-"))
    }

    pub fn run_on_host(&self, dir: &Path) -> Result<()> {
        match &self.body {
            Body::Host(body) => body(dir),
            Body::Machine(_) => bail!("not a host case"),
        }
    }

    pub fn run_on_machine(&self, context: &Context, dir: &Path) -> Result<()> {
        match &self.body {
            Body::Machine(body) => body(&Lab {
                context,
                dir,
                kind: self.kind,
            }),
            Body::Host(_) => bail!("not a machine case"),
        }
    }
}
