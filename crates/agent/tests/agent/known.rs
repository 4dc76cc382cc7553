//! Blocks that the other side has already are not sent, and an index that is old never spoils one.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use drover_agent::opening::How;
use drover_agent::{AgentDisk, AgentOptions, Places, Site, Target, Way};
use drover_disk::{Disk, conformance};
use drover_types::BLOCK_BYTES;

use crate::stage::{Stage, write_all};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB + 100;

fn site(folder: &Path) -> Arc<Site> {
    let pools = [("vms".to_string(), folder.to_path_buf())].into();
    let state = folder.join("state");
    Stage::new(Places { pools, state, keep_leaves: true, ..Places::default() }).site()
}

/// Bytes of which no block is like another.
fn content() -> Vec<u8> {
    let mut content = conformance::pattern(SIZE);
    for (number, block) in content.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        block[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
    }
    content
}

fn copy(site: &Arc<Site>, name: &str, how: How, content: &[u8], offer: bool) -> Way {
    let options = AgentOptions { offer, ..AgentOptions::default() };
    let target = Target { size: content.len() as u64, how, epoch: 7, volume: None };
    let disk = AgentDisk::open_target(site, &format!("vms/{name}"), &target, options).unwrap();
    write_all(&disk, content);
    disk.flush().unwrap();
    disk.sent()
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap()
}

#[test]
fn a_sibling_and_a_second_try_cost_next_to_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let content = content();
    let first = copy(&site(folder.path()), "a.raw", How::New, &content, true);
    assert_eq!((first.had, first.sent), (0, SIZE), "the pool was empty");
    // A new agent: what is known outlives it. Writes of 200,000 bytes have whole blocks in their middle only.
    for (name, how) in [("b.raw", How::New), ("a.raw", How::Resume)] {
        let way = copy(&site(folder.path()), name, how, &content, true);
        assert_eq!(way.had + way.sent, SIZE, "{way:?}");
        assert!(way.had > SIZE / 3, "{name}: {way:?}");
        assert!(read(folder.path(), name) == content);
    }
    let asked_not = copy(&site(folder.path()), "c.raw", How::New, &content, false);
    assert_eq!((asked_not.had, asked_not.sent), (0, SIZE));
}

#[test]
fn leaves_that_are_not_true_any_more_spoil_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let content = content();
    copy(&site(folder.path()), "a.raw", How::New, &content, true);
    // Its guest runs, and writes here and there, which no leaves tell.
    let image = std::fs::File::options().write(true).open(folder.path().join("a.raw")).unwrap();
    for block in (0..SIZE / BLOCK_BYTES).step_by(2) {
        image.write_all_at(b"changed", block * BLOCK_BYTES + 1000).unwrap();
    }
    for name in ["b.raw", "c.raw"] {
        copy(&site(folder.path()), name, How::New, &content, true);
        assert!(read(folder.path(), name) == content, "{name}");
    }
    let again = copy(&site(folder.path()), "a.raw", How::Resume, &content, true);
    assert!(read(folder.path(), "a.raw") == content);
    assert!(again.sent > 0, "{again:?}");
    // And leaves of nonsense.
    std::fs::write(folder.path().join("a.raw.drover-leaves"), vec![7; 5000]).unwrap();
    std::fs::remove_file(folder.path().join("b.raw")).unwrap();
    copy(&site(folder.path()), "d.raw", How::New, &content, true);
    assert!(read(folder.path(), "d.raw") == content);
}

#[test]
fn an_agent_that_keeps_no_leaves_leaves_none() {
    let folder = tempfile::tempdir().unwrap();
    let pools = [("vms".to_string(), folder.path().to_path_buf())].into();
    let state = folder.path().join(".state");
    let site = Stage::new(Places { pools, state, ..Places::default() }).site();
    copy(&site, "a.raw", How::New, &content(), true);
    assert!(!folder.path().join("a.raw.drover-leaves").exists());
}
