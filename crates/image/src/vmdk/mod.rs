//! VMDK, as VMware Workstation and ESXi write it.
//!
//! ```text
//! descriptor   the text that names the extents; a file of its own, or inside the only sparse extent
//! sparse       an extent with a grain directory and grain tables; its grains may be compressed
//! delta        the same as ESXi writes it for snapshots
//! ```
//!
//! Extents follow each other. What no grain of a sparse extent holds is the parent's, or zeros.
//! Source: VMware, "Virtual Disk Format 5.0".

mod delta;
mod descriptor;
mod sparse;

use std::io;
use std::sync::Arc;

use drover_types::ByteSpan;

use crate::fault::{about, damaged, unsupported};
use crate::map::{Layer, Place, Run, gather};
use crate::open::{Below, Context, Format, Location, Opened};
use crate::source::{ReadAt, read_piece};
use delta::Delta;
use descriptor::{DESCRIPTOR_BYTES_MAX, Descriptor, ExtentKind, ExtentLine};
use sparse::Sparse;

pub(crate) use descriptor::is_descriptor;

const SECTOR_BYTES: u64 = 512;
/// Far above VMware's 62 TiB, and sums of it do not overflow.
const SECTORS_MAX: u64 = 1 << 48;

/// Opens a VMDK, without its parent.
pub(crate) fn open(source: Arc<dyn ReadAt>, place: &Location, context: &mut Context) -> io::Result<Opened> {
    let mut head = [0; 4];
    if source.length() >= head.len() as u64 {
        source.read_at(0, &mut head)?;
    }
    if head == *sparse::MAGIC {
        return open_sparse(source, context);
    }
    if head == *delta::COWD_MAGIC {
        return Err(unsupported("a delta of an ESXi snapshot; open the descriptor that names it"));
    }
    let length = source.length();
    if length > DESCRIPTOR_BYTES_MAX {
        return Err(damaged("it is neither a sparse VMDK nor a descriptor; a flat extent is read as raw"));
    }
    let bytes = read_piece(&*source, "its descriptor", ByteSpan::new(0, length), DESCRIPTOR_BYTES_MAX)?;
    let descriptor = Descriptor::parse(&bytes)?;
    let mut extents = Extents::default();
    for line in &descriptor.extents {
        extents.add(line, place, context)?;
    }
    finish(source, descriptor, extents)
}

/// A file with the descriptor inside, if it has one: extents of split disks have none.
fn open_sparse(source: Arc<dyn ReadAt>, context: &mut Context) -> io::Result<Opened> {
    let sparse = Sparse::open(source.clone(), context)?;
    let mut descriptor = Descriptor::default();
    if !sparse.descriptor().is_empty() {
        let bytes = read_piece(&*source, "its descriptor", sparse.descriptor(), DESCRIPTOR_BYTES_MAX)?;
        descriptor = Descriptor::parse(&bytes)?;
        if descriptor.extents.len() > 1 {
            return Err(unsupported("it is one extent of several; open the descriptor that names them all"));
        }
    }
    let mut extents = Extents::default();
    extents.push(sparse.size(), Body::Sparse(Box::new(sparse)))?;
    finish(source, descriptor, extents)
}

fn finish(source: Arc<dyn ReadAt>, descriptor: Descriptor, extents: Extents) -> io::Result<Opened> {
    let below = match (descriptor.parent_id, descriptor.parent) {
        (None, _) => None,
        (Some(_), None) => return Err(damaged("it has a parent and does not name it")),
        (Some(id), Some(name)) => {
            Some(Below { what: "parent", name, format: Format::Vmdk, content_id: Some(id) })
        }
    };
    let content_id = descriptor.content_id;
    Ok(Opened { layer: Box::new(Vmdk { source, extents }), below, content_id })
}

struct Vmdk {
    /// The file that was opened.
    source: Arc<dyn ReadAt>,
    extents: Extents,
}

/// Extents one after the other.
#[derive(Default)]
struct Extents {
    list: Vec<Extent>,
    size: u64,
}

struct Extent {
    start: u64,
    end: u64,
    body: Body,
}

