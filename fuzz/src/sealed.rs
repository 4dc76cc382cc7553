//! Checks made right. A fuzzer never finds a hash, and behind a wrong one hardly anything is reached; a
//! hostile file has right ones.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A journal: 112 bytes of header and records without their checks.
pub fn journal(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes[..bytes.len().min(112)].to_vec();
    sealed.resize(112, 0);
    sealed.extend(&blake3::hash(&sealed).as_bytes()[..16]);
    let key = *blake3::hash(&sealed).as_bytes();
    let mut rest = bytes.get(112..).unwrap_or_default();
    while rest.len() >= 16 {
        let blocks = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
        let digests = match rest[0] {
            1 => blocks.min(4096),
            3 | 5 | 6 => 1,
            _ => 0,
        };
        let (record, after) = rest.split_at(rest.len().min(16 + 32 * digests));
        sealed.extend(record);
        sealed.extend(&blake3::keyed_hash(&key, record).as_bytes()[..16]);
        rest = after;
    }
    sealed.extend(rest);
    sealed
}

/// A report: a header without its check, then all the rest without the hash at the end.
pub fn report(bytes: &[u8]) -> Vec<u8> {
    let length: [u8; 8] = bytes.get(32..40).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
    let head = (u64::from_le_bytes(length).min(1 << 20) as usize + 40).min(bytes.len());
    let mut sealed = bytes[..head].to_vec();
    sealed.extend(&blake3::hash(&sealed).as_bytes()[..16]);
    sealed.extend(&bytes[head..]);
    sealed.extend(blake3::hash(&sealed).as_bytes());
    sealed
}

/// Header and footer of a VHD.
pub fn vhd(file: &File) {
    let Ok(length) = file.metadata().map(|it| it.len()) else { return };
    let sum = |at: u64, bytes: usize, place: usize| {
        let mut part = vec![0; bytes];
        if file.read_exact_at(&mut part, at).is_ok() {
            part[place..place + 4].fill(0);
            let sum: u32 = part.iter().map(|byte| u32::from(*byte)).fold(0, u32::wrapping_add);
            let _ = file.write_all_at(&(!sum).to_be_bytes(), at + place as u64);
        }
    };
    if file_starts(file, 0, b"conectix") {
        sum(0, 512, 64);
    }
    sum(length.saturating_sub(512), 512, 64);
    if file_starts(file, 512, b"cxsparse") {
        sum(512, 1024, 36);
    }
}

/// Headers and region tables of a VHDX.
pub fn vhdx(file: &File) {
    for (at, bytes) in [(64, 4096), (128, 4096), (192, 64 << 10), (256, 64 << 10)] {
        let mut part = vec![0; bytes];
        if file.read_exact_at(&mut part, at << 10).is_ok() {
            part[4..8].fill(0);
            let _ = file.write_all_at(&crc32c(&part).to_le_bytes(), (at << 10) + 4);
        }
    }
}

fn file_starts(file: &File, at: u64, magic: &[u8; 8]) -> bool {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).is_ok() && bytes == *magic
}

fn crc32c(bytes: &[u8]) -> u32 {
    let table =
        |byte: u32| (0..8).fold(byte, |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 });
    let table: [u32; 256] = std::array::from_fn(|byte| table(byte as u32));
    !bytes.iter().fold(!0, |crc, byte| crc >> 8 ^ table[((crc ^ u32::from(*byte)) & 0xff) as usize])
}
