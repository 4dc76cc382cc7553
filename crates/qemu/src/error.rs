use std::error::Error;
use std::fmt;
use std::io;

/// A failure around a target machine or its images: what was being done, and why it failed.
/// `start of web01: process 4711 ended with status 1: could not open '/vm/disk0.raw'`
#[derive(Debug)]
pub struct QemuError {
    /// What may be done about it.
    pub kind: QemuErrorKind,
    /// What was being done to what.
    pub what: String,
    /// Why it failed.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// What may be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QemuErrorKind {
    /// A program or firmware file is not installed; the package of this name (Debian) has it.
    Missing(&'static str),
    /// What was asked for cannot be built: a name, a path, a number.
    Invalid,
    /// Another process uses the image or the machine.
    Busy,
    /// The machine runs already.
    AlreadyRunning,
    /// Something that should be made is there already.
    Exists,
    /// Something that should be there is not.
    NotFound,
    /// No room.
    OutOfSpace,
    /// Not allowed.
    Denied,
    /// An image is not in the format it was said to be in.
    WrongFormat,
    /// It did not happen in time.
    Timeout,
    /// KVM does not run the guest.
    Kvm,
    /// It was ended, as nobody wanted it any more.
    Stopped,
    /// A program or the system refused for another reason.
    Failed,
}

impl QemuError {
    pub(crate) fn new(kind: QemuErrorKind, what: impl Into<String>) -> Self {
        QemuError { kind, what: what.into(), source: None }
    }

    pub(crate) fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// An error of the system.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        // What a socket with a time limit says is of no use to anybody: "Resource temporarily unavailable".
        let source = match source.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "no answer in time"),
            _ => source,
        };
        QemuError::new(QemuErrorKind::of(&source), what).because(source)
    }

    /// A thread or process that the system did not start.
    pub fn not_started(what: &str, why: io::Error) -> Self {
        // As text: its kind would say that nothing came in time.
        let why = format!("{why}; let this user have more processes and threads (`ulimit -u`)");
        QemuError::new(QemuErrorKind::Failed, format!("starting {what}")).because(why)
    }

    /// The error and its reasons in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(reason) = next {
            text.push_str(&format!(": {reason}"));
            next = reason.source();
        }
        text
    }

    /// Whether the connection failed, not what was asked over it.
    pub fn is_of_connection(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.downcast_ref::<io::Error>().is_some())
    }

    /// Whether what was asked was answered, and refused: nothing of it is under way any more.
    pub(crate) fn is_refusal(&self) -> bool {
        self.kind != QemuErrorKind::Timeout && !self.is_of_connection()
    }

    /// What to try.
    pub fn advice(&self) -> Option<String> {
        use QemuErrorKind as K;
        let text = match self.kind {
            K::Missing(package) => return Some(format!("install it: apt-get install {package}")),
            K::Busy => "find out who uses the file (`fuser -v FILE`) and stop it",
            K::AlreadyRunning => "stop the machine first, or leave it running",
            K::OutOfSpace => "make room on the target",
            K::Denied => "check owner and permissions of the folder and its files",
            K::WrongFormat => "say the image's true format in the plan",
            K::Exists => "remove it, or choose another folder",
            K::Kvm => {
                "with `accelerator: tcg` in the plan's target it runs without KVM, and slowly; this KVM does not run the guest, \
                 as in some nested VMs"
            }
            K::Invalid | K::NotFound | K::Timeout | K::Stopped | K::Failed => return None,
        };
        Some(text.into())
    }
}

impl QemuErrorKind {
    /// The kind that an error of the system suggests.
    pub fn of(error: &io::Error) -> Self {
        use io::ErrorKind as E;
        match error.kind() {
            E::StorageFull | E::QuotaExceeded | E::FileTooLarge => QemuErrorKind::OutOfSpace,
            E::NotFound => QemuErrorKind::NotFound,
            E::AlreadyExists => QemuErrorKind::Exists,
            E::PermissionDenied | E::ReadOnlyFilesystem => QemuErrorKind::Denied,
            E::ResourceBusy => QemuErrorKind::Busy,
            E::TimedOut | E::WouldBlock => QemuErrorKind::Timeout,
            E::InvalidInput => QemuErrorKind::Invalid,
            _ => QemuErrorKind::Failed,
        }
    }

    /// The kind that the last words of a QEMU program suggest.
    pub(crate) fn of_words(words: &str) -> Self {
        const SIGNS: [(&str, QemuErrorKind); 5] = [
            ("Is another process using the image", QemuErrorKind::Busy),
            ("No space left on device", QemuErrorKind::OutOfSpace),
            ("Permission denied", QemuErrorKind::Denied),
            ("No such file or directory", QemuErrorKind::NotFound),
            ("not in qcow2 format", QemuErrorKind::WrongFormat),
        ];
        SIGNS.iter().find(|(sign, _)| words.contains(sign)).map_or(QemuErrorKind::Failed, |(_, kind)| *kind)
    }
}

impl fmt::Display for QemuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for QemuError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_held_by_someone_else_is_told_from_other_failures() {
        let words = "qemu-nbd: Failed to get \"write\" lock\nIs another process using the image [/a]?";
        assert_eq!(QemuErrorKind::of_words(words), QemuErrorKind::Busy);
        assert_eq!(QemuErrorKind::of_words("something new"), QemuErrorKind::Failed);
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = QemuError::new(QemuErrorKind::Missing("qemu-utils"), "qemu-img is not installed");
        assert!(error.advice().unwrap().contains("apt-get install qemu-utils"));
    }
}