enum Body {
    Flat { source: Arc<dyn ReadAt>, offset: u64 },
    Sparse(Box<Sparse>),
    Delta(Box<Delta>),
    Zero,
}

impl Body {
    fn open(line: &ExtentLine, source: Arc<dyn ReadAt>, context: &mut Context) -> io::Result<Body> {
        Ok(match line.kind {
            ExtentKind::Zero => Body::Zero,
            ExtentKind::Flat => Body::Flat { source, offset: line.offset * SECTOR_BYTES },
            ExtentKind::Sparse => Body::Sparse(Box::new(Sparse::open(source, context)?)),
            ExtentKind::Cowd => Body::Delta(Box::new(Delta::open_cowd(source, context)?)),
            ExtentKind::SeSparse => Body::Delta(Box::new(Delta::open_se(source, context)?)),
        })
    }

    /// Bytes that are there.
    fn size(&self) -> u64 {
        match self {
            Body::Flat { source, offset } => source.length().saturating_sub(*offset),
            Body::Sparse(sparse) => sparse.size(),
            Body::Delta(delta) => delta.size(),
            Body::Zero => u64::MAX,
        }
    }
}

impl Extents {
    fn add(&mut self, line: &ExtentLine, place: &Location, context: &mut Context) -> io::Result<()> {
        if line.sectors > SECTORS_MAX || line.offset > SECTORS_MAX {
            return Err(damaged(format!("an extent of {} sectors", line.sectors)));
        }
        let bytes = line.sectors * SECTOR_BYTES;
        if line.kind == ExtentKind::Zero {
            return self.push(bytes, Body::Zero);
        }
        let source = context.files.open("its extent", &line.file, &place.folder)?;
        let body = Body::open(line, source.clone(), context).map_err(|error| about(source.name(), error))?;
        let found = body.size();
        if found < bytes {
            let name = source.name();
            return Err(damaged(format!("{name} has {found} bytes, the descriptor says {bytes}")));
        }
        self.push(bytes, body)
    }

    fn push(&mut self, bytes: u64, body: Body) -> io::Result<()> {
        let start = self.size;
        self.size = start.checked_add(bytes).ok_or_else(|| damaged("its extents are too large"))?;
        if bytes > 0 {
            self.list.push(Extent { start, end: self.size, body });
        }
        Ok(())
    }
}

impl Vmdk {
    fn piece_at(&self, at: u64) -> io::Result<Run<'_>> {
        let index = self.extents.list.partition_point(|extent| extent.end <= at);
        let extent = self.extents.list.get(index).ok_or_else(|| damaged("nothing is there"))?;
        let length_max = extent.end - at;
        let within = at - extent.start;
        let mut run = match &extent.body {
            Body::Zero => Run { length: length_max, place: Place::Zero },
            Body::Sparse(sparse) => sparse.piece_at(within)?,
            Body::Delta(delta) => delta.piece_at(within)?,
            Body::Flat { source, offset } => {
                let place = Place::Data { source: &**source, offset: offset + within };
                Run { length: length_max, place }
            }
        };
        run.length = run.length.min(length_max);
        Ok(run)
    }
}

impl Layer for Vmdk {
    fn size(&self) -> u64 {
        self.extents.size
    }

    fn run_at(&self, span: ByteSpan) -> io::Result<Run<'_>> {
        gather(span, |at| self.piece_at(at))
    }

    fn sources(&self) -> Vec<&dyn ReadAt> {
        let extents = self.extents.list.iter().filter_map(|extent| match &extent.body {
            Body::Flat { source, .. } => Some(&**source),
            Body::Sparse(sparse) => Some(sparse.source()),
            Body::Delta(delta) => Some(delta.source()),
            Body::Zero => None,
        });
        let others = extents.filter(|extent| !std::ptr::addr_eq(*extent, &*self.source));
        std::iter::once(&*self.source).chain(others).collect()
    }

    fn unit_bytes(&self) -> u64 {
        let units = self.extents.list.iter().map(|extent| match &extent.body {
            Body::Sparse(sparse) => sparse.unit_bytes(),
            _ => 0,
        });
        units.max().unwrap_or(0)
    }
}
