//! `drover live` by RDMA, and links over RDMA, carried by soft RDMA (rxe): what a card would carry goes from one QEMU to another, and is
//! proved by the guest, or from one drover to another.
//!
//! This machine may have neither a card nor the kernel's module. So the test that runs here starts a VM that has both
//! (`scripts/get-rdma-vm`) with this very program in it, and there the tests run that are ignored here.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use drover_lab::{Output, Pulse, PulseOptions, RdmaVm};
use drover_stage::line::Line;
use drover_stage::moves::{self, ask, say_with};
use drover_stage::pair::Pair;
use drover_stage::process::wait_until;
use drover_stage::scene::Scene;
use drover_stage::sites::{Sites, done};
use drover_stage::{MIB, disk_file, same_bytes};
use serde_json::{Value, json};

const CHUNK: &str = "x-rdma-chunk-size";
const POLL: Duration = Duration::from_millis(100);
/// A line is said, and a downtime of seconds: what software carries in a VM that is emulated itself is none of these tests.
const PATIENTLY: [&str; 4] = ["--line", "100m", "--downtime", "8s"];
/// How often a move is begun that rxe gives up.
const TRIES: usize = 4;
/// So that there is time to break something.
const SLOWLY: [&str; 2] = ["--rate-max", "8m"];

#[test]
fn guests_move_by_rdma_in_a_vm_that_has_it() {
    let Some(vm) = RdmaVm::find().unwrap() else { return };
    let folder = tempfile::Builder::new().prefix("drover-rdma-").tempdir().unwrap();
    let here = std::env::current_exe().unwrap();
    let programs = [&here, Path::new(env!("CARGO_BIN_EXE_drover"))];
    let told = vm.run(folder.path(), &programs, "--ignored --nocapture --test-threads=1").unwrap();
    println!("{told}");
    assert!(told.contains("test result: ok. 5 passed") && !told.contains("skipped"), "{told}");
}

/// A guest of 64 MiB of which half holds nothing, and a QEMU that waits for it.
fn pair() -> Option<Pair> {
    if !RdmaVm::is_here() {
        println!("skipped: no soft RDMA here");
        return None;
    }
    Pair::new(&guest())
}

fn guest() -> PulseOptions {
    PulseOptions { version: "11.1", accel: "tcg,tb-size=64", pages_per_beat: 5, ..PulseOptions::default() }
}

/// Where the target waits: at a port of its own, so that nothing of an earlier move is met.
fn uri() -> String {
    static PORT: AtomicU16 = AtomicU16::new(4444);
    format!("rdma:{}:{}", RdmaVm::ADDRESS, PORT.fetch_add(1, Ordering::Relaxed))
}

/// Moves the guest on to a QEMU with its files in this folder; gives how many bytes were sent.
#[track_caller]
fn goes(pair: &mut Pair, folder: &str, more: &[&str]) -> u64 {
    let more = [&PATIENTLY[..], more].concat();
    let chunks = chunk_bytes(pair);
    for again in 1..TRIES {
        let output = pair.live_at(&uri(), &more);
        if !has_given_up(&output) {
            return sent(pair, folder, &output);
        }
        pair.has_stayed();
        println!("{folder}: once more, after {}", output.err);
        pair.wait_anew(&format!("{folder}-{again}"), &guest());
        set_chunk(pair, chunks[0], chunks[1]);
    }
    let output = pair.live_at(&uri(), &more);
    sent(pair, folder, &output)
}

#[track_caller]
fn sent(pair: &mut Pair, folder: &str, output: &Output) -> u64 {
    let moved = pair.has_moved(output);
    println!("{folder}: {moved}");
    moved["sent_bytes"].as_u64().unwrap()
}

/// Under load rxe gives a connection up though nothing is wrong with it ("retry exceeded" in its log), which the source's QEMU calls
/// a "send polling control error". The guest stays where it was then, and the move is made once more.
fn has_given_up(output: &Output) -> bool {
    output.code == Some(7) && output.err.contains("send polling control error")
}

