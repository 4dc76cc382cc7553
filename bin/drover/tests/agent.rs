//! `drover agent` and copies to it, over real TLS links on this host.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use drover_agent::limits::parts;
use drover_agent::trust::Folder;
use drover_disk::fence::{Gate, fence_path};
use drover_lab::Drover;
use drover_stage::process::{EndsWithTest, recorded_in, wait_until};
use drover_stage::sites::{Sites, done};
use drover_stage::{MIB, disk_file, same_bytes};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_disk_goes_to_another_site_and_comes_back_equal() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", 24 * MIB + 4711);
    let report = done(&sites.copy(&source, &["--verify", "full"]));
    assert_eq!(report["equal"], true);
    assert!(same_bytes(&source, &sites.in_pool("disk.raw")));
    assert!(report["link"]["bytes_sent"].as_u64().unwrap() > 0, "{report}");
    let verified =
        sites.here.run(&["verify", source.to_str().unwrap(), "agent://site-b/vms/disk.raw"]).unwrap();
    assert_eq!(verified.code, Some(0), "{}", verified.err);
    let back = sites.path("back");
    let copied = sites.here.run(&["copy", "agent://site-b/vms/disk.raw", back.to_str().unwrap()]).unwrap();
    assert_eq!(copied.code, Some(0), "{}", copied.err);
    assert!(same_bytes(&source, &back));
    let info = sites.here.run(&["agent", "info", "site-b", "--json"]).unwrap().json().unwrap();
    assert_eq!(info["agent"]["pools"][0]["name"], "vms");
}

#[test]
fn what_is_there_is_overwritten_only_if_told_so_and_a_second_try_finds_its_blocks() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", 16 * MIB);
    done(&sites.copy(&source, &[]));
    let refused = sites.copy(&source, &[]);
    assert_eq!(refused.code, Some(7), "{}", refused.err);
    assert!(refused.err.contains("already holds"), "{}", refused.err);
    // The same data once more, as a sibling: its blocks are there. The first two writes are sent unasked.
    let args = ["copy", "--json", source.to_str().unwrap(), "agent://site-b/vms/sibling.raw"];
    let report = done(&sites.here.run(&args).unwrap());
    assert!(same_bytes(&source, &sites.in_pool("sibling.raw")));
    let (had, sent) =
        (report["link"]["bytes_had"].as_u64().unwrap(), report["link"]["bytes_sent"].as_u64().unwrap());
    assert!(had >= 9 * MIB && sent <= 3 * MIB, "{report}");
    std::fs::write(&source, vec![7; 16 * MIB as usize]).unwrap();
    done(&sites.copy(&source, &["--force"]));
    assert!(same_bytes(&source, &sites.in_pool("disk.raw")));
}

#[test]
fn an_agent_that_is_killed_in_mid_copy_and_comes_back_costs_nothing() {
    let mut sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", 320 * MIB);
    let args = ["copy", source.to_str().unwrap(), "agent://site-b/vms/disk.raw", "--rate-limit", "32MiB"];
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = sites.here.command(&args);
    let mut copy = command.stdout(Stdio::null()).stderr(log.reopen().unwrap()).spawn().unwrap();
    let said = || std::fs::read_to_string(log.path()).unwrap();
    let journals = sites.path("here").join("journals");
    wait_until("the copy records blocks", PATIENCE, || recorded_in(&journals) > 0);
    for _ in 0..2 {
        assert!(copy.try_wait().unwrap().is_none(), "it ended before its agent was killed: {}", said());
        sites.kill();
        sites.start();
        for _ in 0..3 {
            let written = || std::fs::metadata(sites.in_pool("disk.raw")).unwrap().modified().unwrap();
            let before = written();
            wait_until("the link is made anew, and in use", PATIENCE, || written() != before);
        }
    }
    let status = copy.wait().unwrap();
    assert!(status.success(), "{status}: {}", said());
    assert!(said().contains("opened again 2 times"), "{}", said());
    assert!(same_bytes(&source, &sites.in_pool("disk.raw")));
}

