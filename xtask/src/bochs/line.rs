//! The serial line of a machine in Bochs: a pseudo-terminal, so that the console is live and takes keys.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use nix::{
    pty::openpty,
    sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr},
    unistd::ttyname,
};

/// Our end of the line.
pub struct Line {
    ours: OwnedFd,
    /// Kept open, so that the line does not hang up before Bochs has opened its end.
    theirs: OwnedFd,
    device: PathBuf,
    pump: JoinHandle<()>,
}

impl Line {
    /// Makes a line whose output goes to `console`, and to our standard output too if it is `shown`.
    ///
    /// # Errors
    /// If there is no pseudo-terminal to be had, or the file cannot be made.
    pub fn open(console: &Path, shown: bool) -> Result<Self> {
        const WHAT: &str = "cannot make a pseudo-terminal for the console";
        let mut file =
            File::create(console).with_context(|| format!("cannot write {}", console.display()))?;
        let ends = openpty(None, None).context(WHAT)?;
        // Bytes as they are: no echo, no newline translation.
        let mut settings = tcgetattr(&ends.slave).context(WHAT)?;
        cfmakeraw(&mut settings);
        tcsetattr(&ends.slave, SetArg::TCSANOW, &settings).context(WHAT)?;
        let device = ttyname(&ends.slave).context(WHAT)?;
        let mut from = File::from(ends.master.try_clone().context(WHAT)?);
        let pump = thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It ends with an error when the last one has closed the other end.
            while let Ok(len @ 1..) = from.read(&mut buffer) {
                let bytes = buffer.get(..len).unwrap_or_default();
                // A full disk or a closed pipe must not stop the machine.
                let _written = file.write_all(bytes);
                if shown {
                    let mut out = std::io::stdout().lock();
                    let _shown = out.write_all(bytes).and_then(|()| out.flush());
                }
            }
        });
        Ok(Self {
            ours: ends.master,
            theirs: ends.slave,
            device,
            pump,
        })
    }

    /// The device that Bochs is to open.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Something to write keys to.
    ///
    /// # Errors
    /// If there are no more file descriptors.
    pub fn keyboard(&self) -> Result<File> {
        Ok(File::from(self.ours.as_fd().try_clone_to_owned()?))
    }

    /// Takes what is still on the line, after Bochs has ended.
    pub fn close(self) {
        drop(self.theirs);
        // A thread that panicked has nothing more to say.
        let _joined = self.pump.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_end_says_is_kept_byte_for_byte() {
        let path = std::env::temp_dir().join(format!("lull-line-{}", std::process::id()));
        let line = Line::open(&path, false).unwrap();
        let mut other = File::options()
            .read(true)
            .write(true)
            .open(line.device())
            .unwrap();
        other.write_all(b"a\r\nb\n\x03").unwrap();
        line.keyboard().unwrap().write_all(b"*").unwrap();
        let mut key = [0];
        other.read_exact(&mut key).unwrap();
        assert_eq!(key, *b"*");
        drop(other);
        line.close();
        assert_eq!(std::fs::read(&path).unwrap(), b"a\r\nb\n\x03");
        std::fs::remove_file(path).unwrap();
    }
}