fn chunk_bytes(pair: &Pair) -> [u64; 2] {
    let told = |guest| ask(guest, "query-migrate-parameters", Value::Null)[CHUNK].as_u64().unwrap();
    [told(&pair.source), told(&pair.target)]
}

fn set_chunk(pair: &Pair, source: u64, target: u64) {
    say_with(&pair.source, "migrate-set-parameters", json!({CHUNK: source}));
    say_with(&pair.target, "migrate-set-parameters", json!({CHUNK: target}));
}

#[test]
#[ignore = "runs in the VM"]
fn a_guest_goes_by_small_chunks_and_by_large_ones_whatever_was_set_before() {
    let Some(mut pair) = pair() else { return };
    let small = goes(&mut pair, "small", &["--rdma-chunk-size", "1m"]);

    pair.move_on("alone", &guest());
    qemu_alone_fails_and_does_not_say_why(&mut pair);

    // With the same settings drover moves it: both sides are set alike, and the one that has the guest then as it was before.
    pair.wait_anew("large", &guest());
    set_chunk(&pair, 4 * MIB, 2 * MIB);
    let large = goes(&mut pair, "large", &["--rdma-chunk-size", "64m"]);
    assert_eq!(chunk_bytes(&pair)[1], 2 * MIB);
    // Zeros are left out as whole chunks only.
    assert!(small + 8 * MIB < large && large >= 64 * MIB, "{small}, {large}");
}

/// Of chunks that are larger at the source QEMU tells neither that nor their sizes: what drover prevents.
#[track_caller]
fn qemu_alone_fails_and_does_not_say_why(pair: &mut Pair) {
    set_chunk(pair, 64 * MIB, MIB);
    let uri = uri();
    say_with(&pair.target, "migrate-incoming", json!({"uri": uri}));
    say_with(&pair.source, "migrate", json!({"uri": uri}));
    let told = loop {
        let told = ask(&pair.source, "query-migrate", Value::Null);
        if ["failed", "completed"].contains(&told["status"].as_str().unwrap_or_default()) {
            break told;
        }
        std::thread::sleep(POLL);
    };
    assert!(told["status"] == "failed" && !told.to_string().contains("chunk"), "{told}");
    pair.has_stayed();
}

#[test]
#[ignore = "runs in the VM"]
fn a_target_that_dies_leaves_the_guest_where_it_was() {
    let Some(mut pair) = pair() else { return };
    let mut child = begins(&mut pair);
    assert_eq!(child.try_wait().unwrap(), None, "it is under way");
    pair.target.kill();
    let output = pair.ended(child);
    println!("{output:?}");
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("the guest is at the source, as it was"), "{}", output.err);
    pair.has_stayed();
}

/// A move whose memory is on its way.
#[track_caller]
fn begins(pair: &mut Pair) -> Child {
    for again in 1..=TRIES {
        let mut child = pair.spawn_at(&uri(), &SLOWLY);
        loop {
            if moves::has_told(&pair.path("out"), moves::is_sending) {
                return child;
            }
            if child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(POLL);
        }
        let output = pair.ended(child);
        assert!(has_given_up(&output), "it ended before: {output:?}");
        pair.wait_anew(&format!("begins-{again}"), &guest());
    }
    panic!("rxe gave up {TRIES} times");
}

/// RDMA or nothing.
const REQUIRED: [&str; 2] = ["--rdma", "require"];
/// In which a disk goes that is slowed down, over whatever is left.
const PATIENCE: Duration = Duration::from_secs(400);

/// Two sites with an agent at these addresses; `None`, after a printed line, without a device.
fn sites(addresses: &str, more: &[&str]) -> Option<Sites> {
    if !RdmaVm::is_here() {
        println!("skipped: no soft RDMA here");
        return None;
    }
    let mut sites = Sites::not_started();
    sites.address = addresses.to_string();
    sites.more = more.iter().map(|it| (*it).to_string()).collect();
    sites.start();
    Some(sites)
}

/// Packets that the device has sent. One takes 4 KiB of data at most.
fn packets() -> u64 {
    let told = std::fs::read_to_string("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts").unwrap();
    told.trim().parse().unwrap()
}

