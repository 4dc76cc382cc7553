//! Which drivers an initramfs has.
//!
//! ```text
//! file     archives, each plain or compressed, with zeros between them (microcode comes first, in a plain one)
//! archive  entries until one named TRAILER!!!
//! entry    "070701" or "070702", 13 numbers of 8 hexadecimal digits (file size: the 7th, bytes of the name: the 12th),
//!          name, padded to 4, data, padded to 4
//! ```
//!
//! Source: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`.

use std::io::{self, BufRead, BufReader, Read};

use lzma_rust2::XzReader;

/// Drivers that a guest needs to find its root file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drivers {
    /// virtio-blk.
    pub virtio_blk: bool,
    /// virtio-scsi.
    pub virtio_scsi: bool,
    /// Devices of virtio on PCI.
    pub virtio_pci: bool,
    /// AHCI.
    pub ahci: bool,
}

impl Drivers {
    /// Looks through an initramfs.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, or is compressed in a way that is not known here.
    pub fn of_initramfs(file: impl Read) -> io::Result<Drivers> {
        let mut scan = Scan::default();
        // Whatever unpacks it: one without an end is none.
        scan.archives(&mut BufReader::with_capacity(CHUNK, file.take(BYTES_MAX)), true)?;
        Ok(scan.found)
    }

    /// Adds those that are named by a kernel's list of drivers of its own (`modules.builtin`).
    pub fn add_builtin(&mut self, list: &str) {
        list.lines().for_each(|line| self.add(line));
    }

    fn add(&mut self, path: &str) {
        let name = path.rsplit('/').next().unwrap_or(path);
        let Some((name, _)) = name.split_once(".ko") else { return };
        match name.replace('-', "_").as_str() {
            "virtio_blk" => self.virtio_blk = true,
            "virtio_scsi" => self.virtio_scsi = true,
            "virtio_pci" => self.virtio_pci = true,
            "ahci" => self.ahci = true,
            _ => {}
        }
    }
}

#[derive(Default)]
struct Scan {
    found: Drivers,
    entries: usize,
    bytes: u64,
}

impl Scan {
    fn archives(&mut self, file: &mut dyn BufRead, may_be_packed: bool) -> io::Result<()> {
        while skip_zeros(file, &mut self.bytes)? {
            let head = file.fill_buf()?.first_chunk::<4>().copied().unwrap_or_default();
            match head {
                [b'0', b'7', b'0', b'7'] => self.archive(file)?,
                _ if !may_be_packed => return Err(damaged("it holds something that is no archive")),
                [0x1f, 0x8b, ..] => return self.packed(&mut flate2::bufread::GzDecoder::new(file)),
                [0x28, 0xb5, 0x2f, 0xfd] => {
                    return self.packed(&mut zstd::stream::read::Decoder::with_buffer(file)?);
                }
                LZ4_LEGACY => return self.packed(&mut Lz4Legacy::new(file)?),
                [0xfd, b'7', b'z', b'X'] => {
                    return self.packed(&mut XzReader::new_mem_limit(file, false, XZ_KIB_MAX));
                }
                [b'B', b'Z', b'h', _] => return Err(unknown("bzip2")),
                [0x5d, 0, 0, _] => return Err(unknown("lzma")),
                [0x89, b'L', b'Z', b'O'] => return Err(unknown("lzo")),
                _ => return Err(damaged("it is no archive that is known")),
            }
        }
        Ok(())
    }

    fn packed(&mut self, file: &mut dyn Read) -> io::Result<()> {
        self.archives(&mut BufReader::with_capacity(CHUNK, file), false)
    }

    fn archive(&mut self, file: &mut dyn BufRead) -> io::Result<()> {
        loop {
            let mut head = [0; 110];
            file.read_exact(&mut head)?;
            if &head[..5] != b"07070" {
                return Err(damaged("an entry of it has no head"));
            }
            let (size, name_bytes) = (number(&head, 6)?, number(&head, 11)?);
            self.entries += 1;
            self.bytes += size;
            if self.entries > ENTRIES_MAX || self.bytes > BYTES_MAX || name_bytes > NAME_BYTES_MAX {
                return Err(damaged("it is larger than any initramfs"));
            }
            let mut name = vec![0; name_bytes as usize];
            file.read_exact(&mut name)?;
            skip(file, padding(110 + name_bytes))?;
            let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_string();
            if name == "TRAILER!!!" {
                return Ok(());
            }
            self.found.add(&name);
            if name.ends_with("/modules.builtin") && size <= LIST_BYTES_MAX {
                let mut list = vec![0; size as usize];
                file.read_exact(&mut list)?;
                self.found.add_builtin(&String::from_utf8_lossy(&list));
            } else {
                skip(file, size)?;
            }
            skip(file, padding(size))?;
        }
    }
}

