//! One test case.

use std::{
    collections::HashMap,
    env, fmt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Result, anyhow, bail};

use crate::{
    bochs::{self, Bochs, Release},
    build::Built,
    deps,
    qemu::Version,
    workspace,
};

use super::{bochs_rig::BochsRig, rig::Rig};

/// What a machine case works with.
pub struct Context {
    pub version: Version,
    pub built: Built,
    bochs: Mutex<HashMap<Release, Result<Bochs, String>>>,
}

/// A case that cannot be tried here, and why: neither passed nor failed.
#[derive(Debug)]
pub struct Skipped(pub String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

impl Context {
    pub fn new(version: Version, built: Built) -> Self {
        Self {
            version,
            built,
            bochs: Mutex::default(),
        }
    }

    /// A Bochs of this release, and what is needed to boot from a CD. Looked for once.
    ///
    /// # Errors
    /// [`Skipped`], if there is none; in CI (`CI=true`) that is a failure.
    pub fn bochs(&self, release: Release) -> Result<Bochs> {
        let mut known = self.bochs.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.entry(release).or_insert_with(|| {
            deps::iso_tools()
                .and_then(|()| Ok(bochs::find(release)?))
                .map_err(|why| format!("{why:#}"))
        });
        found.clone().map_err(|why| {
            if env::var_os("CI").is_some_and(|value| value == "true") {
                anyhow!(why)
            } else {
                Skipped(why).into()
            }
        })
    }
}

/// What a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only the host.
    Host,
    /// A machine that counts instructions: others may run beside it.
    Icount,
    /// A machine in Bochs, deterministic: others may run beside it.
    Bochs,
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

    /// A machine in Bochs: 2 CPUs of this model, 256 MiB, no guest. `label` names its logs.
    pub fn bochs(&self, label: &str, model: &str) -> BochsRig<'_> {
        BochsRig::new(self, label, model)
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

    pub fn bochs(
        name: impl Into<String>,
        body: impl Fn(&Lab<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            kind: Kind::Bochs,
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
