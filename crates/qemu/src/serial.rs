use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{QemuError, QemuErrorKind};

/// Waits until the guest writes a line with `pattern` (a plain text) in it to its serial log, and gives that
/// line. What it wrote since the machine was started counts too. `alive` says whether more may come.
pub(crate) fn wait_for_line(
    log: &Path,
    pattern: &str,
    time_max: Duration,
    alive: impl Fn() -> bool,
) -> Result<String, QemuError> {
    let what = || format!("wait for '{pattern}' on the serial line ({})", log.display());
    let until = Instant::now() + time_max;
    let mut tail = Tail::default();
    loop {
        // Asked before reading: what a guest writes last is not missed when QEMU ends.
        let more_may_come = alive();
        if let Some(line) = tail.find(log, pattern).map_err(|error| QemuError::io(what(), error))? {
            return Ok(line);
        }
        let last = || format!("the last line was '{}'", tail.last_line());
        if !more_may_come {
            return Err(QemuError::new(QemuErrorKind::Failed, what())
                .because(format!("the machine is off; {}", last())));
        }
        if Instant::now() >= until {
            let why = format!("not seen in {} s; {}", time_max.as_secs(), last());
            return Err(QemuError::new(QemuErrorKind::Timeout, what()).because(why));
        }
        thread::sleep(POLL);
    }
}

/// Reads a growing file line by line.
#[derive(Default)]
struct Tail {
    file: Option<File>,
    line: Vec<u8>,
    last: Vec<u8>,
}

impl Tail {
    fn find(&mut self, log: &Path, pattern: &str) -> io::Result<Option<String>> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => match File::open(log) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => opened?,
            },
        };
        let mut buffer = [0; 16 << 10];
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                self.file = Some(file);
                return Ok(self.matches(pattern));
            }
            for byte in &buffer[..count] {
                if let Some(line) = self.take(*byte, pattern) {
                    self.file = Some(file);
                    return Ok(Some(line));
                }
            }
        }
    }

    fn take(&mut self, byte: u8, pattern: &str) -> Option<String> {
        if byte != b'\n' && self.line.len() < LINE_BYTES_MAX {
            self.line.push(byte);
            return None;
        }
        let found = self.matches(pattern);
        self.last = std::mem::take(&mut self.line);
        found
    }

    fn matches(&self, pattern: &str) -> Option<String> {
        let line = String::from_utf8_lossy(&self.line);
        line.contains(pattern).then(|| line.trim().to_string())
    }

    fn last_line(&self) -> String {
        let line = if self.line.is_empty() { &self.last } else { &self.line };
        String::from_utf8_lossy(line).trim().chars().filter(|c| !c.is_control()).take(200).collect()
    }
}

const POLL: Duration = Duration::from_millis(50);
/// A guest that writes without line ends must not fill our memory.
const LINE_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_line_that_comes_late_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("serial.log");
        let path = log.clone();
        let writer = thread::spawn(move || {
            let mut file = File::create(path).unwrap();
            for part in ["boot\r\nDROVER-", "GUEST name=web01\r\n", "more\n"] {
                thread::sleep(Duration::from_millis(80));
                file.write_all(part.as_bytes()).unwrap();
            }
        });
        let line = wait_for_line(&log, "GUEST", Duration::from_secs(60), || true).unwrap();
        assert_eq!(line, "DROVER-GUEST name=web01");
        writer.join().unwrap();
    }

    #[test]
    fn a_machine_that_ends_without_the_line_is_an_error_with_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("serial.log");
        std::fs::write(&log, "one\nKernel panic\n").unwrap();
        let error = wait_for_line(&log, "DONE", Duration::from_secs(10), || false).unwrap_err();
        assert!(error.chain().contains("machine is off") && error.chain().contains("Kernel panic"));
        let error = wait_for_line(&log, "DONE", Duration::ZERO, || true).unwrap_err();
        assert_eq!(error.kind, QemuErrorKind::Timeout);
    }
}
