//! The raw text of the `cpuid` program (`cpuid -r`): one block a CPU, one line a leaf.

use anyhow::{Result, bail};
use lull_core::cstate::select::Registers;
use lull_core::options::Problem;

/// The leaves of the CPUs of one machine.
pub struct Dump {
    cpus: Vec<Vec<(u32, u32, Registers)>>,
    problems: Vec<Problem>,
}

impl Dump {
    /// Reads the text. Lines that are no leaves are skipped; those that look like one are named.
    ///
    /// # Errors
    /// There is no leaf 0 and 1 of any CPU in it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut cpus: Vec<Vec<(u32, u32, Registers)>> = vec![];
        let mut problems = vec![];
        for line in text.lines().map(str::trim) {
            if line.starts_with("CPU") && line.ends_with(':') {
                cpus.push(vec![]);
            } else if let Some(leaf) = leaf(line) {
                if cpus.is_empty() {
                    cpus.push(vec![]);
                }
                let Some(cpu) = cpus.last_mut() else { continue };
                if of(Some(&*cpu), leaf.0, leaf.1).is_some() {
                    let why = "this CPU has that leaf already: the first counts";
                    problems.push(Problem::new(line, why, "each leaf once a CPU"));
                } else {
                    cpu.push(leaf);
                }
            } else if line.starts_with("0x") {
                let expected = "0xLEAF 0xSUBLEAF: eax=0x.. ebx=0x.. ecx=0x.. edx=0x..";
                problems.push(Problem::new(line, "not a leaf: skipped", expected));
            }
        }
        cpus.retain(|cpu| !cpu.is_empty());
        let dump = Self { cpus, problems };
        if !dump.has(0) || !dump.has(1) {
            bail!("no CPUID leaves 0 and 1 in it: expected the text of `cpuid -r`");
        }
        Ok(dump)
    }

    /// Lines that look like leaves and do not count.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Does the text say anything of this leaf of the first CPU?
    pub fn has(&self, leaf: u32) -> bool {
        let first = self.cpus.iter().take(1).flatten();
        first.clone().any(|(number, ..)| *number == leaf)
    }

    /// A leaf of the first CPU; zeros if the text does not have it.
    pub fn leaf(&self, leaf: u32, sub: u32) -> Registers {
        const EXTENDED: u32 = 0x8000_0000;
        if leaf == EXTENDED && !self.has(EXTENDED) {
            // The first one says which is the last; parts of a text may do without.
            let first = self.cpus.iter().take(1).flatten();
            let last = first.map(|(leaf, ..)| *leaf).max().unwrap_or(0);
            return Registers {
                eax: if last > EXTENDED { last } else { 0 },
                ..Registers::default()
            };
        }
        of(self.cpus.first(), leaf, sub).unwrap_or_default()
    }

    /// Leaves about C-states that the CPU has, or may have, and the text does not.
    pub fn missing(&self) -> Vec<u32> {
        let last = self.leaf(0, 0).eax;
        let basic = [5, 6, 7].into_iter().filter(|&leaf| leaf <= last);
        let extended = self.leaf(0x8000_0000, 0).eax;
        let nonstop = (extended == 0 || extended >= 0x8000_0007).then_some(0x8000_0007);
        basic
            .chain(nonstop)
            .filter(|&leaf| !self.has(leaf))
            .collect()
    }

    /// The APIC ids of all CPUs in the text.
    pub fn apic_ids(&self) -> Vec<u32> {
        let ids = self.cpus.iter().map(|cpu| {
            let extended = of(Some(cpu), 0xB, 0).unwrap_or_default();
            if extended.ecx & 0xFF00 != 0 {
                extended.edx
            } else {
                of(Some(cpu), 1, 0).unwrap_or_default().ebx >> 24
            }
        });
        ids.collect()
    }
}

fn of(cpu: Option<&Vec<(u32, u32, Registers)>>, leaf: u32, sub: u32) -> Option<Registers> {
    cpu.into_iter()
        .flatten()
        .find(|(a, b, _)| (*a, *b) == (leaf, sub))
        .map(|(_, _, said)| *said)
}

/// `0x00000005 0x00: eax=0x00000040 ebx=0x00000040 ecx=0x00000003 edx=0x00002020`
fn leaf(line: &str) -> Option<(u32, u32, Registers)> {
    let hex = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (numbers, registers) = line.split_once(':')?;
    let mut numbers = numbers.split_whitespace();
    let (leaf, sub) = (hex(numbers.next()?)?, hex(numbers.next()?)?);
    let mut said = Registers::default();
    for word in registers.split_whitespace() {
        let (name, value) = word.split_once('=')?;
        let value = hex(value)?;
        match name {
            "eax" => said.eax = value,
            "ebx" => said.ebx = value,
            "ecx" => said.ecx = value,
            "edx" => said.edx = value,
            _ => return None,
        }
    }
    Some((leaf, sub, said))
}
