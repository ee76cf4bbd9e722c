//! A machine in Bochs for a test: small, without guests unless some are named, and short.

use std::time::Duration;

use anyhow::Result;

use super::{
    case::Lab,
    rig::{Ran, Running},
};
use crate::{
    bochs::{Machine, Release},
    build::Bundle,
    guest_arg::{self, GuestArg},
    iso::{Iso, Purpose},
    session::Session,
};

/// A machine in the making.
pub struct BochsRig<'a> {
    lab: &'a Lab<'a>,
    label: String,
    model: String,
    cpus: u32,
    release: Release,
    guests: Vec<GuestArg>,
    words: Vec<String>,
    msrs: Vec<(u32, u64)>,
    limit: Duration,
}

impl<'a> BochsRig<'a> {
    pub fn new(lab: &'a Lab<'a>, label: &str, model: &str) -> Self {
        Self {
            lab,
            label: label.to_owned(),
            model: model.to_owned(),
            cpus: 2,
            release: Release::Current,
            guests: Vec::new(),
            words: vec!["exit-port=bochs".to_owned()],
            msrs: Vec::new(),
            limit: Duration::from_secs(150),
        }
    }

    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Another release than the current one.
    pub fn release(mut self, release: Release) -> Self {
        self.release = release;
        self
    }

    /// One more guest, as `--guest` takes it, with its kernel's defaults.
    pub fn guest(mut self, spec: &str) -> Result<Self> {
        self.guests.push(spec.parse()?);
        Ok(self)
    }

    /// How long it may take on the wall clock; 60 s if nothing is said.
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// One more word for Lull's command line.
    pub fn word(mut self, word: &str) -> Self {
        self.words.push(word.to_owned());
        self
    }

    /// One more MSR that the model has not, or that Bochs does not have for it.
    pub fn msr(mut self, msr: u32, value: u64) -> Self {
        self.msrs.push((msr, value));
        self
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn run(self) -> Result<Ran> {
        self.start()?.finish()
    }

    /// Starts it.
    ///
    /// # Errors
    /// That the test is to be skipped, if there is no such Bochs here; else what goes wrong.
    pub fn start(self) -> Result<Running> {
        let context = self.lab.context;
        let bochs = context.bochs(self.release)?;
        let file = |kind: &str| self.lab.dir.join(format!("{}.{kind}", self.label));
        let bundle = file("bundle.cpio");
        if !self.guests.is_empty() {
            let guests = guest_arg::complete(&self.guests, &context.built)?;
            Bundle::of_guests(&guests, &context.built)?.write(&bundle)?;
        }
        let mut words = self.words.join(" ");
        if self.guests.is_empty() {
            words.push_str(" no-guests");
        }
        let iso = Iso {
            image: &context.built.image,
            bundle: (!self.guests.is_empty()).then_some(&bundle),
            cmdline: &words,
            purpose: Purpose::Emulator,
        };
        iso.write(&file("tree"), &file("iso"))?;
        let machine = Machine {
            bochs,
            model: self.model,
            cpus: self.cpus,
            mem_mib: 256,
            iso: file("iso"),
            dir: self.lab.dir.to_owned(),
            label: self.label.clone(),
            msrs: self.msrs,
        };
        let console = file("console.txt");
        let session = Session::start_bochs(&machine, &console, false, None)?;
        Ok(Running {
            session,
            console,
            limit: self.limit,
        })
    }
}
