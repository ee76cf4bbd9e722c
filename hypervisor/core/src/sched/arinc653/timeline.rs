//! The time line of a table: pure, and exact for ever.

use super::BadTable;
use crate::units::{Ticks, VcpuId};

/// So many minor frames a table has at most.
pub const MAX_FRAMES: usize = 64;

/// One minor frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinorFrame {
    /// Whose it is.
    pub unit: VcpuId,
    /// How long it is.
    pub length: Ticks,
}

/// A table, and where in it the time is.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    frames: [MinorFrame; MAX_FRAMES],
    count: usize,
    major: Ticks,
    /// The frame that is due; `count` in the slack.
    index: usize,
    /// When the major frame ends; zero before the first.
    next_major: Ticks,
    /// When the minor frame, or the slack, ends.
    next_switch: Ticks,
}

impl Timeline {
    pub const fn new() -> Self {
        const NOBODY: MinorFrame = MinorFrame {
            unit: VcpuId::new(0),
            length: Ticks::ZERO,
        };
        Self {
            frames: [NOBODY; MAX_FRAMES],
            count: 0,
            major: Ticks::ZERO,
            index: 0,
            next_major: Ticks::ZERO,
            next_switch: Ticks::ZERO,
        }
    }

    pub fn of(frames: &[MinorFrame], major: Ticks, now: Ticks) -> Result<Self, BadTable> {
        if frames.is_empty() {
            return Err(BadTable::Empty);
        }
        if frames.len() > MAX_FRAMES {
            return Err(BadTable::TooLong(frames.len()));
        }
        if let Some(frame) = frames.iter().find(|frame| frame.length == Ticks::ZERO) {
            return Err(BadTable::NoTime(frame.unit));
        }
        let minor = frames
            .iter()
            .fold(Ticks::ZERO, |sum, frame| sum + frame.length);
        if minor > major {
            return Err(BadTable::Overfull { minor, major });
        }
        let mut line = Self::new();
        for (place, frame) in line.frames.iter_mut().zip(frames) {
            *place = *frame;
        }
        line.count = frames.len();
        line.major = major;
        line.next_major = now;
        Ok(line)
    }

    /// One more frame at the end; the major frame grows. `false` if the table is full.
    pub fn append(&mut self, unit: VcpuId, length: Ticks) -> bool {
        let Some(place) = self.frames.get_mut(self.count) else {
            return false;
        };
        *place = MinorFrame { unit, length };
        self.count += 1;
        self.major += length;
        true
    }

    /// The frames of a unit are gone; the major frame shrinks.
    pub fn remove(&mut self, unit: VcpuId) {
        let mut kept = 0;
        for at in 0..self.count {
            let frame = self.frames[at];
            if frame.unit == unit {
                self.major -= frame.length;
            } else {
                self.frames[kept] = frame;
                kept += 1;
            }
        }
        self.count = kept;
        // The major frame in progress is cut: the next begins at the next look.
        self.next_major = Ticks::ZERO;
    }

    /// Whose the time is, and until when. `None`: slack. Without a table there is no time either.
    ///
    /// All boundaries follow from the first, whenever this is asked.
    pub fn at(&mut self, now: Ticks) -> (Option<VcpuId>, Option<Ticks>) {
        if self.count == 0 || self.major == Ticks::ZERO {
            return (None, None);
        }
        if self.next_major == Ticks::ZERO {
            self.next_major = now;
        }
        if now >= self.next_major {
            let into = (now - self.next_major).get() % self.major.get();
            let begin = now - Ticks::new(into);
            self.next_major = begin + self.major;
            self.index = 0;
            self.next_switch = begin + self.length(0);
        }
        while now >= self.next_switch {
            self.index += 1;
            if self.index >= self.count {
                self.next_switch = self.next_major;
                break;
            }
            self.next_switch += self.length(self.index);
        }
        let frame = self
            .frames
            .get(..self.count)
            .and_then(|all| all.get(self.index));
        (frame.map(|frame| frame.unit), Some(self.next_switch))
    }

    fn length(&self, index: usize) -> Ticks {
        self.frames
            .get(index)
            .map_or(self.major, |frame| frame.length)
    }

    pub fn next_switch(&self) -> Option<Ticks> {
        (self.count > 0).then_some(self.next_switch)
    }
}
