use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use drover_disk::{
    Completion, Disk, DiskError, DiskOp, Features, HostFile, Lane, Limits, Request, Work, check_request,
    check_span,
};
use drover_types::{ByteSpan, Extent};

use crate::create::create;
use crate::host::Host;
use crate::image::Image;
use crate::options::Qcow2Options;
use crate::read::Scratch;

/// A qcow2 image.
pub struct Qcow2Disk {
    image: Arc<Image>,
    is_new: bool,
}

/// As for files: more lanes do no harm.
const LANES_MAX: usize = 8;
/// A lane works in `complete`, one request after the other.
const DEPTH_MAX: usize = 1;
const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// As for files.
const BYTES_PREFERRED: u64 = 1 << 20;

impl Qcow2Disk {
    /// Makes an image that reads as zeros. It appears at `path` whole or not at all, and never in place of
    /// another file. Its size is `size`, rounded up to whole sectors of 512 bytes.
    ///
    /// # Errors
    /// When something is at `path`, or the options or the size are impossible.
    pub fn create(path: &Path, size: u64, options: Qcow2Options) -> Result<Qcow2Disk, DiskError> {
        Qcow2Disk::create_on(Box::new(HostFile::create(path)?), size, options)
    }

    /// As [`Qcow2Disk::create`], in an empty file of any kind.
    ///
    /// # Errors
    /// When the options or the size are impossible, or the file fails.
    pub fn create_on(host: Box<dyn Host>, size: u64, options: Qcow2Options) -> Result<Qcow2Disk, DiskError> {
        Ok(Qcow2Disk { image: Arc::new(create(host, size, options)?), is_new: true })
    }

    /// Opens an image to go on writing it, and gives back what a crash left unused. It keeps its cluster
    /// size and compression type, whatever the options say.
    ///
    /// # Errors
    /// When another process uses it, it is damaged, or it has what drover does not make: a backing file,
    /// snapshots, bitmaps, encryption.
    pub fn open(path: &Path, options: Qcow2Options) -> Result<Qcow2Disk, DiskError> {
        Qcow2Disk::open_on(Box::new(HostFile::open(path)?), options)
    }

    /// As [`Qcow2Disk::open`], in a file of any kind.
    ///
    /// # Errors
    /// The same.
    pub fn open_on(host: Box<dyn Host>, options: Qcow2Options) -> Result<Qcow2Disk, DiskError> {
        Ok(Qcow2Disk { image: Arc::new(Image::open(host, options)?), is_new: false })
    }

    /// Opens an image of the kind that drover makes to read it back, past the page cache where that works.
    ///
    /// # Errors
    /// As [`Qcow2Disk::open`].
    pub fn open_for_verify(path: &Path) -> Result<Qcow2Disk, DiskError> {
        Qcow2Disk::open_for_verify_on(Box::new(HostFile::open_for_verify(path)?))
    }

    /// As [`Qcow2Disk::open_for_verify`], in a file of any kind.
    ///
    /// # Errors
    /// The same.
    pub fn open_for_verify_on(host: Box<dyn Host>) -> Result<Qcow2Disk, DiskError> {
        Ok(Qcow2Disk { image: Arc::new(Image::open_for_verify(host)?), is_new: false })
    }

    /// Whether no data was in it when it was opened.
    pub fn was_empty(&self) -> bool {
        self.image.is_empty
    }

    /// Host clusters that were counted and not used when it was opened, as after a crash.
    pub fn leaked_clusters(&self) -> u64 {
        self.image.leaked
    }

    /// Bytes of a cluster.
    pub fn cluster_bytes(&self) -> u64 {
        self.image.header.geometry.cluster_bytes()
    }
}

impl Disk for Qcow2Disk {
    fn name(&self) -> &str {
        self.image.host.name()
    }

    fn size(&self) -> u64 {
        self.image.header.geometry.size
    }

    /// A source carries its modification time; a target, which drover itself changes, does not.
    fn identity(&self) -> String {
        let (host, size) = (&self.image.host, self.size());
        let modified = if self.image.writable { String::new() } else { format!(":{}", host.modified()) };
        format!("qcow2 {}:{size}{modified}", host.tag())
    }

    fn limits(&self) -> Limits {
        Limits {
            bytes_min: 1,
            bytes_preferred: BYTES_PREFERRED,
            bytes_max: REQUEST_BYTES_MAX,
            lanes_max: LANES_MAX,
            depth_max: DEPTH_MAX,
        }
    }

    fn features(&self) -> Features {
        Features {
            writable: self.image.writable,
            fast_zero: true,
            extents: true,
            zeroed: self.is_new || self.image.is_empty,
        }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        self.image.extents(span)
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        let image = self.image.clone();
        Ok(Box::new(ImageLane { image, scratch: Scratch::default(), queue: VecDeque::new() }))
    }

    fn flush(&self) -> Result<(), DiskError> {
        if self.image.writable { self.image.flush() } else { Ok(()) }
    }

    fn check_same(&self) -> Result<(), DiskError> {
        self.image.host.check_same()
    }
}

struct ImageLane {
    image: Arc<Image>,
    scratch: Scratch,
    queue: VecDeque<Request>,
}

impl Lane for ImageLane {
    fn submit(&mut self, request: Request) {
        self.queue.push_back(request);
    }

    fn complete(&mut self) -> Option<Completion> {
        let Request { id, span, mut work } = self.queue.pop_front()?;
        let result = self.run(span, &mut work);
        Some(Completion { id, span, work, result })
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }
}

impl ImageLane {
    fn run(&mut self, span: ByteSpan, work: &mut Work) -> Result<(), DiskError> {
        let image = &self.image;
        check_request(span, work, image.header.geometry.size, image.writable, image.host.name())?;
        match work {
            Work::Read(buffer) => image.read(span, buffer, &mut self.scratch),
            Work::Write(slice) => image.write(span, slice, &mut self.scratch),
            Work::Zero => image.zero(span, &mut self.scratch),
        }
    }
}
