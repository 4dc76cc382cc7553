//! Each parser gets the kept corpus of its fuzz target, and some thousand inputs near it, in every run.
//! `make fuzz` looks farther. docs/dev/fuzzing.md
#![allow(clippy::unwrap_used)]

mod seeds;
#[path = "../../../../fuzz/src/lib.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use targets::TARGETS;

/// Inputs near the corpus for each target. `DROVER_FUZZ_ROUNDS` and `DROVER_FUZZ_SEED` change what is run.
const ROUNDS: u64 = 1500;

/// Of the whole corpus, so that it stays one.
const FILES_MAX: usize = 220;
const BYTES_MAX: usize = 1 << 20;

/// No input of a round is longer.
const INPUT_BYTES_MAX: usize = 256 << 10;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = drover_lab::workspace().join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

fn replay(target: &str) {
    let run = |bytes: &[u8]| targets::run(target, bytes);
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "{target} has no corpus");
    for (path, bytes) in &corpus {
        finding(&run, bytes, || path.display().to_string());
    }
    let (first, rounds) = (number("DROVER_FUZZ_SEED", 0), number("DROVER_FUZZ_ROUNDS", ROUNDS));
    for seed in first..first + rounds {
        let bytes = neighbour(&corpus, seed);
        finding(&run, &bytes, || format!("DROVER_FUZZ_SEED={seed} DROVER_FUZZ_ROUNDS=1"));
    }
}

fn finding(run: &dyn Fn(&[u8]), bytes: &[u8], whose: impl Fn() -> String) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(bytes))) {
        let path = std::env::temp_dir().join(format!("drover-finding-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        println!("found by {}; the input is in {}", whose(), path.display());
        std::panic::resume_unwind(panic);
    }
}

/// xorshift64*, from a seed that may be small.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit.max(1)
    }
}

/// A file of the corpus with some changes, as the seed says.
fn neighbour(corpus: &[(PathBuf, Vec<u8>)], seed: u64) -> Vec<u8> {
    let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes = corpus[random.below(corpus.len())].1.clone();
    let other = &corpus[random.below(corpus.len())].1;
    for _ in 0..1 + random.below(6) {
        change(&mut bytes, other, &mut random);
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let length = random.below(16.min(bytes.len() - at) + 1);
    match random.below(7) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = random.next() as u8,
        2 => drop(bytes.drain(at..at + length)),
        3 => bytes.truncate(at),
        4 => {
            let from = random.below(other.len() + 1);
            let piece = &other[from..(from + random.below(64)).min(other.len())];
            bytes.splice(at..at, piece.iter().copied());
        }
        _ => {
            let width = [1, 2, 4, 8][random.below(4)];
            let value = match random.below(5) {
                0 => 0,
                1 => u64::MAX,
                2 => 1 << random.below(64),
                3 => random.below(4096) as u64,
                _ => random.next(),
            };
            let value = if random.below(2) == 0 {
                value.to_le_bytes()
            } else {
                value.rotate_left(8 * (8 - width)).to_be_bytes()
            };
            for (place, byte) in bytes[at..].iter_mut().zip(&value[..width as usize]) {
                *place = *byte;
            }
        }
    }
}

#[test]
fn the_corpus_is_small_and_each_folder_has_its_target() {
    let folders = std::fs::read_dir(drover_lab::workspace().join("fuzz/corpus")).unwrap();
    let mut names: Vec<String> =
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, TARGETS.map(|(name, _)| name));
    let sizes: Vec<usize> =
        names.iter().flat_map(|name| corpus(name)).map(|(_, bytes)| bytes.len()).collect();
    assert!(sizes.len() <= FILES_MAX, "{} files", sizes.len());
    assert!(sizes.iter().sum::<usize>() <= BYTES_MAX, "{} bytes", sizes.iter().sum::<usize>());
}

#[test]
fn a_finding_is_a_failed_test() {
    let found = |bytes: &[u8]| assert!(bytes.is_empty(), "a finding");
    assert!(catch_unwind(|| finding(&found, b"x", || "this test".to_string())).is_err());
    finding(&found, b"", || "this test".to_string());
}

macro_rules! replayed {
    ($($target:ident)*) => {
        const REPLAYED: &[&str] = &[$(stringify!($target)),*];
        $(
        #[test]
        fn $target() {
            replay(stringify!($target));
        }
    )*};
}

#[test]
fn each_target_is_replayed() {
    let files = std::fs::read_dir(drover_lab::workspace().join("fuzz/targets")).unwrap();
    let mut names: Vec<String> =
        files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_string()).collect();
    names.sort();
    assert_eq!(names, REPLAYED);
    assert_eq!(names, TARGETS.map(|(name, _)| name));
}

replayed! {
    agent_client agent_messages
    http_head image_ova image_qcow2 image_vhd image_vhdx image_vmdk inspect_disk inspect_hive inspect_initramfs
    inspect_ntfs journal link_frames
    link_greeting link_peer nbd_client nbd_list nbd_replies nbd_server nbd_uri nfc_frames nfc_handshake plan relay_texts report sftp
    stream_pieces
}