const PACKET_BYTES: u64 = 4096;

#[test]
#[ignore = "runs in the VM"]
fn a_link_carries_a_disk_over_rdma_alone() {
    let Some(sites) = sites(&format!("{}:0", RdmaVm::ADDRESS), &REQUIRED) else { return };
    sites.pair_over(&sites.address, &REQUIRED);
    let source = disk_file(sites.folder.path(), "source", 16 * MIB);
    let before = packets();
    let sent = done(&sites.copy(&source, &["--verify", "full"]))["link"]["bytes_sent"].as_u64().unwrap();
    assert!(same_bytes(&source, &sites.in_pool("disk.raw")));
    let carried = (packets() - before) * PACKET_BYTES;
    println!("{sent} bytes of the disk were sent, {carried} over RDMA at most");
    assert!(
        sent > 8 * MIB && carried >= sent,
        "{sent} bytes of the disk were sent, {carried} over RDMA at most"
    );
}

#[test]
#[ignore = "runs in the VM"]
fn a_link_carries_a_guests_memory_over_rdma_alone() {
    let allowed = |sites: &Sites| format!("unix:{}", sites.path("b/*").display());
    let Some(mut sites) = sites(&format!("{}:0", RdmaVm::ADDRESS), &REQUIRED) else { return };
    sites.kill();
    sites.more.extend(["--allow-connect".to_string(), allowed(&sites)]);
    sites.start();
    sites.pair_over(&sites.address, &REQUIRED);
    let source = Pulse::start(&sites.path("a"), &guest()).unwrap();
    let target = Pulse::waiting(&sites.path("b"), &guest()).unwrap();
    source.beat(3).unwrap();
    let line = Line::to(&sites.address);
    let mut scene = Scene { source, target, sites, line };
    let before = packets();
    let output = scene.live(&PATIENTLY);
    let moved = scene.has_moved(&output);
    let carried = (packets() - before) * PACKET_BYTES;
    println!("{moved}; {carried} over RDMA at most");
    assert_eq!(moved["link"]["congestion"], "rdma", "{moved}");
    assert!(carried > 16 * MIB, "{carried} bytes over RDMA at most: {moved}");
}

/// `rdma link delete` waits for those who use the device (kernel 6.1): its network goes away under it, as with a cable. It stays away, so this
/// test is to be the last, in the order of their names.
#[test]
#[ignore = "runs in the VM"]
fn when_a_device_vanishes_its_link_goes_on_over_tcp() {
    let addresses = format!("{}:7843,127.0.0.1:7843", RdmaVm::ADDRESS);
    let Some(sites) = sites(&addresses, &[]) else { return };
    sites.pair_at(&addresses);
    let source = disk_file(sites.folder.path(), "source", 48 * MIB);
    let before = packets();
    let mut command = sites.here.command(&["copy", source.to_str().unwrap(), "agent://site-b/vms/disk.raw"]);
    let log = sites.path("log");
    let log_to = std::fs::File::create(&log).unwrap();
    command.args(["--rate-limit", "4MiB"]).stdout(Stdio::null()).stderr(log_to);
    let mut copying = command.spawn().unwrap();
    let said = || std::fs::read_to_string(&log).unwrap();
    wait_until("blocks go over RDMA", PATIENCE, || {
        assert_eq!(copying.try_wait().unwrap(), None, "it ended: {}", said());
        (packets() - before) * PACKET_BYTES > 8 * MIB
    });
    let down = Command::new("/usr/sbin/ip").args(["link", "set", "dummy1", "down"]).status();
    assert!(down.unwrap().success());
    let gone = packets();
    assert!(copying.wait().unwrap().success(), "{}", said());
    assert!(same_bytes(&source, &sites.in_pool("disk.raw")));
    let (then, since) = ((gone - before) * PACKET_BYTES, (packets() - gone) * PACKET_BYTES);
    println!("over RDMA at most: {then} bytes before the device vanished, {since} after it");
    assert!(since < 8 * MIB, "{since} bytes over RDMA after it vanished");
}
