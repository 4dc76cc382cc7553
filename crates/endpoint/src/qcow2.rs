//! qcow2 images as `drover copy` takes them.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use drover_disk::{Disk, DiskErrorKind};
use drover_qcow2::{Compression, Preallocation, Qcow2Disk, Qcow2Options};
use drover_types::Bytes;

use crate::errors::{EndError, target_failure, usage};
use crate::image;
use crate::{End, Notes};

/// Reads `cluster_size=64k,preallocation=off,compression_type=zlib`, as `qemu-img -o` takes it.
pub(crate) fn options(texts: &[String], compress: bool) -> Result<Qcow2Options, EndError> {
    let mut options = Qcow2Options { compress, ..Qcow2Options::default() };
    for text in texts.iter().flat_map(|text| text.split(',')).filter(|text| !text.is_empty()) {
        set(&mut options, text).map_err(|why| {
            usage(format!("-o {text}: {why}")).advise(
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

/// Opens an image that is there already to change it in place: by drover's own writer, or by QEMU's if
/// it has what drover does not write.
pub(crate) fn open_in_place(path: &Path) -> Result<End, EndError> {
    let (disk, keep): (Arc<dyn Disk>, Vec<Box<dyn Any + Send + Sync>>) =
        match Qcow2Disk::open(path, Qcow2Options::default()) {
            Ok(disk) => (Arc::new(disk), Vec::new()),
            Err(error) if error.kind == DiskErrorKind::Unsupported => {
                let image = image::open_for_writing(path)?;
                (image.disk, vec![Box::new(image.server)])
            }
            Err(error) => return Err(target_failure(error)),
        };
    Ok(End { disk, keep, notes: Notes::default(), link: None })
}

#[cfg(test)]
mod tests {
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
            let refused = options(&[text.to_string()], false).unwrap_err();
            assert!(matches!(refused, EndError::Usage { .. }), "{text}");
        }
    }
}
