use std::collections::VecDeque;
use std::sync::Arc;

use drover_disk::{
    Completion, Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, Request, Work, check_request,
    check_span,
};
use drover_types::{ByteSpan, Extent};

use crate::map::{Chain, Place, Run};
use crate::open::Format;
use crate::unpack::Unpacker;

/// An image of any format, with the images below it. Read only.
pub struct ImageDisk {
    image: Arc<Image>,
    format: Format,
    notes: Vec<String>,
    /// Its identity when it was opened.
    opened: String,
}

/// What the lanes share.
struct Image {
    name: String,
    chain: Chain,
}

/// Reading from the page cache or a fast disk gains up to four or so at a time, unpacking as many
/// as there are cores.
const LANES_MAX: usize = 16;

/// A lane works in `complete`, one request after the other: more in flight only hold buffers.
const DEPTH_MAX: usize = 1;

/// As for files.
const REQUEST_BYTES_MAX: u64 = 32 << 20;
const REQUEST_BYTES_PREFERRED: u64 = 1 << 20;

/// Extents per answer: an image of 4 KiB crumbs must not make one answer of millions.
const EXTENTS_MAX: usize = 1024;

/// Runs looked at for one answer, which may join to few extents.
const RUNS_MAX: usize = 8 * EXTENTS_MAX;

impl ImageDisk {
    pub(crate) fn new(name: String, chain: Chain, format: Format, notes: Vec<String>) -> ImageDisk {
        let opened = identity(format, &chain);
        ImageDisk { image: Arc::new(Image { name, chain }), format, notes, opened }
    }

    /// The format of the image that was opened.
    pub fn format(&self) -> Format {
        self.format
    }

    /// How many images it consists of: 1 without backing files or parents.
    pub fn chain_length(&self) -> usize {
        self.image.chain.len()
    }

    /// What the user should know, a sentence each: it was not closed in order, for example.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Disk for ImageDisk {
    fn name(&self) -> &str {
        &self.image.name
    }

    fn size(&self) -> u64 {
        self.image.chain.size()
    }

    /// Device, inode, size and modification time of every file it consists of.
    fn identity(&self) -> String {
        identity(self.format, &self.image.chain)
    }

    fn check_same(&self) -> Result<(), DiskError> {
        if self.opened == self.identity() {
            return Ok(());
        }
        let why = "it was changed while it was read: stop whatever writes to it, or read a snapshot";
        let (kind, source) = (DiskErrorKind::Failed, std::io::Error::other(why));
        Err(DiskError::with_kind(kind, DiskOp::Read, ByteSpan::new(0, 0), self.name(), source))
    }

    fn limits(&self) -> Limits {
        Limits {
            bytes_min: 1,
            // A request of whole units unpacks each of them once.
            bytes_preferred: REQUEST_BYTES_PREFERRED.max(self.image.chain.unit_bytes()),
            bytes_max: REQUEST_BYTES_MAX,
            lanes_max: LANES_MAX,
            depth_max: DEPTH_MAX,
        }
    }

    fn features(&self) -> Features {
        Features { writable: false, fast_zero: false, extents: true, zeroed: false }
    }

    /// From the images' tables, and for data from the holes of the files it lies in.
    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = span.offset;
        for _ in 0..RUNS_MAX {
            if at >= span.end() || extents.len() >= EXTENTS_MAX {
                break;
            }
            let rest = ByteSpan::from_bounds(at, span.end());
            let extent = match self.image.extent_at(rest) {
                Ok(extent) => extent,
                // What is known so far is an answer; the fault is told when someone asks from here.
                Err(_) if at > span.offset => break,
                Err(source) => return Err(DiskError::new(DiskOp::Extents, rest, self.name(), source)),
            };
            at = extent.span.end();
            match extents.last_mut() {
                Some(last) if last.kind == extent.kind => last.span.length += extent.span.length,
                _ => extents.push(extent),
            }
        }
        Ok(extents)
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        // pread does not use the files' positions, so lanes share the open files.
        Ok(Box::new(ImageLane {
            image: self.image.clone(),
            queue: VecDeque::new(),
            unpacker: Unpacker::default(),
        }))
    }

    /// Nothing is ever written.
    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
}

fn identity(format: Format, chain: &Chain) -> String {
    let files: Vec<String> = chain.sources().map(|source| source.identity()).collect();
    format!("{format} {} [{}]", chain.size(), files.join(" "))
}

impl Image {
    fn extent_at(&self, span: ByteSpan) -> std::io::Result<Extent> {
        let run = self.chain.run_at(span)?;
        let here = ByteSpan::new(span.offset, run.length);
        match run.place {
            Place::Zero | Place::Below => Ok(Extent::zero(here)),
            Place::Packed { .. } => Ok(Extent::allocated(here)),
            Place::Data { source, offset } => {
                let there = source.extent_at(ByteSpan::new(offset, run.length))?;
                let here = ByteSpan::new(span.offset, there.span.length.clamp(1, run.length));
                Ok(Extent { span: here, kind: there.kind })
            }
        }
    }

    fn read(&self, span: ByteSpan, bytes: &mut [u8], unpacker: &mut Unpacker) -> std::io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = ByteSpan::from_bounds(span.offset + done as u64, span.end());
            let Run { length, place } = self.chain.run_at(rest)?;
            assert!(length > 0 && length <= rest.length, "a run of {length} for {rest}");
            let piece = &mut bytes[done..done + length as usize];
            match place {
                Place::Zero | Place::Below => piece.fill(0),
                Place::Data { source, offset } => source.read_at(offset, piece)?,
                Place::Packed { unit, skip } => unpacker.read(&unit, skip, piece)?,
            }
            done += length as usize;
        }
        Ok(())
    }
}

struct ImageLane {
    image: Arc<Image>,
    queue: VecDeque<Request>,
    unpacker: Unpacker,
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
        check_request(span, work, image.chain.size(), false, &image.name)?;
        let Work::Read(buffer) = work else { unreachable!("writes were refused just above") };
        image
            .read(span, buffer, &mut self.unpacker)
            .map_err(|source| DiskError::new(DiskOp::Read, span, &image.name, source))
    }
}
