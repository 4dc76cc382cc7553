//! Hashes of blocks, taken at the agent: what is on its disk is proven without its bytes crossing the line.

use std::sync::Arc;

use drover_agent::opening::{How, Stat};
use drover_agent::{AgentDisk, AgentOptions, Places};
use drover_disk::{Disk, DiskErrorKind, MemDisk, conformance};
use drover_types::{BLOCK_BYTES, ByteSpan};

use crate::stage::{One, Stage, source, target, write_all};

const SIZE: u64 = 5 * (1 << 20) + 4711;

fn hashes_of(content: &[u8]) -> Vec<[u8; 32]> {
    content.chunks(BLOCK_BYTES as usize).map(|block| *blake3::hash(block).as_bytes()).collect()
}

#[test]
fn hashes_are_those_of_the_bytes_that_lie_there() {
    let folder = tempfile::tempdir().unwrap();
    let pools = [("vms".to_string(), folder.path().to_path_buf())].into();
    let stage = Stage::new(Places { pools, state: folder.path().join("state"), ..Places::default() });
    let site = stage.site();
    let mut content = conformance::pattern(SIZE);
    let disk = target(&site, "vms/a.raw", SIZE, How::New).unwrap();
    write_all(&disk, &content);
    disk.flush().unwrap();
    drop(disk);
    let whole = ByteSpan::new(0, SIZE);
    assert_eq!(source(&site, "vms/a.raw").hashes(&[whole]).unwrap().unwrap(), hashes_of(&content));
    // Somebody changes a byte there.
    content[BLOCK_BYTES as usize * 3 + 9] ^= 1;
    std::fs::write(folder.path().join("a.raw"), &content).unwrap();
    let disk = source(&site, "vms/a.raw");
    assert_eq!(disk.hashes(&[whole]).unwrap().unwrap(), hashes_of(&content));
    let spans =
        [ByteSpan::new(BLOCK_BYTES * 3, BLOCK_BYTES * 2), ByteSpan::from_bounds(BLOCK_BYTES * 80, SIZE)];
    let some = hashes_of(&content);
    assert_eq!(disk.hashes(&spans).unwrap().unwrap(), [&some[3..5], &some[80..]].concat());
    let beyond = disk.hashes(&[ByteSpan::new(SIZE, 1)]).unwrap_err();
    assert_eq!(beyond.kind, DiskErrorKind::Misuse, "{beyond}");
}

#[test]
fn an_agent_that_does_not_know_how_is_not_asked() {
    // The store of the stage announces no hashes, as agents before it did.
    let stage = Stage::new(One::new(MemDisk::new("one", conformance::pattern(SIZE))));
    let disk = AgentDisk::open_source(&stage.site(), "one", AgentOptions::default()).unwrap();
    assert_eq!(disk.hashes(&[]).unwrap(), None);
    assert_eq!(disk.hashes(&[ByteSpan::new(0, BLOCK_BYTES)]).unwrap(), None);
}

#[test]
fn hashes_are_asked_for_again_after_the_link_was_lost() {
    let stage = Stage::new(Hashing(One::new(MemDisk::new("one", conformance::pattern(SIZE)))));
    let disk = source(&stage.site(), "one");
    stage.cut();
    let whole = ByteSpan::new(0, SIZE);
    assert_eq!(disk.hashes(&[whole]).unwrap().unwrap(), hashes_of(&conformance::pattern(SIZE)));
}

/// A store whose agent tells hashes.
struct Hashing(One);

impl drover_agent::Store for Hashing {
    fn open(
        &self,
        disk: &str,
        access: &drover_agent::opening::Access,
    ) -> Result<drover_agent::Held, drover_agent::Refusal> {
        let mut held = self.0.open(disk, access)?;
        held.opened.takes.push("hash".to_string());
        Ok(held)
    }

    fn stat(&self, disk: &str) -> Result<Stat, drover_agent::Refusal> {
        self.0.stat(disk)
    }

    fn announce(&self) -> drover_agent::opening::Announced {
        self.0.announce()
    }
}

#[test]
fn a_disk_that_is_given_up_keeps_nobody_waiting() {
    let stage = Stage::new(Hashing(One::new(MemDisk::new("one", conformance::pattern(SIZE)))));
    let disk = Arc::new(source(&stage.site(), "one"));
    stage.kill();
    let asking = disk.clone();
    let asks = std::thread::spawn(move || asking.hashes(&[ByteSpan::new(0, SIZE)]).unwrap_err().kind);
    disk.give_up("the run is to stop");
    assert_eq!(asks.join().unwrap(), DiskErrorKind::Gone);
}