#[test]
fn a_limit_that_is_changed_holds_for_a_copy_under_way() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", 64 * MIB);
    let limit = |limits: &[&str]| {
        let output = sites.here.run(&[&["agent", "limit", "site-b"], limits].concat()).unwrap();
        assert_eq!(output.code, Some(0), "{}", output.err);
        output.out
    };
    // It would take nine minutes.
    limit(&["1m"]);
    let shown = limit(&[]);
    assert!(shown.starts_with("site-b: ") && !shown.contains("no limit"), "{shown}");
    assert_eq!(limit(&[]), shown, "a look removes nothing");
    let args = ["copy", source.to_str().unwrap(), "agent://site-b/vms/disk.raw"];
    let mut command = sites.here.command(&args);
    let mut copy = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the copy has begun", PATIENCE, || sites.in_pool("disk.raw").exists());
    assert_eq!(limit(&["--remove"]), "site-b: no limit\n");
    let mut ended = None;
    wait_until("the copy ends", PATIENCE, || {
        ended = copy.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success(), "{ended:?}");
    assert!(same_bytes(&source, &sites.in_pool("disk.raw")));
}

/// What those tell that keep to the limit of a site in the state of a host, the one that takes least first.
fn shares(sites: &Sites, (host, site): (&str, &str)) -> Vec<u64> {
    let folder = Folder::open(&sites.path(host)).unwrap();
    let mut takes: Vec<u64> = parts(&folder, site).unwrap().into_iter().map(|part| part.takes).collect();
    takes.sort_unstable();
    takes
}

