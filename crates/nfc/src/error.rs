use std::fmt;
use std::io;

use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_types::ByteSpan;

/// What failed on an NFC connection, and why.
#[derive(Debug)]
pub struct NfcError {
    /// To decide on.
    pub kind: NfcErrorKind,
    /// What was being done.
    pub op: String,
    /// Why it failed.
    pub why: String,
}

/// What may be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfcErrorKind {
    /// The ticket is used, expired or unknown: another one may do.
    Ticket,
    /// The certificate is not the one that the ticket names.
    Certificate,
    /// The ticket is not for this file, or not to write it.
    Permission,
    /// The host's NFC memory is used up: smaller buffers, fewer disks, later.
    Memory,
    /// Somebody else holds the disk: later.
    Locked,
    /// The disk of a running VM, without a snapshot.
    Live,
    /// There is no such file.
    Missing,
    /// The datastore is full.
    Space,
    /// The classic messages are refused; often the tag is not known there.
    Tag,
    /// The host said no.
    Refused,
    /// The host cannot do this.
    Unsupported,
    /// The bytes make no sense.
    Protocol,
    /// The connection failed: another one may do.
    Connection,
    /// There was no connection, or it failed before the ticket was shown: a firewall does that, no service that restarts.
    Unreachable,
}

/// Codes of hosts.
mod code {
    pub const MEMORY: u64 = 5;
    pub const PERMISSION: u64 = 11;
    pub const LOCKED: u64 = 16392;
}

impl NfcError {
    pub(crate) fn new(kind: NfcErrorKind, op: impl Into<String>, why: impl Into<String>) -> NfcError {
        NfcError { kind, op: op.into(), why: why.into() }
    }

    /// An error of the caller's: a ticket that cannot be had.
    pub fn other(kind: NfcErrorKind, op: impl Into<String>, why: impl fmt::Display) -> NfcError {
        NfcError::new(kind, op, why.to_string())
    }

