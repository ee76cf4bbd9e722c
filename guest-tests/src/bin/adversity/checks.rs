//! What each check must find, and where emulators are known to depart from the manuals.

use core::cell::Cell;
use core::fmt::{self, Write};
use guest_tests::departures::{self, Below};
use guest_tests::text::Text;
use guest_tests::{figure, print, verdict};

/// The checks of a run.
pub struct Checks {
    below: Below,
    done: Cell<u32>,
    departed: Cell<u32>,
    wrong: Cell<u32>,
    first: Cell<Text<80>>,
}

impl Checks {
    pub fn new(below: Below) -> Self {
        Self {
            below,
            done: Cell::new(0),
            departed: Cell::new(0),
            wrong: Cell::new(0),
            first: Cell::new(Text::new()),
        }
    }

    /// What is below the guest, and below a hypervisor if there is one.
    pub fn below(&self) -> Below {
        self.below
    }

    /// `found` must be what the manual says, or what this emulator is known to do instead.
    pub fn expect(&self, name: fmt::Arguments<'_>, found: &str, manual: &str) {
        self.done.set(self.done.get() + 1);
        if found == manual {
            return;
        }
        let mut text = Text::<80>::new();
        let _ = text.write_fmt(name);
        if departures::known(self.below, text.as_str(), found) {
            self.departed.set(self.departed.get() + 1);
            print!("departs {}: {found} (manual: {manual})", text.as_str());
            return;
        }
        print!("wrong {}: {found}, expected {manual}", text.as_str());
        if self.wrong.get() == 0 {
            self.first.set(text);
        }
        self.wrong.set(self.wrong.get() + 1);
    }

    /// A condition, in words.
    pub fn holds(&self, name: fmt::Arguments<'_>, condition: bool) {
        self.expect(name, if condition { "yes" } else { "no" }, "yes");
    }

    /// Figures, and `FAIL` if anything was wrong.
    pub fn finish(self) {
        figure!("checks", self.done.get(), "checks");
        figure!("departures", self.departed.get(), "checks");
        if self.wrong.get() != 0 {
            verdict::fail(format_args!(
                "{} of {} checks are wrong, first {}",
                self.wrong.get(),
                self.done.get(),
                self.first.into_inner().as_str()
            ));
        }
    }
}