#[test]
fn copies_of_several_processes_share_the_limit_of_a_site_and_a_killed_one_gives_its_part_back() {
    let (limit, to_b) = (2 * MIB, ("here", "site-b"));
    let sites = Sites::paired();
    let set = |limits: &[&str]| {
        let output = sites.here.run(&[&["agent", "limit", "site-b"], limits].concat()).unwrap();
        assert_eq!(output.code, Some(0), "{}", output.err);
    };
    set(&["2MiB"]);
    let copy = |name: &str, bytes: u64| {
        let source = disk_file(sites.folder.path(), name, bytes);
        let target = format!("agent://site-b/vms/{name}.raw");
        let mut command = sites.here.command(&["copy", source.to_str().unwrap(), &target]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        (source, target, EndsWithTest(child))
    };
    // What the agent knows is not sent: disks of other sizes have other data.
    let (first, (second, target, mut killed)) = (copy("first", 256 * MIB), copy("second", 255 * MIB));
    wait_until("each has half", PATIENCE, || {
        let is_over = || shares(&sites, to_b).iter().sum::<u64>() > limit + limit / 8;
        // Twice: one may change between two slots that are read.
        assert!(!is_over() || !is_over(), "together they take more: {:?}", shares(&sites, to_b));
        shares(&sites, to_b) == [limit / 2; 2]
    });
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    wait_until("the other has all", PATIENCE, || shares(&sites, to_b) == [limit]);
    set(&["--remove"]);
    let (source, _, mut left) = first;
    assert!(left.0.wait().unwrap().success());
    assert!(same_bytes(&source, &sites.in_pool("first.raw")));
    assert!(shares(&sites, to_b).is_empty(), "nobody is left");
    let again = sites.here.run(&["copy", second.to_str().unwrap(), &target]).unwrap();
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(same_bytes(&second, &sites.in_pool("second.raw")));
}

#[test]
fn what_an_agent_sends_to_a_peer_keeps_to_the_limit_of_that_peer() {
    let sites = Sites::paired();
    let disk = disk_file(&sites.path("pool"), "disk.raw", 64 * MIB);
    let set = |limits: &[&str]| {
        let output = sites.there.run(&[&["agent", "limit", "site-a"], limits].concat()).unwrap();
        assert_eq!(output.code, Some(0), "{}", output.err);
    };
    // It would take nine minutes.
    set(&["1m"]);
    let back = sites.path("back");
    let mut command = sites.here.command(&["copy", "agent://site-b/vms/disk.raw", back.to_str().unwrap()]);
    let mut copy = EndsWithTest(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let to_a = ("there", "site-a");
    wait_until("the agent keeps to it", PATIENCE, || shares(&sites, to_a) == [125_000]);
    wait_until("the copy has begun", PATIENCE, || back.exists());
    // Without a limit it would be over by now.
    std::thread::sleep(Duration::from_secs(2));
    assert!(copy.0.try_wait().unwrap().is_none());
    // All of it may be allocated, as zeros.
    let there = std::fs::read(&back).unwrap().iter().filter(|byte| **byte != 0).count() as u64;
    assert!(there < 8 * MIB, "{there}");
    set(&["--remove"]);
    assert!(copy.0.wait().unwrap().success());
    assert!(same_bytes(&disk, &back));
    wait_until("no limit, no share", PATIENCE, || shares(&sites, to_a).is_empty());
}

/// Copies a disk of the agent back, and holds it against what lies there: bytes that were read, and as how many they came.
fn read_back(sites: &Sites, name: &str, more: &[&str]) -> (u64, u64) {
    let (place, back) = (format!("agent://site-b/vms/{name}"), sites.path("back"));
    let args = [&["copy", "--json", "--force", &place, back.to_str().unwrap()], more].concat();
    let report = done(&sites.here.run(&args).unwrap());
    assert!(same_bytes(&sites.in_pool(name), &back));
    let link = |what: &str| report["link"][what].as_u64().unwrap();
    assert_eq!((link("bytes_sent"), link("bytes_zero"), link("bytes_had")), (0, 0, 0), "{report}");
    (link("bytes_received"), link("bytes_received_packed"))
}

#[test]
fn what_is_read_from_an_agent_is_packed_where_it_packs_and_the_line_is_slow() {
    let limited = |more: &[&str]| {
        let sites = Sites::paired_with(more);
        let output = sites.there.run(&["agent", "limit", "site-a", "4MiB"]).unwrap();
        assert_eq!(output.code, Some(0), "{}", output.err);
        sites
    };
    // As long for all of them: what goes plain had the time in which the same is packed.
    let (bytes, plain) = (64 * MIB, (64 * MIB, 64 * MIB));
    let text = || -> Vec<u8> {
        let words = b"what is on disks packs ";
        (0..bytes as usize).map(|at| words[at % words.len()] ^ (at / 9973) as u8).collect()
    };
    std::thread::scope(|scope| {
        let switched_off = scope.spawn(|| {
            let sites = limited(&["--no-link-compression"]);
            std::fs::write(sites.in_pool("text.raw"), text()).unwrap();
            read_back(&sites, "text.raw", &[])
        });
        let sites = limited(&[]);
        std::fs::write(sites.in_pool("text.raw"), text()).unwrap();
        let (read, came) = read_back(&sites, "text.raw", &[]);
        assert!(read == bytes && came * 2 < read, "{came} of {read}");
        std::fs::write(sites.in_pool("other.raw"), text()).unwrap();
        assert_eq!(read_back(&sites, "other.raw", &["--no-link-compression"]), plain);
        let mut noise = vec![0; bytes as usize];
        std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
        std::fs::write(sites.in_pool("noise.raw"), noise).unwrap();
        assert_eq!(read_back(&sites, "noise.raw", &[]), plain);
        assert_eq!(switched_off.join().unwrap(), plain, "switched off over there");
    });
}

#[test]
fn a_host_whose_clock_was_ahead_keeps_nobody_from_its_disks() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", 2 * MIB);
    let other = disk_file(sites.folder.path(), "other", 3 * MIB);
    done(&sites.copy(&source, &[]));
    let image = sites.in_pool("disk.raw");
    let ahead = drover_mover::new_epoch(0) + 3_600_000_000;
    Gate::open(&fence_path(&image)).unwrap().enter(ahead).unwrap();
    done(&sites.copy(&other, &["--force"]));
    assert!(same_bytes(&other, &image));
    // Nor where the disk has gone since.
    std::fs::remove_file(&image).unwrap();
    done(&sites.copy(&source, &["--no-journal"]));
    assert!(same_bytes(&source, &image));
}

#[test]
fn a_copy_that_is_killed_goes_on_where_it_stopped() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", 320 * MIB);
    let args = ["copy", source.to_str().unwrap(), "agent://site-b/vms/disk.raw", "--rate-limit", "32MiB"];
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = sites.here.command(&args);
    let mut copy = command.stdout(Stdio::null()).stderr(log.reopen().unwrap()).spawn().unwrap();
    let journals = sites.path("here").join("journals");
    wait_until("the copy records blocks", PATIENCE, || {
        let said = || std::fs::read_to_string(log.path()).unwrap();
        assert!(copy.try_wait().unwrap().is_none(), "it ended: {}", said());
        recorded_in(&journals) > 0
    });
    copy.kill().unwrap();
    copy.wait().unwrap();
    let report = done(&sites.copy(&source, &[]));
    assert!(report["bytes_resumed"].as_u64().unwrap() > 0, "{report}");
    assert!(same_bytes(&source, &sites.in_pool("disk.raw")));
}

