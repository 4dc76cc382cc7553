use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_types::{ByteSpan, Extent};

use crate::entry::Entry;
use crate::header::Header;
use crate::host::Host;
use crate::options::{Preallocation, Qcow2Options};
use crate::scan::{self, Found};
use crate::tables::{Place, State};

/// An open image, shared by its lanes.
///
/// Locks, in the order they are taken: `gate`, `flush`, `state`. Data moves with the gate held for reading;
/// whoever has to rearrange a cluster that others may be writing parts of takes it for writing.
pub struct Image {
    pub host: Box<dyn Host>,
    pub header: Header,
    pub options: Qcow2Options,
    pub writable: bool,
    /// Whether nothing was ever written to it before it was opened.
    pub is_empty: bool,
    /// Host clusters that nobody used and that were given back when it was opened.
    pub leaked: u64,
    pub state: Mutex<State>,
    pub gate: RwLock<()>,
    pub flush: Mutex<()>,
    failed: Mutex<Option<(DiskErrorKind, String)>>,
}

/// Extents told at a time.
const EXTENTS_MAX: usize = 1024;
/// Clusters looked at for one answer.
const CLUSTERS_MAX: u64 = 1 << 20;

impl Image {
    /// Opens an image to write it. What a crash left unused is given back.
    ///
    /// # Errors
    /// When it is damaged, or has features that drover does not write.
    pub fn open(host: Box<dyn Host>, options: Qcow2Options) -> Result<Image, DiskError> {
        let header = scan::read_header(&*host)?;
        // The last cluster may be there in part.
        let length = host.length()?.next_multiple_of(header.geometry.cluster_bytes());
        host.set_length(length)?;
        let found = scan::scan(&*host, &header, length, true)?;
        let image = Image::new(host, header, options, true, found);
        image.settle_after_scan()?;
        Ok(image)
    }

    /// Opens an image to read it; leaves it as it is.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn open_for_verify(host: Box<dyn Host>) -> Result<Image, DiskError> {
        let header = scan::read_header(&*host)?;
        let length = host.length()?;
        let found = scan::scan(&*host, &header, length, false)?;
        Ok(Image::new(host, header, Qcow2Options::default(), false, found))
    }

    fn new(
        host: Box<dyn Host>,
        header: Header,
        options: Qcow2Options,
        writable: bool,
        found: Found,
    ) -> Image {
        Image {
            host,
            header,
            options,
            writable,
            is_empty: found.is_empty,
            leaked: found.leaked,
            state: Mutex::new(found.state),
            gate: RwLock::new(()),
            flush: Mutex::new(()),
            failed: Mutex::new(None),
        }
    }

    fn settle_after_scan(&self) -> Result<(), DiskError> {
        if self.leaked > 0 {
            self.flush_tables()?;
        }
        self.trim();
        Ok(())
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the file behind its last cluster, if nothing is being written.
    pub fn trim(&self) {
        let Ok(_alone) = self.gate.try_write() else { return };
        let mut state = self.state();
        state.return_zone();
        let end = state.end_bytes();
        // Best effort: a file that ends in a hole is as good.
        if state.length != end && self.host.set_length(end).is_ok() {
            state.length = end;
        }
        let reserves = self.options.preallocation == Preallocation::Off && !self.options.compress;
        if !reserves {
            state.reserved = u64::MAX;
        } else if state.reserved != u64::MAX {
            state.reserved = state.length;
        }
    }

    /// What `span` holds, by the tables.
    pub fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        let mut state = self.state();
        let mut extents: Vec<Extent> = Vec::new();
        let clusters = state.clusters_of(span);
        let mut cluster = clusters.start;
        let end = clusters.end.min(clusters.start.saturating_add(CLUSTERS_MAX));
        while cluster < end {
            let (next, is_zero) = match state.skip_absent_table(cluster) {
                Some(next) if state.pending.is_empty() => (next, true),
                _ => {
                    let place = state.place(&*self.host, cluster)?;
                    (cluster + 1, matches!(place, Place::Settled(entry) if entry.reads_as_zeros()))
                }
            };
            let whole = ByteSpan::from_bounds(state.span_of(cluster).offset, state.span_of(next - 1).end());
            let part = whole.intersect(span).expect("a cluster of the span touches it");
            let extent = if is_zero { Extent::zero(part) } else { Extent::allocated(part) };
            let is_full = extents.len() == EXTENTS_MAX;
            match extents.last_mut() {
                Some(last) if last.kind == extent.kind => last.span.length += part.length,
                _ if is_full => break,
                _ => extents.push(extent),
            }
            cluster = next;
        }
        Ok(extents)
    }

    /// Fails if the image failed before in a way that left the file behind the tables in memory.
    pub fn check_failed(&self, op: DiskOp, span: ByteSpan) -> Result<(), DiskError> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((kind, text)) = &*failed else { return Ok(()) };
        let source = io::Error::other(format!("an earlier flush failed ({text}): open the image again"));
        Err(DiskError::with_kind(*kind, op, span, self.host.name(), source))
    }

    pub fn keep_failure(&self, error: &DiskError) {
        let failure = (error.kind, error.source.to_string());
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.writable {
            self.trim();
        }
    }
}

/// An error of the file, said of the guest's bytes.
pub fn at_guest(error: DiskError, op: DiskOp, span: ByteSpan) -> DiskError {
    DiskError { op, span, ..error }
}

/// Whether a cluster may be written in place in a part: its other bytes are in the file already.
pub fn takes_parts(place: Place) -> bool {
    match place {
        Place::Pending(_) | Place::Settled(Entry::Data(_) | Entry::Absent | Entry::Zero(None)) => true,
        Place::Settled(Entry::Zero(Some(_)) | Entry::Packed(_)) => false,
    }
}
