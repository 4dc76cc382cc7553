//! Disks as looks into guests read them: in chunks, within bounds.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_disk::{Buffer, Disk, DiskErrorKind, FileDisk, Lane, read_span};
use drover_engine::chain;
use drover_inspect::ReadAt;
use drover_mover::StopSignal;
use drover_plan::ImageFormat;
use drover_qcow2::Qcow2Disk;
use drover_types::guest::Inside;
use drover_types::{ByteSpan, Bytes};

/// Bytes that are read at a time: a guest's small files lie near each other, and a far source answers slowly.
const CHUNK_BYTES: u64 = 512 << 10;

/// Chunks that are kept of a disk: tables of inodes and folders are read again and again.
const CHUNKS_MAX: usize = 64;

/// Bounds of a look into one guest.
const LOOK_BYTES_MAX: u64 = 2 << 30;
const LOOK_TIME_MAX: Duration = Duration::from_secs(300);

/// Times that a read is tried which may succeed later.
const TRIES_MAX: u32 = 3;

/// Looks into images on this machine, which nobody writes to.
pub fn inspect_images<'a>(
    images: impl Iterator<Item = &'a Path>,
    format: ImageFormat,
) -> Result<Inside, drover_disk::DiskError> {
    let open = |path: &Path| -> Result<Arc<dyn Disk>, drover_disk::DiskError> {
        Ok(match format {
            ImageFormat::Raw => Arc::new(FileDisk::open_for_verify(path)?),
            ImageFormat::Qcow2 => Arc::new(Qcow2Disk::open_for_verify(path)?),
        })
    };
    let disks = images.map(open).collect::<Result<Vec<_>, _>>()?;
    Ok(inspect_disks(&disks, &StopSignal::default()))
}

/// Looks into disks, until it is to stop.
pub fn inspect_disks(disks: &[Arc<dyn Disk>], stop: &StopSignal) -> Inside {
    let budget = Arc::new(Budget {
        bytes: AtomicU64::new(LOOK_BYTES_MAX),
        until: Instant::now() + LOOK_TIME_MAX,
        stop: stop.clone(),
    });
    let reader = |disk: &Arc<dyn Disk>| -> Arc<dyn ReadAt> {
        Arc::new(Reader { disk: disk.clone(), budget: budget.clone(), hand: Mutex::default() })
    };
    drover_inspect::inspect(&disks.iter().map(reader).collect::<Vec<_>>())
}

/// What a look into one guest may still read: its files say how much there is, and they are the guest's.
struct Budget {
    bytes: AtomicU64,
    until: Instant,
    stop: StopSignal,
}

impl Budget {
    /// Whether the look may go on, also by what it read before.
    fn check(&self) -> io::Result<()> {
        match () {
            () if self.stop.is_set() => Err(io::Error::other("the look was stopped")),
            () if Instant::now() >= self.until => {
                Err(io::Error::other(format!("a look ends after {} s", LOOK_TIME_MAX.as_secs())))
            }
            () => Ok(()),
        }
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let taken = self.bytes.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
        let beyond = |_| io::Error::other(format!("a look reads at most {}", Bytes(LOOK_BYTES_MAX)));
        taken.map(drop).map_err(beyond)
    }
}

/// A disk that is read in chunks, the last of which are kept.
struct Reader {
    disk: Arc<dyn Disk>,
    budget: Arc<Budget>,
    hand: Mutex<Hand>,
}

#[derive(Default)]
struct Hand {
    lane: Option<Box<dyn Lane>>,
    /// By their offsets, the one that was used last at the end.
    chunks: VecDeque<(u64, Buffer)>,
}

impl Reader {
    fn chunk_bytes(&self) -> u64 {
        let limits = self.disk.limits();
        let least = limits.bytes_min.max(1);
        (CHUNK_BYTES.min(limits.bytes_max) / least).max(1) * least
    }

    fn chunk<'a>(&self, hand: &'a mut Hand, at: u64) -> io::Result<&'a Buffer> {
        match hand.chunks.iter().position(|(offset, _)| *offset == at) {
            Some(index) => {
                let known = hand.chunks.remove(index);
                hand.chunks.extend(known);
            }
            None => {
                let end = (at + self.chunk_bytes()).min(self.disk.size());
                let buffer = self.fetch(hand, ByteSpan::from_bounds(at, end))?;
                if hand.chunks.len() == CHUNKS_MAX {
                    hand.chunks.pop_front();
                }
                hand.chunks.push_back((at, buffer));
            }
        }
        hand.chunks.back().map(|(_, buffer)| buffer).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn fetch(&self, hand: &mut Hand, span: ByteSpan) -> io::Result<Buffer> {
        self.budget.take(span.length)?;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_to_fetch(hand, span) {
                Err(error) if tries < TRIES_MAX && error.kind == DiskErrorKind::Transient => {
                    hand.lane = None;
                }
                Ok(buffer) => return Ok(buffer),
                Err(error) => return Err(io::Error::other(chain(&error))),
            }
        }
    }

    fn try_to_fetch(&self, hand: &mut Hand, span: ByteSpan) -> Result<Buffer, drover_disk::DiskError> {
        let lane = match &mut hand.lane {
            Some(lane) if !lane.is_broken() => lane,
            lane => lane.insert(self.disk.open_lane()?),
        };
        read_span(lane.as_mut(), span)
    }
}

impl ReadAt for Reader {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it lies past the end of the disk"));
        }
        self.budget.check()?;
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let step = self.chunk_bytes();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let chunk = self.chunk(&mut hand, at / step * step)?;
            let start = (at % step) as usize;
            let length = (chunk.len() - start).min(bytes.len() - done);
            bytes[done..done + length].copy_from_slice(&chunk[start..start + length]);
            done += length;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_ends_at_once_also_where_it_reads_what_it_has_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, [7; 4096]).unwrap();
        let reader = |until, stop: &StopSignal| {
            let budget = Budget { bytes: AtomicU64::new(LOOK_BYTES_MAX), until, stop: stop.clone() };
            let disk = Arc::new(FileDisk::open_for_verify(&path).unwrap());
            Reader { disk, budget: Arc::new(budget), hand: Mutex::default() }
        };
        let (now, stop, mut bytes) = (Instant::now(), StopSignal::default(), [0; 8]);
        let read = reader(now + LOOK_TIME_MAX, &stop);
        read.read_at(8, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 8]);
        stop.stop();
        assert_eq!(read.read_at(8, &mut bytes).unwrap_err().to_string(), "the look was stopped");
        let late = reader(now, &StopSignal::default());
        assert_eq!(late.read_at(8, &mut bytes).unwrap_err().to_string(), "a look ends after 300 s");
    }
}
