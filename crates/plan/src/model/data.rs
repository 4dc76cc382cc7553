//! By which protocol disks are read, and how VDDK is used for it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::problem::At;

/// By which protocol disks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathChoice {
    /// Hot-add where there are proxies, else NFC, and HTTPS for a disk that NFC does not give.
    Auto,
    /// Proxy VMs to which the disks are attached.
    #[serde(rename = "hotadd")]
    HotAdd,
    /// The hosts' NFC servers.
    Nfc,
    /// VMware's disk library, through nbdkit.
    Vddk,
    /// Ranges of the datastore's files.
    Https,
}

/// A VM that reads disks of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its name, FOLDER/NAME or id.
    pub vm: String,
    /// The site whose agent runs in it.
    pub site: String,
    /// Names of the hosts whose VMs it reads; none for all.
    pub hosts: Vec<String>,
    /// Place in the file.
    pub at: At,
    /// The same as a path.
    pub path: String,
}

/// How NFC is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nfc {
    /// Whether the data goes through TLS.
    pub encrypted: bool,
    /// Compression on the way; absent: by measuring.
    pub compression: Option<Compression>,
    /// NFC memory of a host; absent: its default.
    pub memory: Option<u64>,
    /// How long a connection may be silent.
    pub timeout: Duration,
}

/// How VDDK is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Vddk {
    /// Folder that holds `lib64/libvixDiskLib.so.N`; absent: the variable `DROVER_VDDK_LIBDIR`.
    pub libdir: Option<PathBuf>,
    /// nbdkit's plugin as a file; absent: the installed one.
    pub plugin: Option<PathBuf>,
    /// Transport modes, the best first (`nbdssl:nbd`).
    pub transports: String,
    /// Compression on the way.
    pub compression: Compression,
    /// Whether disks are opened in the session that is there already.
    pub reuse_session: ReuseSession,
    /// Port of the hosts' NFC server.
    pub nfc_port: Option<u16>,
    /// Buffers of the asynchronous session; absent: chosen by the number of disks.
    pub aio: Option<Aio>,
    /// Place of that in the file.
    pub aio_at: At,
    /// Detail of the libraries' logs, 0 to 4.
    pub log_level: u8,
    /// NFC memory of a host that is asked directly; absent: its default.
    pub nfc_memory: Option<u64>,
    /// How long a read may show no sign of life.
    pub timeout: Duration,
}

/// Compression on the way from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// None.
    None,
    /// zlib: smallest, slow.
    Zlib,
    /// FastLZ.
    Fastlz,
    /// Leaves out zeros only.
    Skipz,
}

/// Whether a disk is opened in drover's own session of the API. nbdkit takes the session's cookie as an argument only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReuseSession {
    /// Each disk logs in by itself.
    Never,
    /// Only where other users of the machine cannot see arguments.
    Hidden,
    /// Also where every user of the machine can take the session over meanwhile.
    Visible,
}

/// Buffers of VDDK's asynchronous NFC session of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aio {
    /// Size of a buffer in units of 64 KiB.
    pub buf_size_in_64kb: u32,
    /// Number of buffers.
    pub buf_count: u32,
}

impl Aio {
    /// What VDDK does unasked.
    pub const OWN: Aio = Aio { buf_size_in_64kb: 1, buf_count: 4 };
    /// The best found for many disks of one host.
    pub const LARGE: Aio = Aio { buf_size_in_64kb: 16, buf_count: 4 };

    /// Bytes of all buffers.
    pub fn bytes(self) -> u64 {
        u64::from(self.buf_size_in_64kb) * u64::from(self.buf_count) * (64 << 10)
    }
}

impl fmt::Display for Aio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.buf_size_in_64kb, self.buf_count)
    }
}
