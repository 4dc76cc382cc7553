//! A libvirt daemon, asked by `virsh`: a child for each question.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::child;
use crate::error::{QemuError, QemuErrorKind};
use drover_child::Kind;

/// A daemon by its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Virsh {
    uri: String,
    program: String,
}

impl Virsh {
    /// The daemon at an address in libvirt's form (`qemu:///system`, `qemu+ssh://host/system`).
    pub fn new(uri: impl Into<String>) -> Virsh {
        Virsh { uri: uri.into(), program: PROGRAM.into() }
    }

    /// Asked by another program than the `virsh` that is found.
    #[must_use]
    pub fn by(self, program: impl Into<String>) -> Virsh {
        Virsh { program: program.into(), ..self }
    }

    /// Its address.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Whether it answers.
    ///
    /// # Errors
    /// [`QemuErrorKind::Missing`] without `virsh`; why it does not.
    pub fn reach(&self) -> Result<(), QemuError> {
        self.ask(&["uri"]).map(drop)
    }

    /// What it knows a domain of this name by.
    ///
    /// # Errors
    /// If it does not have such a domain, or cannot be asked.
    pub fn uuid(&self, domain: &str) -> Result<String, QemuError> {
        Ok(self.ask(&["domuuid", domain])?.trim().to_string())
    }

    /// Asks; gives what it said.
    ///
    /// # Errors
    /// [`QemuErrorKind::Missing`] without `virsh`; if it refuses, in its words; if it does not answer in time.
    pub(crate) fn ask(&self, words: &[&str]) -> Result<String, QemuError> {
        self.ask_with(words, Stdio::null())
    }

    /// Asks, with this for the input of the child, which lasts as long as the child does.
    pub(crate) fn ask_with(&self, words: &[&str], input: Stdio) -> Result<String, QemuError> {
        let ended = child::run_with(&mut self.command(words), input, ANSWER_TIME_MAX)
            .map_err(|error| child::start_error(PACKAGE, &self.program, error));
        let ended = ended.map_err(|error| match error.kind {
            QemuErrorKind::Missing(_) => error,
            kind => QemuError::new(kind, self.what(words)).because(error),
        })?;
        if ended.success {
            return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
        }
        Err(self.refused(words, &String::from_utf8_lossy(&ended.stderr)))
    }

    /// Asks for lines; empty ones are left out.
    pub(crate) fn lines(&self, words: &[&str]) -> Result<Vec<String>, QemuError> {
        let text = self.ask(words)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(lines.map(str::to_string).collect())
    }

    /// Asks for what is told as `name: value` or `name=value`.
    pub(crate) fn values(&self, words: &[&str]) -> Result<BTreeMap<String, String>, QemuError> {
        Ok(values(&self.ask(words)?))
    }

    /// Starts what lasts. It goes on without drover: who ends it in its midst leaves its work half done.
    pub(crate) fn begin(&self, words: &[&str]) -> Result<Lasting, QemuError> {
        let failed = |error| QemuError::io(self.what(words), error);
        // A pipe would end it when drover has ended and it says its last word.
        let told = tempfile::tempfile().map_err(failed)?;
        let mut command = self.command(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(told.try_clone().map_err(failed)?);
        let child = command.process_group(0).spawn();
        let child = child.map_err(|error| child::start_error(PACKAGE, &self.program, error))?;
        Ok(Lasting {
            child,
            told,
            virsh: self.clone(),
            word: words.first().copied().unwrap_or_default().into(),
        })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = drover_child::command(&self.program, Kind::Libvirt);
        // What is read is what it says in no other language.
        command.env("LC_ALL", "C").args(["-q", "-c", &self.uri]).args(words);
        command
    }

    fn what(&self, words: &[&str]) -> String {
        format!("`virsh {}` at {}", words.first().copied().unwrap_or_default(), self.uri)
    }

    fn refused(&self, words: &[&str], said: &str) -> QemuError {
        let said: Vec<&str> = said
            .lines()
            .map(|line| line.trim().trim_start_matches("error: "))
            .filter(|line| !line.is_empty())
            .collect();
        let said = said[said.len().saturating_sub(SAID_LINES)..].join(": ");
        let said = if said.is_empty() { "it failed without a word".to_string() } else { said };
        QemuError::new(QemuErrorKind::Failed, self.what(words)).because(said)
    }
}

/// What `virsh` says line by line as a name and a value.
pub(crate) fn values(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let (name, value) = line.split_once([':', '='])?;
        Some((name.trim().to_string(), value.trim().to_string()))
    };
    text.lines().filter_map(pair).collect()
}

/// A `virsh` at work.
#[derive(Debug)]
pub(crate) struct Lasting {
    child: Child,
    told: File,
    virsh: Virsh,
    word: String,
}

impl Lasting {
    /// What came of it; nothing while it is at work.
    pub(crate) fn ended(&mut self) -> Option<Result<(), QemuError>> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(Some(_)) => {
                let said = self.said();
                Some(Err(self.virsh.refused(&[&self.word], &said)))
            }
            Err(error) => Some(Err(QemuError::io(self.virsh.what(&[&self.word]), error))),
        }
    }

    fn said(&mut self) -> String {
        let mut said = Vec::new();
        let read = self
            .told
            .seek(SeekFrom::Start(0))
            .and_then(|_| (&mut self.told).take(SAID_BYTES_MAX).read_to_end(&mut said));
        match read {
            Ok(_) => String::from_utf8_lossy(&said).into_owned(),
            Err(error) => format!("what it said cannot be read: {error}"),
        }
    }
}

const PROGRAM: &str = "virsh";
const PACKAGE: &str = "libvirt-clients";
/// A daemon that has to start a QEMU to know what it can takes some seconds; one far away needs a login.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);
const SAID_LINES: usize = 4;
const SAID_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_of_both_forms() {
        let found = values("Job type: 2\n\noperation: 5\n  state.state=1\nnothing\n");
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!((found["Job type"].as_str(), found["state.state"].as_str()), ("2", "1"));
    }

    #[test]
    fn what_is_refused_is_told_in_its_words() {
        let error = Virsh::new("qemu:///x")
            .refused(&["dominfo", "a"], "error: failed to get domain 'a'\nerror: none\n\n");
        assert_eq!(error.chain(), "`virsh dominfo` at qemu:///x: failed to get domain 'a': none");
    }
}
