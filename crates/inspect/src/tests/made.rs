//! File systems that tests make by the usual tools, without mounting anything.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::read::{Part, ReadAt};

/// Bytes of a file system that mkfs.xfs makes: it makes none that is smaller than 300 MiB.
pub(crate) const XFS_BYTES: u64 = 320 << 20;

/// A disk in a file, some bytes of which are read as others.
pub(crate) struct Image {
    pub(crate) file: Arc<File>,
    pub(crate) damage: BTreeMap<u64, u8>,
}

impl ReadAt for Image {
    fn size(&self) -> u64 {
        self.file.metadata().unwrap().len()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)?;
        for (at, byte) in self.damage.range(offset..offset + bytes.len() as u64) {
            bytes[(at - offset) as usize] = *byte;
        }
        Ok(())
    }
}

/// A file as a part of a disk.
pub(crate) fn part(file: &Arc<File>, damage: BTreeMap<u64, u8>) -> Part {
    let image = Image { file: file.clone(), damage };
    let size = image.size();
    Part::new(Arc::new(image), 0, size)
}

/// Bytes of a file system that mkfs.btrfs makes, whose smallest is 109 MiB.
pub(crate) const BTRFS_BYTES: u64 = 160 << 20;

/// What mkfs.btrfs makes of a folder with these options; `None`, after a printed line, without it.
pub(crate) fn btrfs(tree: &Path, options: &str) -> Option<Arc<File>> {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    File::create(&image).unwrap().set_len(BTRFS_BYTES).unwrap();
    let mut mkfs = tool("mkfs.btrfs");
    mkfs.arg("-q").args(options.split_whitespace()).arg("--rootdir").arg(tree).arg(&image);
    ran(mkfs, options, &image)
}

/// What mkntfs makes with these options and ntfscp puts into its root; `None`, after a printed line, without them.
pub(crate) fn ntfs(options: &str, files: &[(&str, &[u8])]) -> Option<Arc<File>> {
    let folder = tempfile::tempdir().unwrap();
    let (image, from) = (folder.path().join("image"), folder.path().join("file"));
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let mut mkfs = tool("mkntfs");
    mkfs.args(["-F", "-Q", "-q"]).args(options.split_whitespace()).arg(&image);
    let mut made = ran(mkfs, options, &image)?;
    for (name, content) in files {
        std::fs::write(&from, content).unwrap();
        let mut copy = tool("ntfscp");
        copy.args(["-q", "-f"]).arg(&image).arg(&from).arg(name);
        made = ran(copy, options, &image)?;
    }
    Some(made)
}

/// A tool that is root's.
fn tool(name: &str) -> Command {
    let mut tool = Command::new(name);
    tool.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()));
    tool
}

/// The image that a tool made; `None`, after a printed line, without the tool. Its name goes with its folder.
fn ran(mut tool: Command, options: &str, image: &Path) -> Option<Arc<File>> {
    let Ok(made) = tool.output() else {
        println!("skipped: no {}", tool.get_program().display());
        return None;
    };
    assert!(made.status.success(), "{options}: {}", String::from_utf8_lossy(&made.stderr));
    Some(Arc::new(File::open(image).unwrap()))
}

/// What mkfs.xfs makes of a folder with these options; `None`, after a printed line, without it.
pub(crate) fn xfs(tree: &Path, options: &str) -> Option<Arc<File>> {
    let mut proto = "/x\n0 0\nd--755 0 0\n".to_string();
    add(tree, &mut proto);
    proto += "$\n";
    let folder = tempfile::tempdir().unwrap();
    let (prototype, image) = (folder.path().join("prototype"), folder.path().join("image"));
    std::fs::write(&prototype, proto).unwrap();
    File::create(&image).unwrap().set_len(XFS_BYTES).unwrap();
    let mut mkfs = tool("mkfs.xfs");
    mkfs.arg("-q").args(options.split_whitespace()).arg("-p").arg(&prototype).arg(&image);
    ran(mkfs, options, &image)
}

/// Source: mkfs.xfs(8), the format of prototypes.
fn add(folder: &Path, proto: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (name, path, kind) = (entry.file_name(), entry.path(), entry.file_type().unwrap());
        let (name, shown) = (name.display(), path.display());
        if kind.is_dir() {
            writeln!(proto, "{name} d--755 0 0").unwrap();
            add(&path, proto);
            writeln!(proto, "$").unwrap();
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            writeln!(proto, "{name} l--777 0 0 {}", target.display()).unwrap();
        } else {
            writeln!(proto, "{name} ---644 0 0 {shown}").unwrap();
        }
    }
}