#[test]
fn tokens_count_once_and_secrets_stay_out_of_argument_lists() {
    let sites = Sites::new();
    let early = sites.pair("drover1-nonsense");
    assert_eq!(early.code, Some(2), "{}", early.err);
    let token = sites.token(&["--valid", "1h"]);
    assert_eq!(sites.pair(&token).code, Some(0));
    let again = sites.pair(&token);
    assert_eq!(again.code, Some(4), "{}", again.err);
    assert!(again.err.contains("used before"), "{}", again.err);
    let list = sites.there.run(&["agent", "list", "--json"]).unwrap().json().unwrap();
    assert_eq!(list["peers"][0]["name"], "site-a");
}

#[test]
fn a_revoked_host_is_told_why_it_may_not_come_in() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", MIB);
    assert_eq!(sites.there.run(&["agent", "revoke", "site-a"]).unwrap().code, Some(0));
    let refused = sites.copy(&source, &[]);
    assert_eq!(refused.code, Some(5), "{}", refused.err);
    assert!(refused.err.contains("revoked"), "{}", refused.err);
    assert!(!sites.in_pool("disk.raw").exists());
}

#[test]
fn another_host_at_the_agents_address_is_not_believed() {
    let mut sites = Sites::paired();
    sites.kill();
    // The same address, with another key.
    sites.there = Drover::new(env!("CARGO_BIN_EXE_drover"), sites.path("impostor"));
    sites.start();
    let source = disk_file(sites.folder.path(), "source", MIB);
    let refused = sites.copy(&source, &[]);
    assert_eq!(refused.code, Some(5), "{}", refused.err);
    assert!(!sites.in_pool("disk.raw").exists());
}

#[test]
fn sites_and_places_that_are_not_there_are_told_by_name() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", MIB);
    let copy = |target: &str| sites.here.run(&["copy", source.to_str().unwrap(), target]).unwrap();
    for (target, code, words) in [
        ("agent://site-c/vms/a", 2, "no site 'site-c'"),
        ("agent://site-b/other/a", 7, "no pool 'other'"),
        ("agent://site-b/vms/../a", 2, "is not agent://"),
        ("agent://site-b/vms/no/a", 7, "no folder"),
    ] {
        let output = copy(target);
        assert_eq!(output.code, Some(code), "{target}: {}", output.err);
        assert!(output.err.contains(words), "{target}: {}", output.err);
    }
}

#[test]
fn addresses_to_go_out_from_are_used_from_the_pairing_on() {
    let sites = Sites::new();
    let pair = |sources: &str| {
        let file = sites.path("token");
        std::fs::write(&file, sites.token(&[])).unwrap();
        let args =
            ["agent", "pair", &sites.address, "--name", "site-b", "--as", "site-a", "--source", sources];
        sites.here.run(&[&args[..], &["--token-file", file.to_str().unwrap()]].concat()).unwrap()
    };
    // An address that this host does not have: nothing can go out from it.
    let refused = pair("192.0.2.77");
    assert_eq!(refused.code, Some(5), "{}", refused.err);
    let paired = pair("127.0.0.1,127.0.0.9");
    assert_eq!(paired.code, Some(0), "{}", paired.err);
    let list = sites.here.run(&["agent", "list", "--json"]).unwrap().json().unwrap();
    assert_eq!(list["peers"][0]["sources"], serde_json::json!(["127.0.0.1", "127.0.0.9"]));
    let source = disk_file(sites.folder.path(), "source", 8 * MIB);
    done(&sites.copy(&source, &[]));
    assert!(same_bytes(&source, &sites.in_pool("disk.raw")));
}

