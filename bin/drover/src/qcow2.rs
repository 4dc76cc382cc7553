//! qcow2 images as targets.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use drover_disk::{Disk, DiskError, DiskErrorKind, LockedFile};
use drover_engine::chain;
use drover_mover::{file_tag, journal_path};
use drover_qcow2::{Compression, Preallocation, Qcow2Disk, Qcow2Options};
use drover_types::Bytes;

use crate::endpoint::{End, Notes, TargetEnd};
use crate::exit::{Exit, Failure, disk_exit};
use crate::image;

/// Reads `cluster_size=64k,preallocation=off,compression_type=zlib`, as `qemu-img -o` takes it.
pub fn options(texts: &[String], compress: bool) -> Result<Qcow2Options, Failure> {
    let mut options = Qcow2Options { compress, ..Qcow2Options::default() };
    for text in texts.iter().flat_map(|text| text.split(',')).filter(|text| !text.is_empty()) {
        set(&mut options, text).map_err(|why| {
            Failure::new(Exit::Usage, format!("-o {text}: {why}")).advise(
                "-o cluster_size=4KiB..2MiB, preallocation=off|metadata|falloc|full, compression_type=zlib|zstd",
            )
        })?;
    }
    Ok(options)
}

fn set(options: &mut Qcow2Options, text: &str) -> Result<(), String> {
    match text.split_once('=').ok_or("it is no name=value")? {
        ("cluster_size", value) => {
            options.cluster_bytes = value.parse::<Bytes>().map_err(|error| error.to_string())?.0;
        }
        ("preallocation", value) => {
            options.preallocation = match value {
                "off" => Preallocation::Off,
                "metadata" => Preallocation::Metadata,
                "falloc" => Preallocation::Falloc,
                "full" => Preallocation::Full,
                _ => return Err("there is no such preallocation".into()),
            };
        }
        ("compression_type", value) => {
            options.compression = match value {
                "zlib" => Compression::Zlib,
                "zstd" => Compression::Zstd,
                _ => return Err("there is no such compression".into()),
            };
        }
        _ => return Err("there is no such option".into()),
    }
    Ok(())
}

/// What a plan says of its images.
pub fn planned(told: &drover_plan::Qcow2) -> Qcow2Options {
    use drover_plan::{Preallocation as P, Qcow2Compression as C};
    Qcow2Options {
        cluster_bytes: told.cluster_bytes,
        preallocation: match told.preallocation {
            P::Off => Preallocation::Off,
            P::Metadata => Preallocation::Metadata,
            P::Falloc => Preallocation::Falloc,
            P::Full => Preallocation::Full,
        },
        compression: match told.compression {
            C::Zlib => Compression::Zlib,
            C::Zstd => Compression::Zstd,
        },
        compress: told.compressed,
    }
}

/// Opens an image that is there already to change it in place: by drover's own writer, or by QEMU's if
/// it has what drover does not write.
pub fn open_in_place(path: &Path) -> Result<End, Failure> {
    let (disk, keep): (Arc<dyn Disk>, Vec<Box<dyn Any + Send + Sync>>) =
        match Qcow2Disk::open(path, Qcow2Options::default()) {
            Ok(disk) => (Arc::new(disk), Vec::new()),
            Err(error) if error.kind == DiskErrorKind::Unsupported => {
                let image = image::open_for_writing(path)?;
                (image.disk, vec![Box::new(image.server)])
            }
            Err(error) => return Err(failure(error)),
        };
    Ok(End { disk, keep, notes: Notes::default(), link: None })
}

/// The image in a locked file, as it is; nothing if it is none of the kind that drover makes.
pub fn image_in(file: &LockedFile) -> Result<Option<Qcow2Disk>, Failure> {
    let host = file.host_reader().map_err(failure)?;
    Ok(Qcow2Disk::open_for_verify_on(Box::new(host)).ok())
}

/// Makes an image where no file is.
pub fn create(path: &Path, size: u64, options: Qcow2Options) -> Result<TargetEnd, Failure> {
    end(path, Qcow2Disk::create(path, size, options).map_err(failure)?, true)
}

/// Goes on with an image of ours, or, if it is as good as new, with one that an earlier try made and did not write to.
pub fn go_on(
    file: LockedFile,
    path: &Path,
    size: u64,
    is_new: bool,
    options: Qcow2Options,
) -> Result<TargetEnd, Failure> {
    let host = file.into_host_file().map_err(failure)?;
    let disk = Qcow2Disk::open_on(Box::new(host), options).map_err(failure)?;
    if fits(&disk, size) {
        return end(path, disk, is_new);
    }
    let what =
        format!("{} holds a disk of {} bytes, and {size} are to be copied", path.display(), disk.size());
    Err(Failure::new(Exit::Target, what).advise("remove it and its journal, or choose another name"))
}

/// Makes an image in place of a locked file. That stays locked until the image is there: whoever waits for it finds another
/// in its place then.
pub fn replace(
    file: LockedFile,
    path: &Path,
    size: u64,
    options: Qcow2Options,
) -> Result<TargetEnd, Failure> {
    let failed = |error: std::io::Error| Failure::new(Exit::Target, format!("{}: {error}", path.display()));
    options.check_for(size).map_err(failed)?;
    // Its room, too, before the new one takes any.
    file.file().set_len(0).map_err(failed)?;
    std::fs::remove_file(path).map_err(failed)?;
    let made = create(path, size, options);
    drop(file);
    made
}

/// Whether an image is of this size; those are rounded up to sectors.
pub fn fits(disk: &Qcow2Disk, size: u64) -> bool {
    size.checked_next_multiple_of(512) == Some(disk.size())
}

fn end(path: &Path, disk: Qcow2Disk, is_new: bool) -> Result<TargetEnd, Failure> {
    let tag =
        file_tag(path).map_err(|error| Failure::new(Exit::Target, format!("{}: {error}", path.display())))?;
    let mut notes = Vec::new();
    if disk.leaked_clusters() > 0 {
        let bytes = Bytes(disk.leaked_clusters() * disk.cluster_bytes());
        notes.push(format!("{}: gave back {bytes} that an interrupted run had set aside", path.display()));
    }
    let end = End { disk: Arc::new(disk), keep: Vec::new(), notes: notes.into(), link: None };
    Ok(TargetEnd { end, tag, is_new, zeroed: is_new, journal: Some(journal_path(path)) })
}

fn failure(error: DiskError) -> Failure {
    let name = error.disk.clone();
    Failure::new(disk_exit(&error, &name), chain(&error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn options_are_named_as_qemu_img_names_them() {
        let texts = ["cluster_size=2M,preallocation=falloc".to_string(), "compression_type=zstd".to_string()];
        let found = options(&texts, false).unwrap();
        assert_eq!((found.cluster_bytes, found.preallocation), (2 << 20, Preallocation::Falloc));
        assert_eq!((found.compression, found.compress), (Compression::Zstd, false));
        assert_eq!(options(&["cluster_size=65536".into()], true).unwrap().cluster_bytes, 65536);
        assert_eq!(options(&["cluster_size=128KiB".into()], true).unwrap().cluster_bytes, 128 << 10);
        assert_eq!(options(&[], false).unwrap(), Qcow2Options::default());
        for text in [
            "cluster_size",
            "cluster_size=big",
            "preallocation=some",
            "lazy_refcounts=on",
            "compression_type=xz",
        ] {
            assert_eq!(options(&[text.to_string()], false).unwrap_err().exit, Exit::Usage, "{text}");
        }
    }
}
