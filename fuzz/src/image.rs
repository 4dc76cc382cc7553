//! Disk images: opened, asked for their extents, and read here and there.

use std::cell::RefCell;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use drover_disk::{Buffer, Disk, Request, Work};
use drover_image::{Format, OpenOptions, Ova, open, probe};
use drover_types::ByteSpan;

use super::packed::pieces;
use super::sealed;

/// Bytes of one read.
const READ_BYTES: u64 = 96 << 10;

pub fn qcow2(bytes: &[u8]) {
    image(bytes, "disk.qcow2", Format::Qcow2, |_| {});
}

pub fn vmdk(bytes: &[u8]) {
    image(bytes, "disk.vmdk", Format::Vmdk, |_| {});
}

/// The sums of header and footer are made right, or else hardly anything would get past them.
pub fn vhd(bytes: &[u8]) {
    image(bytes, "disk.vhd", Format::Vhd, sealed::vhd);
}

/// As [`vhd`].
pub fn vhdx(bytes: &[u8]) {
    image(bytes, "disk.vhdx", Format::Vhdx, sealed::vhdx);
}

/// An archive, as it is: no pieces.
pub fn ova(bytes: &[u8]) {
    in_folder(|folder| {
        folder.set("disk.ova", &[(0, bytes)]);
        let Ok(ova) = Ova::open(folder.file("disk.ova")) else { return };
        let disks = ova.disks();
        assert_eq!(disks.len(), ova.vm().disks.len());
        for number in 0..disks.len().min(4) {
            if let Ok(disk) = ova.open_disk(number) {
                look(&disk);
            }
        }
        let mut left = 100;
        let _ = ova.check_manifest(|done, total| {
            assert!(done <= total);
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    });
}

fn image(bytes: &[u8], name: &str, format: Format, seal: fn(&File)) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    in_folder(|folder| {
        folder.set(name, &pieces(bytes));
        if choice & 1 == 1 {
            seal(&folder.open(name));
        }
        let _ = probe(folder.file(name));
        if let Ok(disk) = open(folder.file(name), format, &OpenOptions::default()) {
            look(&disk);
        }
    });
}

/// Reads give bytes or an error; extents start where they are asked for, and have no gaps.
fn look(disk: &dyn Disk) {
    let size = disk.size();
    let Ok(mut lane) = disk.open_lane() else { return };
    for offset in [0, size / 3, size.saturating_sub(1)].into_iter().filter(|offset| *offset < size) {
        let span = ByteSpan::new(offset, (size - offset).min(READ_BYTES));
        lane.submit(Request { id: 0, span, work: Work::Read(Buffer::zeroed(span.length as usize)) });
        let completion = lane.complete().expect("what was submitted completes");
        assert_eq!(completion.span, span);
        let Ok(extents) = disk.extents(ByteSpan::from_bounds(offset, size)) else { continue };
        assert!(!extents.is_empty());
        let mut at = offset;
        for extent in extents {
            assert!(extent.span.offset == at && !extent.span.is_empty() && extent.span.end() <= size);
            at = extent.span.end();
        }
    }
}

/// A folder of one file, kept by its thread: making one each time would cost more than all the rest.
struct Folder(tempfile::TempDir);

thread_local! {
    static FOLDER: RefCell<Option<Folder>> = const { RefCell::new(None) };
}

fn in_folder(act: impl FnOnce(&Folder)) {
    FOLDER.with(|folder| {
        let mut folder = folder.borrow_mut();
        act(folder.get_or_insert_with(|| Folder(tempfile::tempdir().expect("a folder can be made"))));
    });
}

impl Folder {
    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self, name: &str) -> File {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(self.file(name));
        file.expect("the file can be opened")
    }

    fn set(&self, name: &str, pieces: &[(u64, &[u8])]) {
        let file = self.open(name);
        let length = pieces.iter().map(|(offset, bytes)| offset + bytes.len() as u64).max().unwrap_or(0);
        file.set_len(0).and_then(|()| file.set_len(length)).expect("the file can be made longer");
        for (offset, bytes) in pieces {
            file.write_all_at(bytes, *offset).expect("the file can be written");
        }
    }
}
