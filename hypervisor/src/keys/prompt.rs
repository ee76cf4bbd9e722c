//! Key `:`: a command is typed, carried out, and answered on the console and on the machine channel.
//!
//! While a line is open, what comes in belongs to it and is no key. Only the boot CPU takes keys.

use alloc::string::String;
use alloc::vec::Vec;

use lull_core::command::{Command, Edit, LineEditor};
use lull_core::options::Problem;
use spin::mutex::SpinMutex;

use crate::console::{self, machine_channel, records};
use crate::dumpln;
use crate::run::{Running, command};

/// The line that is being typed. A leaf.
static LINE: SpinMutex<Option<LineEditor>> = SpinMutex::new(None);

/// Begins a line.
pub fn open() {
    *LINE.lock() = Some(LineEditor::new());
    console::write_bytes(b"(LULL) : ");
}

/// Gives a byte to the line that is open. `false` if there is none.
pub fn takes(running: &'static Running, byte: u8) -> bool {
    let mut line = LINE.lock();
    let Some(editor) = line.as_mut() else {
        return false;
    };
    let edit = editor.take(byte);
    if !matches!(edit, Edit::Echo(_)) {
        *line = None;
    }
    drop(line);
    match edit {
        Edit::Echo(bytes) => console::write_bytes(bytes.as_bytes()),
        Edit::Abandoned => console::write_bytes(b" (abandoned)\r\n"),
        Edit::Done(line) => {
            console::write_bytes(b"\r\n");
            if !line.trim().is_empty() {
                answer(&line, carry_out(running, &line));
            }
        }
    }
    true
}

fn carry_out(running: &Running, line: &str) -> Result<Vec<String>, Problem> {
    command::run(running, &Command::parse(line)?)
}

fn answer(line: &str, answer: Result<Vec<String>, Problem>) {
    match &answer {
        Ok(lines) => {
            for line in lines {
                dumpln!("{line}");
            }
        }
        Err(problem) => dumpln!("{problem}"),
    }
    machine_channel::command(&records::CommandAnswer {
        line,
        answer: &answer,
    });
}
