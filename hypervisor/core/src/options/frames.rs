//! The table of frames on the command line: `arinc653=20000,control:5000,io.1:10000`.

use super::number;
use crate::sched::arinc653::MAX_FRAMES;
use crate::units::Micros;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// A minor frame, by the guest's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Whose it is.
    pub guest: String,
    /// Which of its vCPUs.
    pub vcpu: usize,
    /// How long it is.
    pub length: Micros,
}

/// The whole table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameTable {
    /// The length of the major frame: at least that of all minor frames.
    pub major: Micros,
    /// The minor frames, in order; not empty.
    pub frames: Vec<Frame>,
}

/// The longest frame: an hour.
const MAX_MICROS: u64 = 3_600_000_000;

impl FrameTable {
    pub(super) fn parse(value: &str) -> Result<Self, String> {
        let mut words = value.split(',');
        let major = words.next().unwrap_or_default();
        let major = Micros::new(number(major, 1..=MAX_MICROS)?);
        let frames = words.map(frame).collect::<Result<Vec<_>, _>>()?;
        if frames.is_empty() {
            return Err("no minor frame".to_string());
        }
        if frames.len() > MAX_FRAMES {
            return Err(format!(
                "{} frames are more than {MAX_FRAMES}",
                frames.len()
            ));
        }
        let minor: u64 = frames.iter().map(|frame| frame.length.get()).sum();
        if minor > major.get() {
            let major = major.get();
            return Err(format!(
                "minor frames of {minor} us do not fit into {major} us"
            ));
        }
        Ok(Self { major, frames })
    }
}

fn frame(word: &str) -> Result<Frame, String> {
    let (whose, length) = word
        .split_once(':')
        .ok_or_else(|| format!("`{word}` has no length"))?;
    // A name may have dots: what follows the last one is a vCPU only if it is a number.
    let (guest, vcpu) = match whose.rsplit_once('.') {
        Some((guest, vcpu)) if vcpu.bytes().all(|byte| byte.is_ascii_digit()) => {
            (guest, number(vcpu, 0..=63)? as usize)
        }
        _ => (whose, 0),
    };
    if guest.is_empty() {
        return Err(format!("`{word}` names no guest"));
    }
    Ok(Frame {
        guest: guest.to_string(),
        vcpu,
        length: Micros::new(number(length, 1..=MAX_MICROS)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_is_written() {
        let table = FrameTable::parse("20000,control:5000,my.io.1:10000,v1.x:1").unwrap();
        assert_eq!(table.major, Micros::new(20_000));
        let read: Vec<_> = table
            .frames
            .iter()
            .map(|frame| (frame.guest.as_str(), frame.vcpu, frame.length.get()))
            .collect();
        assert_eq!(
            read,
            [("control", 0, 5_000), ("my.io", 1, 10_000), ("v1.x", 0, 1)]
        );
    }

    #[test]
    fn a_malformed_table_is_named() {
        let why = |value: &str| FrameTable::parse(value).unwrap_err();
        assert_eq!(why("1000"), "no minor frame");
        assert_eq!(why("1000,a"), "`a` has no length");
        assert_eq!(why("1000,:5"), "`:5` names no guest");
        assert_eq!(
            why("1000,a:600,b:500"),
            "minor frames of 1100 us do not fit into 1000 us"
        );
        assert!(FrameTable::parse("0,a:1").is_err() && FrameTable::parse("9,a:0").is_err());
        assert!(FrameTable::parse("").is_err());
        let many = format!("1000{}", ",a:1".repeat(65));
        assert_eq!(why(&many), "65 frames are more than 64");
    }
}
