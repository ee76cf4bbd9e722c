//! Lists of CPUs as people write them: `all`, `3`, `1-3`, `0,2-5`.

use super::number;
use crate::units::{CpuId, CpuSet, IMAGE_CPUS};
use alloc::format;
use alloc::string::{String, ToString};

/// Reads a list of CPUs.
///
/// # Errors
/// One clause that says what is wrong with it.
pub(crate) fn cpu_list(text: &str) -> Result<CpuSet, String> {
    if text == "all" {
        return Ok(CpuSet::ALL);
    }
    if text.is_empty() {
        return Err("no CPU".to_string());
    }
    let cpu = |digits: &str| number(digits, 0..=IMAGE_CPUS as u64 - 1).map(|n| n as usize);
    let mut set = CpuSet::EMPTY;
    for part in text.split(',') {
        match part.split_once('-') {
            None => {
                set.insert(CpuId::new(cpu(part)? as u32));
            }
            Some((low, high)) => {
                let (low, high) = (cpu(low)?, cpu(high)?);
                if low > high {
                    return Err(format!("{low} is above {high}"));
                }
                set = set.union(&CpuSet::inclusive(low, high));
            }
        }
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_shown() {
        for text in ["all", "3", "1-3", "0,2-5,7"] {
            let set = cpu_list(text).unwrap();
            assert_eq!(set.to_string(), text);
        }
        let whole = CpuSet::inclusive(0, IMAGE_CPUS - 1);
        assert_eq!(cpu_list("0-255"), Ok(whole));
        assert_eq!(cpu_list("2,1,0-1").unwrap().to_string(), "0-2");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("", "no CPU"),
            ("256", "256 is too large"),
            ("3-1", "3 is above 1"),
            ("1,", "no digits"),
            ("-1", "no digits"),
            ("x", "not a whole number"),
            ("none", "not a whole number"),
            ("1-2-3", "not a whole number"),
        ] {
            assert_eq!(cpu_list(text), Err(why.to_string()), "{text}");
        }
    }
}
