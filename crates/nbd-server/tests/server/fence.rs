//! Writers that took over, and those that wake up later.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drover_disk::memory::{Effect, Nth};
use drover_disk::{DiskOp, MemDisk};
use drover_nbd::wire::{self, answer, option};
use drover_nbd_server::{Export, Listen, Server, ServerOptions};

use crate::Stage;
use crate::raw::{Ask, Raw};

const EPERM: u32 = 1;
const SIZE: usize = 1 << 20;

fn stage(disk: &MemDisk, file: Option<&Path>) -> Stage {
    Stage::new(Export::new("", Arc::new(disk.clone())).fenced(file).unwrap())
}

fn writer(stage: &Stage, epoch: u64) -> Raw {
    Raw::go(stage, &[&format!("drover:fence={epoch}"), "base:allocation"])
}

/// Tries to enter with an epoch; the refusal's words.
fn refused(stage: &Stage, epoch: u64) -> String {
    let mut raw = Raw::greet(stage);
    raw.agree(option::STRUCTURED_REPLY);
    raw.set_contexts(&[&format!("drover:fence={epoch}")]);
    let answers = raw.option(option::GO, &wire::encode_go("", &[]));
    let (kind, words) = answers.last().unwrap();
    assert_eq!(*kind, answer::POLICY);
    String::from_utf8(words.clone()).unwrap()
}

#[test]
fn a_lower_epoch_writes_nothing_any_more_and_still_reads() {
    let disk = MemDisk::new("a", vec![0; SIZE]);
    let stage = stage(&disk, None);
    let mut old = writer(&stage, 3);
    assert_eq!(old.write(0, &[3; 512]).error, 0);
    let mut new = writer(&stage, 5);
    let changes = [(1, &[9; 512][..]), (4, &[]), (6, &[]), (3, &[])]
        .map(|(command, data): (u16, &[u8])| (command, data));
    for (command, data) in changes {
        let length = if command == 3 { 0 } else { 512 };
        let reply = old.ask(Ask { command, length, ..Ask::default() }, data);
        assert_eq!(reply.error, EPERM, "command {command}");
        assert_eq!(reply.message, "epoch 3 is over: epoch 5 has taken this disk");
    }
    assert_eq!(old.read(0, 512).data[0].1, [3; 512]);
    assert_eq!(new.write(512, &[5; 512]).error, 0);
    assert!(refused(&stage, 4).contains("epoch 4 is over"), "a lower epoch does not even get in");
    let mut again = writer(&stage, 5);
    assert_eq!(again.write(1024, &[6; 512]).error, 0, "a run has several connections");
    assert_eq!(disk.content()[..1536], [[3; 512], [5; 512], [6; 512]].concat());
}

#[test]
fn clients_without_an_epoch_write_until_one_with_an_epoch_came() {
    let disk = MemDisk::new("a", vec![0; SIZE]);
    let stage = stage(&disk, None);
    let mut foreign = Raw::go(&stage, &["base:allocation"]);
    assert_eq!(foreign.write(0, &[1; 512]).error, 0);
    let _run = writer(&stage, 1);
    let reply = foreign.write(0, &[2; 512]);
    assert_eq!(reply.error, EPERM);
    assert!(reply.message.contains("--no-fence"), "{}", reply.message);
    assert_eq!(Raw::go(&stage, &[]).read(0, 512).data[0].1, [1; 512]);
}

#[test]
fn only_sound_epochs_of_writable_exports_are_granted() {
    let disk = MemDisk::new("a", vec![0; SIZE]);
    let fenced = stage(&disk, None);
    let (plain, readable) = (Stage::writable(disk.clone()), Stage::readable(disk.clone()));
    for (stage, context, granted) in [
        (&fenced, "drover:fence=7", true),
        (&fenced, "drover:fence=18446744073709551615", true),
        (&fenced, "drover:fence=18446744073709551616", false),
        (&fenced, "drover:fence=+7", false),
        (&fenced, "drover:fence=0", false),
        (&fenced, "drover:fence=", false),
        (&fenced, "drover:fence", false),
        (&plain, "drover:fence=7", false),
        (&readable, "drover:fence=7", false),
    ] {
        let mut raw = Raw::greet(stage);
        raw.agree(option::STRUCTURED_REPLY);
        let found = raw.set_contexts(&[context]);
        assert_eq!(found.len(), usize::from(granted), "{context}: {found:?}");
    }
    assert_eq!(fenced.server().exports()[0].epoch(), Some(0), "asking alone takes nothing over");
}

