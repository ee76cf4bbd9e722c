//! Follows the machine channel while QEMU writes it to a file.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};

use super::Channel;

/// A file that grows, read line by line.
pub struct Tail {
    path: PathBuf,
    file: Option<File>,
    unfinished: Vec<u8>,
    copy: Option<File>,
    /// Lines that do not begin as a message are the emulator's own, and passed over.
    mixed: bool,
    /// What has been read so far.
    pub channel: Channel,
    /// When each message of `channel` was first seen.
    pub seen: Vec<Instant>,
}

impl Tail {
    /// Follows `path`, which need not be there yet; what comes is also written to `copy`.
    ///
    /// # Errors
    /// If an old file is in the way, or `copy` cannot be made.
    pub fn new(path: &Path, copy: Option<&Path>) -> Result<Self> {
        match std::fs::remove_file(path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                return Err(why)
                    .with_context(|| format!("cannot remove the old {}", path.display()));
            }
            Ok(()) | Err(_) => {}
        }
        let copy = match copy {
            Some(to) => {
                Some(File::create(to).with_context(|| format!("cannot write {}", to.display()))?)
            }
            None => None,
        };
        Ok(Self {
            path: path.to_owned(),
            file: None,
            unfinished: Vec::new(),
            copy,
            mixed: false,
            channel: Channel::default(),
            seen: Vec::new(),
        })
    }

    /// The emulator writes lines of its own to the same file.
    pub fn mixed(mut self) -> Self {
        self.mixed = true;
        self
    }

    /// Reads what has come since the last time.
    ///
    /// # Errors
    /// If the file cannot be read or the copy cannot be written.
    pub fn read(&mut self) -> Result<()> {
        if self.file.is_none() {
            self.file = match File::open(&self.path) {
                Ok(file) => Some(file),
                Err(why) if why.kind() == io::ErrorKind::NotFound => None,
                Err(why) => {
                    return Err(why)
                        .with_context(|| format!("cannot read {}", self.path.display()));
                }
            };
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let mut fresh = Vec::new();
        file.read_to_end(&mut fresh)
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        self.unfinished.append(&mut fresh);
        while let Some(end) = self.unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unfinished.drain(..=end).collect();
            self.add(&line)?;
        }
        Ok(())
    }

    /// Reads the rest, after QEMU has ended; a last line without its end counts too.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn finish(&mut self) -> Result<()> {
        self.read()?;
        let rest = std::mem::take(&mut self.unfinished);
        self.add(&rest)
    }

    fn add(&mut self, line: &[u8]) -> Result<()> {
        if self.mixed && !line.starts_with(b"{") {
            return Ok(());
        }
        if let Some(copy) = &mut self.copy {
            copy.write_all(line)
                .context("cannot write the copy of the machine channel")?;
        }
        self.channel.add(String::from_utf8_lossy(line).trim_end());
        self.seen
            .resize(self.channel.messages.len(), Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_when_they_are_whole() {
        let dir = std::env::temp_dir().join(format!("lull-tail-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (path, copy) = (dir.join("in"), dir.join("out"));
        let mut tail = Tail::new(&path, Some(&copy)).unwrap();
        tail.read().unwrap();
        let mut file = File::create(&path).unwrap();
        file.write_all(br#"{"v":1,"type":"end","sta"#).unwrap();
        tail.read().unwrap();
        assert!(tail.channel.end().is_none() && tail.channel.faults.is_empty());
        file.write_all(b"tus\":\"ok\"}\n{\"v\":1").unwrap();
        tail.read().unwrap();
        assert_eq!(tail.channel.end().unwrap().status, "ok");
        assert_eq!(tail.seen.len(), 1);
        tail.finish().unwrap();
        assert_eq!(tail.channel.faults.len(), 1, "the unfinished line");
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&copy).unwrap());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn lines_of_the_emulator_are_passed_over() {
        let path = std::env::temp_dir().join(format!("lull-tail-mixed-{}", std::process::id()));
        let mut tail = Tail::new(&path, None).unwrap().mixed();
        std::fs::write(
            &path,
            "Next at t=0\n{\"v\":1,\"type\":\"end\",\"status\":\"ok\"}\n{\"v\":1,\nbye",
        )
        .unwrap();
        tail.finish().unwrap();
        assert_eq!(tail.channel.end().unwrap().status, "ok");
        assert_eq!(tail.channel.faults.len(), 1, "a torn message is seen");
        std::fs::remove_file(path).unwrap();
    }
}