    pub(crate) fn io(op: impl Into<String>, error: &io::Error) -> NfcError {
        let kind = match error.kind() {
            io::ErrorKind::InvalidData => NfcErrorKind::Protocol,
            _ => NfcErrorKind::Connection,
        };
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the host closed the connection".to_string(),
            _ => error.to_string(),
        };
        NfcError::new(kind, op, why)
    }

    /// An error that the host tells. Codes decide; of two causes that share a code the text tells which.
    pub(crate) fn of_host(op: impl Into<String>, code: u64, text: &str) -> NfcError {
        // Whether the code is one number of 64 bits or two of 32 nobody knows: the low one holds it either way.
        let low = code & 0xffff_ffff;
        let says = |words: &str| text.to_ascii_lowercase().contains(words);
        let kind = match low {
            code::MEMORY => NfcErrorKind::Memory,
            code::PERMISSION => NfcErrorKind::Permission,
            code::LOCKED => NfcErrorKind::Locked,
            _ if says("failed to allocate the requested") => NfcErrorKind::Memory,
            _ if says("failed to lock the file") || says("16392") => NfcErrorKind::Locked,
            _ if says("multiwriter mode") => NfcErrorKind::Live,
            _ if says("permission check failed") => NfcErrorKind::Permission,
            _ if says("no more space") || says("no space left") => NfcErrorKind::Space,
            _ if says("not found") || says("no such file") || says("could not find the file") => {
                NfcErrorKind::Missing
            }
            _ => NfcErrorKind::Refused,
        };
        let said = if text.is_empty() { String::new() } else { format!(": {text}") };
        NfcError::new(kind, op, format!("NFC error {low}{said}"))
    }

    /// The same with another kind, if the host's code says nothing.
    pub(crate) fn or_kind(self, kind: NfcErrorKind) -> NfcError {
        match self.kind {
            NfcErrorKind::Refused => NfcError { kind, ..self },
            _ => self,
        }
    }

    /// The same, of a host that offers no encryption of data. What may pass by itself has another cause.
    pub(crate) fn without_nfcssl(self) -> NfcError {
        match self.disk_kind() {
            DiskErrorKind::Transient => self,
            _ => {
                let why = format!(
                    "{}; its greeting offers no NFCSSL, so it may give disks in clear text alone (`nfc: {{encrypted: false}}`)",
                    self.why
                );
                NfcError { why, ..self }
            }
        }
    }

    /// The same where no ticket was shown yet.
    pub(crate) fn before_ticket(self) -> NfcError {
        match self.kind {
            NfcErrorKind::Connection => NfcError { kind: NfcErrorKind::Unreachable, ..self },
            _ => self,
        }
    }

    /// What an operator may try.
    pub fn advice(&self) -> Option<&'static str> {
        Some(match self.kind {
            NfcErrorKind::Memory => {
                "the NFC memory of the host is used up: lower limits.disks, or wait until backups of its VMs have ended"
            }
            NfcErrorKind::Locked => {
                "another program has the disk open (a backup, a datastore download): try later"
            }
            NfcErrorKind::Live => "the disk belongs to a running VM: it is read from a snapshot only",
            NfcErrorKind::Space => "make room on the datastore",
            NfcErrorKind::Certificate => {
                "port 902 shows another certificate than the vCenter knows: reconnect the host in the vCenter, or look \
                 who answers at that address"
            }
            NfcErrorKind::Permission => {
                "the account needs VirtualMachine.Provisioning.GetVmFiles or DiskRandomRead on the VM"
            }
            NfcErrorKind::Connection | NfcErrorKind::Unreachable => {
                "TCP port 902 of the host must be reachable from here"
            }
            NfcErrorKind::Unsupported
            | NfcErrorKind::Refused
            | NfcErrorKind::Tag
            | NfcErrorKind::Protocol => {
                "read the disk by data.path: https instead, and send us the output of `drover nfc check --trace`"
            }
            NfcErrorKind::Ticket | NfcErrorKind::Missing => return None,
        })
    }

    /// What it means for a disk.
    pub fn disk_kind(&self) -> DiskErrorKind {
        match self.kind {
            NfcErrorKind::Ticket
            | NfcErrorKind::Memory
            | NfcErrorKind::Locked
            | NfcErrorKind::Connection
            | NfcErrorKind::Unreachable
            | NfcErrorKind::Tag => DiskErrorKind::Transient,
            NfcErrorKind::Certificate | NfcErrorKind::Permission => DiskErrorKind::Denied,
            NfcErrorKind::Live | NfcErrorKind::Refused => DiskErrorKind::Failed,
            NfcErrorKind::Missing => DiskErrorKind::Gone,
            NfcErrorKind::Space => DiskErrorKind::OutOfSpace,
            NfcErrorKind::Unsupported => DiskErrorKind::Unsupported,
            NfcErrorKind::Protocol => DiskErrorKind::Corrupt,
        }
    }

    pub(crate) fn into_disk(self, op: DiskOp, span: ByteSpan, disk: &str) -> DiskError {
        let kind = self.disk_kind();
        DiskError::with_kind(kind, op, span, disk, io::Error::other(self))
    }
}

impl fmt::Display for NfcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.op, self.why)
    }
}

impl std::error::Error for NfcError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_catalogue_have_their_kinds() {
        let kind = |code, text: &str| NfcError::of_host("open", code, text).kind;
        assert_eq!(kind(11, "permission check failed for file '[a] b'"), NfcErrorKind::Permission);
        assert_eq!(kind(5, "Failed to allocate the requested 24117272 bytes"), NfcErrorKind::Memory);
        assert_eq!(kind(5 | 7 << 32, ""), NfcErrorKind::Memory);
        assert_eq!(kind(16392, ""), NfcErrorKind::Locked);
        assert_eq!(kind(1, "DiskLib error 16392: Failed to lock the file"), NfcErrorKind::Locked);
        assert_eq!(kind(1, "Thin disks cannot be opened in multiwriter mode"), NfcErrorKind::Live);
        assert_eq!(kind(28, "There is no more space for the file '[a] b'"), NfcErrorKind::Space);
        assert_eq!(kind(99, "what"), NfcErrorKind::Refused);
    }
}
