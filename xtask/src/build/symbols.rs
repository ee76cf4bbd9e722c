//! Puts the image's own symbols into it, so that a backtrace on the console has names.
//!
//! The format of the section, which the image reads and we write, is defined where it is read: the module
//! `panic::symbols` of the image.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

/// The section that the linker reserves.
const SECTION: &str = ".lull_symbols";
const MAGIC: &[u8] = b"LULLSYM1";
/// Magic and count.
const HEADER: usize = 12;
/// Address and offset of the name.
const ENTRY: usize = 8;

/// The image with its symbol table filled in; an image without the section stays as it is.
///
/// # Errors
/// If the image cannot be read.
pub fn with_symbols(mut elf: Vec<u8>) -> Result<Vec<u8>> {
    let file = object::File::parse(&*elf).context("the image is not an ELF file")?;
    let Some(section) = file.section_by_name(SECTION) else {
        eprintln!("xtask: the image has no section {SECTION}: backtraces will show addresses only");
        return Ok(elf);
    };
    let (at, size) = section
        .file_range()
        .context("the section of the symbols holds nothing")?;
    let (at, size) = (usize::try_from(at)?, usize::try_from(size)?);
    ensure!(
        elf.get(at..at + size)
            .is_some_and(|old| old.starts_with(MAGIC)),
        "{SECTION} does not start with its magic"
    );
    let functions = functions(&file);
    let (table, left_out) = table(&functions, size);
    if left_out > 0 {
        eprintln!(
            "xtask: {left_out} of {} symbols do not fit into {SECTION} ({size} bytes)",
            functions.len()
        );
    }
    elf[at..at + size].copy_from_slice(&table);
    Ok(elf)
}

/// Functions by address, with an empty name behind the last of each text section.
fn functions(file: &object::File<'_>) -> BTreeMap<u32, String> {
    let mut functions = BTreeMap::new();
    for section in file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
    {
        if let Ok(end) = u32::try_from(section.address() + section.size()) {
            functions.insert(end, String::new());
        }
    }
    for symbol in file.symbols() {
        let (Ok(name), Ok(address)) = (symbol.name(), u32::try_from(symbol.address())) else {
            continue;
        };
        if symbol.kind() == SymbolKind::Text && symbol.is_definition() && !name.is_empty() {
            functions.insert(address, format!("{:#}", rustc_demangle::demangle(name)));
        }
    }
    functions
}

/// The table in `size` bytes, and how many functions have no place in it.
fn table(functions: &BTreeMap<u32, String>, size: usize) -> (Vec<u8>, usize) {
    // An entry may be left out at the end: then the one before it must not take its addresses, so that a table
    // that is cut ends with an empty name.
    let mut kept = functions.len();
    loop {
        let cut = kept < functions.len();
        let table = whole(
            functions
                .iter()
                .take(kept)
                .map(|(address, name)| (*address, name.as_str())),
            cut,
            functions,
        );
        if table.len() <= size || kept == 0 {
            let mut table = if table.len() <= size {
                table
            } else {
                [MAGIC, &0_u32.to_le_bytes()].concat()
            };
            table.resize(size, 0);
            return (table, functions.len() - kept);
        }
        // Each try drops a sixteenth: the exact number does not matter.
        kept -= (kept / 16).max(1);
    }
}

fn whole<'a>(
    entries: impl Iterator<Item = (u32, &'a str)>,
    cut: bool,
    all: &BTreeMap<u32, String>,
) -> Vec<u8> {
    let mut entries: Vec<(u32, &str)> = entries.collect();
    if cut && let Some((next, _)) = all.iter().nth(entries.len()) {
        entries.push((*next, ""));
    }
    let names_at = HEADER + ENTRY * entries.len();
    let mut names: Vec<u8> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut table = MAGIC.to_vec();
    table.extend(little(entries.len()));
    for (address, name) in entries {
        let offset = *known.entry(name).or_insert_with(|| {
            let offset = names_at + names.len();
            names.extend(name.bytes().filter(|byte| *byte != 0));
            names.push(0);
            offset
        });
        table.extend(address.to_le_bytes());
        table.extend(little(offset));
    }
    table.extend(names);
    table
}

/// A number that the size of the section keeps small.
fn little(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(table: &[u8], at: usize) -> usize {
        u32::from_le_bytes(table[at..at + 4].try_into().unwrap()) as usize
    }

    fn name(table: &[u8], entry: usize) -> &str {
        let at = word(table, HEADER + ENTRY * entry + 4);
        let end = at + table[at..].iter().position(|byte| *byte == 0).unwrap();
        std::str::from_utf8(&table[at..end]).unwrap()
    }

    #[test]
    fn the_table_is_as_documented() {
        let functions = BTreeMap::from([
            (0x200, "b".into()),
            (0x100, "a".into()),
            (0x300, "a".into()),
            (0x380, String::new()),
        ]);
        let (table, left_out) = table(&functions, 256);
        assert_eq!((table.len(), left_out), (256, 0));
        assert_eq!((&table[..8], word(&table, 8)), (MAGIC, 4));
        let addresses: Vec<usize> = (0..4)
            .map(|entry| word(&table, HEADER + ENTRY * entry))
            .collect();
        assert_eq!(addresses, [0x100, 0x200, 0x300, 0x380]);
        assert_eq!(
            (0..4).map(|entry| name(&table, entry)).collect::<Vec<_>>(),
            ["a", "b", "a", ""]
        );
        assert_eq!(
            word(&table, HEADER + 4),
            word(&table, HEADER + 2 * ENTRY + 4),
            "equal names are shared"
        );
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_gets_no_wrong_name() {
        let functions: BTreeMap<u32, String> = (0..100)
            .map(|n| (n * 16, format!("function_{n}")))
            .collect();
        let (table, left_out) = table(&functions, 512);
        assert_eq!(table.len(), 512);
        let count = word(&table, 8);
        assert_eq!(count, 100 - left_out + 1);
        assert_eq!(name(&table, count - 1), "");
        assert_eq!(
            word(&table, HEADER + ENTRY * (count - 1)),
            (count - 1) * 16,
            "at the first that is left out"
        );
    }
}