#[test]
fn a_target_that_was_changed_is_refused_also_for_a_source_of_another_size() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", 4 * MIB);
    let journal = sites.path("journal");
    let kept = ["--journal", journal.to_str().unwrap()];
    done(&sites.copy(&source, &kept));
    // As if it had been killed right before its end.
    let file = std::fs::File::options().write(true).open(&journal).unwrap();
    file.set_len(file.metadata().unwrap().len() - 8).unwrap();
    let image = sites.in_pool("disk.raw");
    let held = std::fs::read(&image).unwrap();
    for size in [3 * MIB, 5 * MIB] {
        let other = disk_file(sites.folder.path(), "other", size);
        let changed = [b"somebody's", &held[10..]].concat();
        std::fs::write(&image, &changed).unwrap();
        let refused = sites.copy(&other, &kept);
        assert_eq!(refused.code, Some(7), "{}", refused.err);
        assert!(refused.err.contains("changed since its journal was made"), "{}", refused.err);
        assert!(std::fs::read(&image).unwrap() == changed, "it was written over");
    }
    std::fs::write(&image, &held).unwrap();
    let grown = disk_file(sites.folder.path(), "grown", 5 * MIB);
    done(&sites.copy(&grown, &kept));
    assert!(same_bytes(&grown, &image), "its own half copy is made anew");
}

#[test]
fn a_new_disk_that_another_run_is_writing_is_refused_as_such() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", 320 * MIB);
    let args = ["copy", source.to_str().unwrap(), "agent://site-b/vms/disk.raw", "--rate-limit", "1MiB"];
    let mut command = sites.here.command(&args);
    let mut first = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the first run has begun", PATIENCE, || sites.in_pool("disk.raw").exists());
    let other = disk_file(sites.folder.path(), "other", MIB);
    let second = sites.copy(&other, &["--no-journal"]);
    assert!(first.try_wait().unwrap().is_none(), "the first ended before the second came");
    assert_eq!(second.code, Some(7), "{}", second.err);
    assert!(second.err.contains("another run is writing this disk"), "{}", second.err);
    assert_eq!(std::fs::metadata(sites.in_pool("disk.raw")).unwrap().len(), 320 * MIB, "nothing was emptied");
    // One that may write over it waits, says so, and goes on when the first has ended.
    let heard = sites.path("heard");
    let args = ["copy", "--force", other.to_str().unwrap(), "agent://site-b/vms/disk.raw"];
    let mut command = sites.here.command(&args);
    let mut third =
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&heard).unwrap()).spawn().unwrap();
    let told = || std::fs::read_to_string(&heard).unwrap();
    wait_until("it says that it waits", PATIENCE, || {
        told().contains("another run is writing this disk; waiting for up to 15 s")
    });
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(third.wait().unwrap().success(), "{}", told());
    let image = std::fs::read(sites.in_pool("disk.raw")).unwrap();
    assert!(image[..MIB as usize] == std::fs::read(&other).unwrap(), "its bytes are there");
}

/// 64 KiB blocks of data in which a target has what its source has.
fn arrived(source: &Path, target: &Path) -> u64 {
    let (source, target) = (std::fs::read(source).unwrap(), std::fs::read(target).unwrap_or_default());
    let pairs = source.chunks(65536).zip(target.chunks(65536));
    pairs.filter(|(source, target)| source == target && source.iter().any(|byte| *byte != 0)).count() as u64
}

#[test]
fn a_copy_that_is_interrupted_sends_no_more_of_what_it_had_read_and_keeps_what_it_had_sent() {
    let sites = Sites::paired();
    let source = disk_file(sites.folder.path(), "source", 120 * MIB);
    let args = ["copy", source.to_str().unwrap(), "agent://site-b/vms/disk.raw", "--rate-limit", "3MiB"];
    let mut command = sites.here.command(&args);
    let mut copy = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let image = sites.in_pool("disk.raw");
    wait_until("something arrives", PATIENCE, || arrived(&source, &image) >= 64);
    assert!(copy.try_wait().unwrap().is_none(), "it ended before it was interrupted");
    let before = arrived(&source, &image);
    kill_process(Pid::from_child(&copy), Signal::INT).unwrap();
    assert_eq!(copy.wait().unwrap().code(), Some(130), "interrupted");
    let after = arrived(&source, &image);
    // It had read and taken 64 MiB, which is 1024 blocks.
    assert!(after - before < 400, "{} blocks after the signal, {before} before", after - before);
    let journals = sites.path("here").join("journals");
    assert!(recorded_in(&journals) >= before, "{} are recorded", recorded_in(&journals));
    let report = done(&sites.copy(&source, &[]));
    assert!(report["bytes_resumed"].as_u64().unwrap() >= before * 65536, "{report}");
    assert!(same_bytes(&source, &image));
}
