//! Disassembles the built image: is STI directly followed by the sleep wherever interrupts are opened for one?
//!
//! An instruction between the two, put there by whoever or whatever changes the code, is a window in which an interrupt is
//! taken before the sleep and its event slept over. The source cannot show that it is not there; the image can.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// Where the image lists its pairs: {second instruction, the one after it}, 64 bits each.
const PAIRS: &str = ".lull_sti_pairs";

/// The entries from the boot loader: 32-bit code that runs with interrupts off, and without a table for them.
const BOOT_ENTRIES: [&str; 2] = ["lull_pvh_entry", "lull_multiboot2_entry"];

/// Where the firmware's code runs, in its cage and with interrupts open, before any CPU idles. Nothing sleeps there.
const CAGED: [&str; 3] = ["lull::cage::", "lull::acpi::", "lull_cage_enter"];

/// What was found, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// `sti; hlt; cli`.
    pub hlt_pairs: usize,
    /// `sti; mwait; cli`.
    pub mwait_pairs: usize,
    /// MWAIT with interrupts as they are: off.
    pub masked_mwaits: usize,
    /// `sti; nop; cli`.
    pub windows: usize,
    /// `clgi; sti`.
    pub gates: usize,
    /// `cli; hlt`.
    pub stops: usize,
    /// STI by itself, where the firmware's code runs.
    pub caged: usize,
}

/// One function.
struct Function<'a> {
    name: String,
    address: u64,
    code: &'a [u8],
}

/// Checks every function of an image.
///
/// # Errors
/// The first STI, HLT, MWAIT or listed pair that is not as it must be, with its function.
pub fn check(elf: &[u8]) -> Result<Found> {
    let file = object::File::parse(elf).context("the image is not an ELF file")?;
    let text = file.section_by_name(".text").context("no .text")?;
    let (start, code) = (text.address(), text.data()?);
    let mut functions = Vec::new();
    let mut covered = 0;
    for symbol in file.symbols() {
        let inside = (start..start + code.len() as u64).contains(&symbol.address());
        if symbol.kind() != SymbolKind::Text || !inside || !symbol.is_definition() {
            continue;
        }
        let at = usize::try_from(symbol.address() - start)?;
        let size = usize::try_from(symbol.size())?;
        let name = symbol.name()?;
        let code = code
            .get(at..at + size)
            .with_context(|| format!("{name} leaves .text"))?;
        covered += size;
        functions.push(Function {
            name: format!("{:#}", rustc_demangle::demangle(name)),
            address: symbol.address(),
            code,
        });
    }
    ensure!(
        covered > code.len() / 10 * 8,
        "the symbols cover {covered} of {} bytes of code only",
        code.len()
    );
    let section = file.section_by_name(PAIRS).context("no list of pairs")?;
    let words: Vec<u64> = section
        .data()?
        .chunks_exact(8)
        .filter_map(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)))
        .collect();
    let pairs = words.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    judge(&functions, &pairs.collect())
}

