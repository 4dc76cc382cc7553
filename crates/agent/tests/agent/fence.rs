//! Two runs that want the same target.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use drover_agent::opening::How;
use drover_agent::{AgentDisk, AgentOptions, Places, Site, Target};
use drover_disk::{Buffer, Disk, DiskErrorKind, Request, Slice, Work};
use drover_types::ByteSpan;

use crate::stage::{Stage, target_of};

const SIZE: u64 = 1 << 20;

fn stage(folder: &Path) -> Stage {
    let pools = [("vms".to_string(), folder.to_path_buf())].into();
    Stage::new(Places { pools, state: folder.join("state"), ..Places::default() })
}

fn open(site: &Arc<Site>, how: How, epoch: u64) -> Result<AgentDisk, DiskErrorKind> {
    target_of(site, "vms/a.raw", SIZE, how, epoch).map_err(|error| error.kind)
}

fn write(disk: &AgentDisk, byte: u8) -> Result<(), DiskErrorKind> {
    let mut buffer = Buffer::zeroed(SIZE as usize);
    buffer.fill(byte);
    let mut lane = disk.open_lane().unwrap();
    lane.submit(Request { id: 1, span: ByteSpan::new(0, SIZE), work: Work::Write(Slice::from(buffer)) });
    lane.complete().unwrap().result.map_err(|error| error.kind)?;
    disk.flush().map_err(|error| error.kind)
}

#[test]
fn a_run_that_another_took_over_from_writes_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let stage = stage(folder.path());
    let cut_off = Arc::default();
    let old = open(&stage.site_unless(&cut_off), How::New, 5).unwrap();
    write(&old, 1).unwrap();
    // The old run's host is cut off and given up for dead; another goes on with its copy.
    cut_off.store(true, SeqCst);
    stage.cut();
    let new = open(&stage.site(), How::Resume, 6).unwrap();
    write(&new, 2).unwrap();
    drop(new);
    // The old one is back.
    cut_off.store(false, SeqCst);
    assert_eq!(write(&old, 1), Err(DiskErrorKind::Denied));
    assert_eq!(std::fs::read(folder.path().join("a.raw")).unwrap(), vec![2; SIZE as usize]);
}

#[test]
fn a_second_run_is_refused_while_the_first_one_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let stage = stage(folder.path());
    let first = open(&stage.site(), How::New, 5).unwrap();
    assert_eq!(open(&stage.site(), How::New, 6).err(), Some(DiskErrorKind::Failed), "told at once");
    assert_eq!(open(&stage.site(), How::Force, 6).err(), Some(DiskErrorKind::Transient), "tried for a while");
    write(&first, 1).unwrap();
    drop(first);
    assert!(open(&stage.site(), How::Resume, 6).is_ok(), "it is free now");
}

#[test]
fn epochs_outlive_agents() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(&stage(folder.path()).site(), How::New, 9).unwrap());
    let again = stage(folder.path());
    assert_eq!(open(&again.site(), How::Force, 8).err(), Some(DiskErrorKind::Denied));
    assert_eq!(std::fs::metadata(folder.path().join("a.raw")).unwrap().len(), SIZE, "nothing was emptied");
    assert!(open(&again.site(), How::Resume, 9).is_ok());
}

#[test]
fn an_epoch_must_be_told() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(open(&stage(folder.path()).site(), How::New, 0).err(), Some(DiskErrorKind::Denied));
    assert!(!folder.path().join("a.raw").exists());
    let target = Target { size: SIZE, how: How::New, epoch: 1, volume: None };
    let site = stage(folder.path()).site();
    assert!(AgentDisk::open_target(&site, "vms/a.raw", &target, AgentOptions::default()).is_ok());
}
