//! Each guest kernel boots unchanged in QEMU's own `-kernel`, without Lull: what it is compared with.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::GUESTS;
use crate::{
    build::GoodEnd,
    qemu::exit,
    test::{case::Case, case::Lab},
};

pub fn cases() -> Vec<Case> {
    GUESTS
        .iter()
        .map(|name| Case::icount(format!("bare/{name}"), |lab| bare(lab, name)))
        .collect()
}

fn bare(lab: &Lab<'_>, name: &str) -> Result<()> {
    let kernel = lab.context.built.guest(name)?;
    let mut rig = lab
        .rig("bare")
        .kernel(kernel.path.clone())
        .cpus(kernel.vcpus.max(1))
        .mem("128M");
    for word in kernel.cmdline.split_whitespace() {
        rig = rig.word(word);
    }
    let mut running = rig.start()?;
    // What a guest says goes to port 0xE9 here, word for word: it is no machine channel.
    let said = lab.dir.join("bare.channel.jsonl");
    let output = || std::fs::read_to_string(&said).unwrap_or_default();
    let passed = || output().lines().any(|line| line == "PASS");
    if kernel.end == GoodEnd::Never {
        let patience = Instant::now() + Duration::from_secs(30);
        while !passed() {
            if Instant::now() > patience
                || running
                    .session
                    .wait_for(Duration::from_millis(50), |_| false)?
            {
                bail!("no PASS within 30 s; it said:\n{}", output());
            }
        }
        return Ok(());
    }
    let ran = running.finish()?;
    ensure!(
        passed(),
        "it did not say PASS ({}); it said:\n{}",
        ran.ended.how(),
        output()
    );
    // A triple fault resets the machine, and with `-no-reboot` QEMU ends.
    let expected = if kernel.end == GoodEnd::Port {
        exit::OK
    } else {
        0
    };
    ensure!(
        ran.ended.code() == Some(expected),
        "expected exit code {expected}: {}",
        ran.ended.how()
    );
    Ok(())
}