/// Whether anything follows. Zeros count, too: a sparse file has them without end.
fn skip_zeros(file: &mut dyn BufRead, counted: &mut u64) -> io::Result<bool> {
    loop {
        if *counted > BYTES_MAX {
            return Err(damaged("it is larger than any initramfs"));
        }
        let bytes = file.fill_buf()?;
        if bytes.is_empty() {
            return Ok(false);
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let is_over = zeros < bytes.len();
        file.consume(zeros);
        *counted += zeros as u64;
        if is_over {
            return Ok(true);
        }
    }
}

fn skip(file: &mut dyn BufRead, bytes: u64) -> io::Result<()> {
    match io::copy(&mut file.take(bytes), &mut io::sink())? == bytes {
        true => Ok(()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn padding(bytes: u64) -> u64 {
    bytes.next_multiple_of(4) - bytes
}

fn number(head: &[u8; 110], index: usize) -> io::Result<u64> {
    let digits = std::str::from_utf8(&head[6 + 8 * index..14 + 8 * index]).unwrap_or_default();
    u64::from_str_radix(digits, 16).map_err(|_| damaged("an entry of it has a head without numbers"))
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn unknown(how: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("it is compressed with {how}, which drover does not unpack"),
    )
}

/// LZ4 as Linux packs with it (`lz4 -l`): the magic, then blocks of at most 8 MiB, each behind its packed size.
struct Lz4Legacy<R> {
    file: R,
    block: Vec<u8>,
    at: usize,
}

impl<R: BufRead> Lz4Legacy<R> {
    fn new(mut file: R) -> io::Result<Self> {
        skip(&mut file, 4)?;
        Ok(Lz4Legacy { file, block: Vec::new(), at: 0 })
    }

    /// Whether there is one more.
    fn next_block(&mut self) -> io::Result<bool> {
        let mut size = LZ4_LEGACY;
        // The magic comes again where such files were joined.
        for _ in 0..JOINED_MAX {
            if size != LZ4_LEGACY {
                break;
            }
            if self.file.fill_buf()?.is_empty() {
                return Ok(false);
            }
            self.file.read_exact(&mut size)?;
        }
        let size = u32::from_le_bytes(size) as usize;
        if size == 0 || size > LZ4_PACKED_MAX {
            return Err(damaged("a block of it has no sensible size"));
        }
        let mut packed = vec![0; size];
        self.file.read_exact(&mut packed)?;
        self.block.resize(LZ4_BLOCK, 0);
        let length = lz4_flex::block::decompress_into(&packed, &mut self.block)
            .map_err(|error| damaged(&error.to_string()))?;
        self.block.truncate(length);
        self.at = 0;
        Ok(true)
    }
}

impl<R: BufRead> Read for Lz4Legacy<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.at == self.block.len() {
            if !self.next_block()? {
                return Ok(0);
            }
        }
        let length = bytes.len().min(self.block.len() - self.at);
        bytes[..length].copy_from_slice(&self.block[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

const CHUNK: usize = 256 << 10;
const LZ4_LEGACY: [u8; 4] = 0x184c_2102u32.to_le_bytes();
const LZ4_BLOCK: usize = 8 << 20;
/// A block that does not compress grows by one byte in 255.
const LZ4_PACKED_MAX: usize = LZ4_BLOCK + LZ4_BLOCK / 255 + 16;
const JOINED_MAX: usize = 16;
/// dracut packs with a dictionary of 1 MiB, and `xz -9` with one of 64 MiB.
const XZ_KIB_MAX: u32 = 80 << 10;
const ENTRIES_MAX: usize = 200_000;
const BYTES_MAX: u64 = 1 << 30;
const NAME_BYTES_MAX: u64 = 4096;
const LIST_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use super::*;

    fn entry(name: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = format!("070701{}", "00000000".repeat(6)).into_bytes();
        bytes.extend(
            format!("{:08x}{}{:08x}00000000", data.len(), "00000000".repeat(4), name.len() + 1).bytes(),
        );
        bytes.extend(name.bytes().chain([0]));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes: Vec<u8> = files.iter().flat_map(|(name, data)| entry(name, data)).collect();
        bytes.extend(entry("TRAILER!!!", &[]));
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn main() -> Vec<u8> {
        archive(&[
            ("init", b"#!/bin/sh\n"),
            ("usr/lib/modules/6.1.0/kernel/drivers/block/virtio_blk.ko.xz", b"driver"),
            ("usr/lib/modules/6.1.0/modules.builtin", b"kernel/drivers/virtio/virtio_pci.ko\n"),
        ])
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    fn lz4(bytes: &[u8]) -> Vec<u8> {
        let mut packed = LZ4_LEGACY.to_vec();
        for block in bytes.chunks(1000) {
            let block = lz4_flex::block::compress(block);
            packed.extend((block.len() as u32).to_le_bytes());
            packed.extend(block);
        }
        packed
    }

    /// By xz with these options; nothing, after a printed line, without it.
    fn xz(bytes: &[u8], options: &[&str]) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive");
        std::fs::write(&path, bytes).unwrap();
        let Ok(packed) = Command::new("xz").args(options).arg("-c").arg(&path).output() else {
            println!("skipped: no xz");
            return None;
        };
        assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
        Some(packed.stdout)
    }

    #[test]
    fn drivers_are_found_behind_microcode_however_it_is_packed() {
        let wanted = Drivers { virtio_blk: true, virtio_pci: true, ..Drivers::default() };
        let early = archive(&[("kernel/x86/microcode/GenuineIntel.bin", &[7; 3000])]);
        let zstd = zstd::encode_all(&main()[..], 1).unwrap();
        // As dracut packs, and as by hand.
        let by_xz = [&["--check=crc32", "--lzma2=dict=1MiB"][..], &["-9"], &["-T2", "--block-size=1KiB"]];
        let by_xz = by_xz.into_iter().filter_map(|options| xz(&main(), options));
        for packed in [main(), gzip(&main()), zstd, lz4(&main())].into_iter().chain(by_xz) {
            assert_eq!(Drivers::of_initramfs(&packed[..]).unwrap(), wanted);
            let behind = [early.clone(), packed].concat();
            assert_eq!(Drivers::of_initramfs(&behind[..]).unwrap(), wanted);
        }
        assert_eq!(Drivers::of_initramfs(&early[..]).unwrap(), Drivers::default());
    }

    #[test]
    fn what_cannot_be_read_is_said_to_be_so() {
        let why = |bytes: &[u8]| Drivers::of_initramfs(bytes).unwrap_err().to_string();
        assert!(why(b"BZh9").contains("bzip2"));
        if let Some(packed) = xz(&main(), &[]) {
            // A file with a hole behind what is packed.
            let endless = packed.as_slice().chain(io::repeat(0));
            assert!(Drivers::of_initramfs(endless).is_ok_and(|found| found.virtio_blk));
        }
        if let Some(packed) = xz(&main(), &["--lzma2=dict=512MiB"]) {
            assert!(why(&packed).contains("memory"), "{}", why(&packed));
        }
        assert!(why(b"\x7fELF").contains("no archive"));
        assert!(why(&gzip(b"nothing of the kind")).contains("no archive"));
        assert_eq!(
            Drivers::of_initramfs(&main()[..300]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof,
            "a driver that lies behind what is missing must not count as absent"
        );
        let mut huge = main();
        huge[54..62].copy_from_slice(b"ffffffff");
        assert!(Drivers::of_initramfs(&huge[..]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..2000), kind in 0..5usize) {
            let head: &[u8] = [&b"070701"[..], &[0x1f, 0x8b, 8], &[0x28, 0xb5, 0x2f, 0xfd], &LZ4_LEGACY, b"\xfd7zXZ\0\0\x01\x69\x22\xde\x36"][kind];
            let _ = Drivers::of_initramfs(&[head, &bytes[..]].concat()[..]);
        }
    }
}