fn judge(functions: &[Function<'_>], pairs: &BTreeMap<u64, u64>) -> Result<Found> {
    let mut found = Found::default();
    for function in functions {
        let boot = BOOT_ENTRIES.contains(&function.name.as_str());
        let bits = if boot { 32 } else { 64 };
        let mut decoder =
            Decoder::with_ip(bits, function.code, function.address, DecoderOptions::NONE);
        let code: Vec<(u64, Mnemonic)> = decoder
            .iter()
            .map(|one| (one.ip(), one.mnemonic()))
            .collect();
        let at = |index: Option<usize>| index.and_then(|index| code.get(index)).copied();
        for (index, &(ip, mnemonic)) in code.iter().enumerate() {
            let before = at(index.checked_sub(1)).map(|(_, mnemonic)| mnemonic);
            let after = at(Some(index + 1)).map(|(_, mnemonic)| mnemonic);
            let place = || format!("{ip:#x} in {}", function.name);
            let listed = pairs.get(&ip);
            if let Some(&end) = listed {
                ensure!(
                    before == Some(Mnemonic::Sti),
                    "a listed sleep at {} is not directly behind STI but behind {before:?}",
                    place()
                );
                ensure!(
                    after == Some(Mnemonic::Cli)
                        && at(Some(index + 1)).map(|(ip, _)| ip) == Some(end),
                    "a listed sleep at {} is followed by {after:?}, and not by the CLI at {end:#x}",
                    place()
                );
            }
            match (mnemonic, listed) {
                (Mnemonic::Hlt, Some(_)) => found.hlt_pairs += 1,
                (Mnemonic::Mwait, Some(_)) => found.mwait_pairs += 1,
                (_, Some(_)) => bail!("{} is listed as a sleep, and is {mnemonic:?}", place()),
                (Mnemonic::Hlt, None) if before == Some(Mnemonic::Cli) => found.stops += 1,
                (Mnemonic::Hlt, None) if boot => {}
                (Mnemonic::Hlt, None) => bail!("a HLT at {} is behind {before:?}", place()),
                (Mnemonic::Mwait, None) => {
                    ensure!(
                        before != Some(Mnemonic::Sti),
                        "the MWAIT at {} is behind STI, and is not listed",
                        place()
                    );
                    found.masked_mwaits += 1;
                }
                (Mnemonic::Sti, None) => {
                    let next = at(Some(index + 1)).map(|(ip, _)| ip);
                    let third = at(Some(index + 2)).map(|(_, mnemonic)| mnemonic);
                    if next.is_some_and(|ip| pairs.contains_key(&ip)) {
                        // Counted at the sleep.
                    } else if (after, third) == (Some(Mnemonic::Nop), Some(Mnemonic::Cli)) {
                        found.windows += 1;
                    } else if before == Some(Mnemonic::Clgi) {
                        found.gates += 1;
                    } else if CAGED.iter().any(|name| function.name.contains(name)) {
                        found.caged += 1;
                    } else {
                        bail!(
                            "an STI at {} opens interrupts between {before:?} and {after:?}",
                            place()
                        );
                    }
                }
                _ => {}
            }
        }
    }
    ensure!(
        found.hlt_pairs + found.mwait_pairs == pairs.len(),
        "{} sleeps are listed, and {found:?} are in functions",
        pairs.len()
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STI: u8 = 0xFB;
    const CLI: u8 = 0xFA;
    const HLT: u8 = 0xF4;
    const NOP: u8 = 0x90;
    const MWAIT: [u8; 3] = [0x0F, 0x01, 0xC9];

    /// One function at 0x1000, with the sleeps at these offsets listed.
    fn of(code: &[u8], pairs: &[(u64, u64)]) -> Result<Found> {
        let function = Function {
            name: "sleep".to_owned(),
            address: 0x1000,
            code,
        };
        let pairs = pairs.iter().map(|&(at, end)| (0x1000 + at, 0x1000 + end));
        judge(&[function], &pairs.collect())
    }

    #[test]
    fn what_must_be_adjacent_is() {
        let [a, b, c] = MWAIT;
        let code = [
            STI, HLT, CLI, STI, a, b, c, CLI, STI, NOP, CLI, CLI, HLT, a, b, c,
        ];
        let found = of(&code, &[(1, 2), (4, 7)]).unwrap();
        let expected = Found {
            hlt_pairs: 1,
            mwait_pairs: 1,
            masked_mwaits: 1,
            windows: 1,
            gates: 0,
            stops: 1,
            caged: 0,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_between_or_missing_is_found() {
        let [a, b, c] = MWAIT;
        for (code, pairs, why) in [
            // An instruction between the two.
            (vec![STI, NOP, HLT, CLI], vec![(2, 3)], "an STI at 0x1000"),
            (
                vec![STI, NOP, NOP, a, b, c, CLI],
                vec![(3, 6)],
                "an STI at 0x1000",
            ),
            // A sleep that nobody listed.
            (vec![STI, HLT, CLI], vec![], "an STI at 0x1000"),
            (
                vec![STI, NOP, CLI, HLT, NOP, HLT],
                vec![],
                "behind Some(Nop)",
            ),
            // Interrupts stay open.
            (
                vec![STI, HLT, NOP, CLI],
                vec![(1, 2)],
                "followed by Some(Nop)",
            ),
            // An STI of its own.
            (vec![STI, NOP, NOP], vec![], "opens interrupts"),
            // No STI at all.
            (vec![NOP, HLT, CLI], vec![(1, 2)], "not directly behind STI"),
            // A list that names something else, or nothing.
            (vec![STI, NOP, CLI], vec![(1, 2)], "is listed as a sleep"),
            (vec![NOP], vec![(7, 8)], "1 sleeps are listed"),
        ] {
            let said = of(&code, &pairs).unwrap_err().to_string();
            assert!(said.contains(why), "{code:x?}: {said}");
        }
    }
}
