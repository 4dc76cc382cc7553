use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drover_disk::{Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, check_span};
use drover_types::{ByteSpan, Extent};

use crate::lane::{Remote, SftpLane};
use crate::uri::SshUri;
use crate::wire::Attributes;

/// How to reach the other host.
#[derive(Clone, Debug)]
pub struct SftpOptions {
    /// The ssh program; it is given the arguments of OpenSSH's.
    pub program: PathBuf,
    /// Longest silence of a server that owes an answer.
    pub timeout: Duration,
}

impl Default for SftpOptions {
    fn default() -> Self {
        SftpOptions { program: "ssh".into(), timeout: Duration::from_secs(90) }
    }
}

/// A regular file of another host, raw bytes. Read-only.
pub struct SftpDisk {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub name: String,
    pub uri: SshUri,
    pub options: SftpOptions,
    pub attributes: Attributes,
}

/// Each lane is a connection of its own, with its own key exchange; OpenSSH's server takes ten at a time.
const LANES_MAX: usize = 4;
/// 8 requests of 1 MiB on each lane fill 1 Gbit/s at 250 ms.
const DEPTH_MAX: usize = 8;
const REQUEST_BYTES_PREFERRED: u64 = 1 << 20;
const REQUEST_BYTES_MAX: u64 = 8 << 20;

const FILE_TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

impl SftpDisk {
    /// Connects and looks at the file.
    ///
    /// # Errors
    /// When ssh fails, the server refuses, or the path is no regular file.
    pub fn open(uri: &SshUri, options: SftpOptions) -> Result<SftpDisk, DiskError> {
        let name = uri.to_string();
        let opened = Remote::open(uri, &options).and_then(|(_, attributes)| {
            check_kind(&attributes)?;
            Ok(attributes)
        });
        let attributes = opened.map_err(|source| open_error(&name, source))?;
        Ok(SftpDisk { shared: Arc::new(Shared { name, uri: uri.clone(), options, attributes }) })
    }
}

fn check_kind(attributes: &Attributes) -> io::Result<()> {
    match attributes.mode {
        Some(mode) if mode & FILE_TYPE != REGULAR => {
            let text =
                "it is no regular file; SFTP does not tell the size of a device: serve it by NBD instead";
            Err(io::Error::new(io::ErrorKind::Unsupported, text))
        }
        _ => Ok(()),
    }
}

pub(crate) fn open_error(name: &str, source: io::Error) -> DiskError {
    DiskError::new(DiskOp::Open, ByteSpan::new(0, 0), name, source)
}

impl Shared {
    /// Opens the file once more, and makes sure that it is still the same.
    pub fn connect(&self) -> io::Result<Remote> {
        let (remote, attributes) = Remote::open(&self.uri, &self.options)?;
        if attributes != self.attributes {
            let text = "the file was changed on its host since it was opened";
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(remote)
    }
}

impl Disk for SftpDisk {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn size(&self) -> u64 {
        self.shared.attributes.size
    }

    /// Version 3 tells no inode: path, size and modification time (in seconds) must do.
    fn identity(&self) -> String {
        let Attributes { size, modified, .. } = self.shared.attributes;
        format!("sftp {} size={size} modified={modified:?}", self.shared.name)
    }

    fn limits(&self) -> Limits {
        Limits {
            bytes_min: 1,
            bytes_preferred: REQUEST_BYTES_PREFERRED,
            bytes_max: REQUEST_BYTES_MAX,
            lanes_max: LANES_MAX,
            depth_max: DEPTH_MAX,
        }
    }

    fn features(&self) -> Features {
        Features { writable: false, fast_zero: false, extents: false, zeroed: false }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        Ok(vec![Extent::allocated(span)])
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        let remote = self.shared.connect().map_err(|source| open_error(&self.shared.name, source))?;
        Ok(Box::new(SftpLane::new(self.shared.clone(), remote)))
    }

    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }

    /// Costs a connection; what was written within a second of the last write before, at the same size, does not show.
    fn check_same(&self) -> Result<(), DiskError> {
        let Shared { name, uri, options, attributes } = &*self.shared;
        let (_, now) = Remote::open(uri, options).map_err(|source| open_error(name, source))?;
        if now == *attributes {
            return Ok(());
        }
        let why =
            "it was changed on its host while it was read: stop whatever writes to it, or read a snapshot";
        let (kind, span) = (DiskErrorKind::Failed, ByteSpan::new(0, 0));
        Err(DiskError::with_kind(kind, DiskOp::Read, span, name.as_str(), io::Error::other(why)))
    }
}