#[test]
fn block_status_of_the_fence_says_nothing() {
    let disk = MemDisk::new("a", vec![0; SIZE]);
    let stage = stage(&disk, None);
    let reply = writer(&stage, 1).ask(Ask { command: 7, length: SIZE as u64, ..Ask::default() }, &[]);
    assert_eq!(reply.status.len(), 2);
    assert!(reply.status.iter().any(|(_, runs)| *runs == [(SIZE as u64, 0)]));
}

#[test]
fn what_an_old_run_has_begun_ends_before_the_new_runs_first_write() {
    let slow = Effect::Delay(Duration::from_millis(300));
    let disk = MemDisk::new("a", vec![0; SIZE]).with_fault(DiskOp::Write, Nth::Only(1), slow);
    let stage = stage(&disk, None);
    let mut old = writer(&stage, 1);
    old.head(Ask { command: 1, length: 4096, ..Ask::default() });
    old.send(&[1; 4096]);
    while disk.counts().writes == 0 {
        std::thread::yield_now();
    }
    let mut new = writer(&stage, 2);
    // The same bytes: the old write, sleeping in the disk, must not land on top of this one.
    assert_eq!(new.write(0, &[2; 4096]).error, 0);
    assert_eq!(old.reply(0).1.error, 0, "it had begun, so it ends well");
    assert!(disk.content()[..4096] == [2; 4096]);
}

#[test]
fn a_write_that_was_half_sent_is_refused_when_its_rest_arrives() {
    let disk = MemDisk::new("a", vec![0; SIZE]);
    let stage = stage(&disk, None);
    let mut old = writer(&stage, 1);
    old.head(Ask { command: 1, length: 4096, ..Ask::default() });
    old.send(&[1; 2000]);
    let mut new = writer(&stage, 2);
    assert_eq!(new.write(0, &[2; 4096]).error, 0);
    old.send(&[1; 2096]);
    assert_eq!(old.reply(0).1.error, EPERM);
    assert!(disk.content()[..4096] == [2; 4096]);
}

#[test]
fn the_highest_epoch_outlives_the_server() {
    let disk = MemDisk::new("a", vec![0; SIZE]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk.drover-fence");
    let mut first = stage(&disk, Some(&file));
    let other = Export::new("", Arc::new(disk.clone())).fenced(Some(&file));
    assert!(other.is_err(), "two servers cannot fence one disk");
    let _run = writer(&first, 41);
    first.stop();
    let second = stage(&disk, Some(&file));
    assert_eq!(second.server().exports()[0].epoch(), Some(41));
    assert!(refused(&second, 40).contains("epoch 41 has taken"));
    assert_eq!(Raw::go(&second, &[]).write(0, &[1; 512]).error, EPERM);
    assert_eq!(writer(&second, 41).write(0, &[1; 512]).error, 0);
}

#[test]
fn an_epoch_that_cannot_be_kept_is_not_let_in() {
    let disk = MemDisk::new("a", vec![0; SIZE]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fence");
    let export = Export::new("", Arc::new(disk.clone())).fenced(Some(&file)).unwrap();
    let socket = folder.path().join("nbd.sock");
    let server =
        Server::start(vec![export], &Listen::Unix(socket.clone()), ServerOptions::default()).unwrap();
    // The folder cannot be made durable once it is gone.
    let stage = Stage { server: Some(server), socket, folder, more: None };
    let moved = stage.folder.path().with_extension("moved");
    std::fs::rename(stage.folder.path(), &moved).unwrap();
    let stage = Stage { socket: moved.join("nbd.sock"), ..stage };
    assert!(refused(&stage, 1).contains("cannot be kept"));
    let mut foreign = Raw::go(&stage, &[]);
    assert_eq!(foreign.write(0, &[1; 512]).error, 0, "nobody took over");
    std::fs::rename(&moved, stage.folder.path()).unwrap();
}
