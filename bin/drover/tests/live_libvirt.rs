//! `drover live DOMAIN --to URI`: domains of libvirt move between two daemons, stay where they were, or are refused.
//!
//! The daemons are true ones, in namespaces of their own (`lab/libvirt/hosts`); guests run under software emulation.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use drover_lab::{Drover, Output, PulseOptions, put_script};
use drover_stage::domains::{NAME, Pair};
use drover_stage::moves::{self, events, is_sending};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[test]
fn a_domain_moves_with_its_definition_and_comes_back() {
    let Some(mut pair) = Pair::shared() else { return };
    pair.hosts.virsh("a", &["autostart", NAME]).unwrap();
    let looked = pair.live(&["--dry-run", "--downtime", "2s"]);
    assert_eq!(looked.code, Some(0), "{looked:?}");
    pair.has_stayed();
    let report = pair.folder.path().join("move.json");
    let output = pair.live(&["--downtime", "2s", "--report", report.to_str().unwrap()]);
    assert_eq!(output.code, Some(0), "{output:?}");
    pair.has_moved("a", "b");
    let moved = moves::moved(&output);
    assert!(moved["sent_bytes"].as_u64().unwrap() > 32 << 20, "{moved}");
    assert!(moved["downtime_ms_by_qemu"].is_u64(), "{moved}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(report["outcome"]["result"], "moved", "{report}");
    let starts =
        |host| pair.hosts.virsh(host, &["dominfo", NAME]).unwrap().contains("Autostart:      enable");
    assert!(starts("b") && !starts("a"), "only the host that has it starts it");
    // Said again, it has nothing to do.
    let again = pair.live(&["--downtime", "2s"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.out.contains("has moved already"), "{}", again.out);
    // And back, by the daemons alone.
    let back = moves::run(pair.command("b", "a", &["--downtime", "2s", "--p2p"]));
    assert_eq!(back.code, Some(0), "{back:?}");
    pair.has_moved("b", "a");
}

#[test]
fn disks_are_copied_into_new_volumes_and_nothing_is_written_over() {
    let Some(mut pair) = Pair::apart() else { return };
    let there = pair.hosts.run_folder("b").join("vms/disk.raw");
    std::fs::write(&there, "somebody's").unwrap();
    let refused = pair.live(&["--disks", "mirror"]);
    pair.is_refused(&refused, &["/run/vms/disk.raw is there at the target already", "vol-delete"]);
    assert_eq!(std::fs::read(&there).unwrap(), b"somebody's");
    std::fs::remove_file(&there).unwrap();
    // Stopped on its way, it takes along what it made.
    let child = pair.begin(&["--disks", "mirror", "--downtime", "2s"], |event| event["event"] == "disk");
    assert!(there.exists());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let stopped = moves::ended(child, &pair.told());
    assert_eq!(stopped.code, Some(130), "{stopped:?}");
    assert!(!there.exists(), "the volume is left");
    assert!(pair.hosts.virsh("a", &["domstate", NAME]).unwrap() == "running");
    let output = pair.live(&["--disks", "mirror", "--downtime", "2s"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    pair.has_moved("a", "b");
    pair.has_the_disk_of_the_source();
}

#[test]
fn all_that_stands_in_the_way_is_told_at_once_and_nothing_is_begun() {
    let Some(mut pair) = Pair::new(|_| PulseOptions::default()) else { return };
    let here = moves::run(pair.command("a", "a", &[]));
    pair.is_refused(&here, &["both addresses lead to the same host"]);
    // Another domain of this name, and a snapshot.
    pair.hosts.define("b", NAME, &PulseOptions::default()).unwrap();
    pair.hosts.virsh("a", &["snapshot-create", NAME, &snapshot(&pair), "--redefine"]).unwrap();
    let refused = pair.live(&["--dry-run"]);
    pair.is_refused(&refused, &["another domain of the name beat", "snapshots (old)", "snapshot-delete"]);
    let refused = pair.live(&[]);
    pair.is_refused(&refused, &["another domain of the name beat", "snapshots (old)"]);
    // With both gone it moves.
    pair.hosts.virsh("b", &["undefine", NAME]).unwrap();
    pair.hosts.virsh("a", &["snapshot-delete", NAME, "old", "--metadata"]).unwrap();
    assert_eq!(pair.live(&["--downtime", "2s"]).code, Some(0));
    pair.has_moved("a", "b");
}

/// A snapshot that the daemon is told of.
fn snapshot(pair: &Pair) -> String {
    let domain = pair.hosts.virsh("a", &["dumpxml", NAME, "--inactive"]).unwrap();
    let xml = format!(
        "<domainsnapshot><name>old</name><state>shutoff</state><creationTime>1</creationTime>\
         <memory snapshot='no'/>{domain}</domainsnapshot>"
    );
    let file = pair.folder.path().join("snapshot.xml");
    std::fs::write(&file, xml).unwrap();
    file.to_str().unwrap().to_string()
}

#[test]
fn storage_that_hosts_do_not_share_is_refused_by_libvirt_and_the_guest_runs_on() {
    let Some(mut pair) = Pair::apart() else { return };
    let output = pair.live(&["--downtime", "2s"]);
    pair.is_refused(
        &output,
        &["without shared storage is unsafe", "--disks mirror", "the guest is at the source"],
    );
    pair.has_stayed();
}

#[test]
fn a_domain_goes_encrypted_to_the_host_of_that_name_only() {
    let Some(mut pair) = Pair::certified(|_| PulseOptions::default()) else { return };
    let output = pair.live(&["--downtime", "2s", "--tls", "--tls-hostname", "host-c"]);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(
        output.err.contains("host-c") && output.err.contains("the guest is at the source"),
        "{}",
        output.err
    );
    pair.has_stayed();
    let output = pair.live(&["--downtime", "2s", "--tls", "--tls-hostname", "host-b"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    pair.has_moved("a", "b");
    let refused = pair.live(&["--tls-x509", "/etc/pki/qemu"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

#[test]
fn hosts_without_certificates_encrypt_nothing_and_libvirt_says_so() {
    let Some(mut pair) = Pair::new(|_| PulseOptions::default()) else { return };
    let output = pair.live(&["--downtime", "2s", "--tls"]);
    assert_eq!(output.code, Some(7), "{output:?}");
    for words in ["/etc/pki/qemu/ca-cert.pem", "the guest is at the source"] {
        assert!(output.err.contains(words), "{words}: {}", output.err);
    }
    pair.has_stayed();
}

#[test]
fn a_guest_that_does_not_converge_is_given_up_and_runs_on() {
    let options =
        || PulseOptions { memory_mib: 128, pages: 16384, pages_per_beat: 100, ..PulseOptions::default() };
    let Some(mut pair) = Pair::new(|_| options()) else { return };
    // It writes 40 MB/s, and half of that may be sent.
    let output = pair.live(&["--rate-max", "160m", "--channels", "1"]);
    assert!(matches!(output.code, Some(3 | 6)), "{output:?}");
    assert!(output.err.contains("the guest is at the source"), "{}", output.err);
    pair.has_stayed();
}

#[test]
fn a_killed_drover_leaves_the_move_to_libvirt_and_said_again_sees_it_to_its_end() {
    let Some(mut pair) = Pair::shared() else { return };
    let mut child = pair.begin(&["--downtime", "2s"], is_sending);
    child.kill().unwrap();
    child.wait().unwrap();
    let again = pair.live(&["--downtime", "2s"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    pair.has_moved("a", "b");
}

#[test]
fn with_virsh_killed_too_libvirt_cancels_and_the_next_try_moves_it() {
    let Some(mut pair) = Pair::shared() else { return };
    let mut child = pair.begin(&["--downtime", "2s"], is_sending);
    let virsh = moves_by(child.id());
    assert_eq!(virsh.len(), 1, "{virsh:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    kill_process(virsh[0], Signal::KILL).unwrap();
    let is_over = || pair.state("b").is_empty() && pair.job("a").contains("None");
    drover_stage::process::wait_until("libvirt cancels", Duration::from_secs(120), is_over);
    pair.runs_on();
    let again = pair.live(&["--downtime", "2s"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    pair.has_moved("a", "b");
}

/// Children of a process that have libvirt move a domain.
fn moves_by(parent: u32) -> Vec<Pid> {
    let numbers = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    let read = |number: i32, what: &str| std::fs::read(format!("/proc/{number}/{what}")).unwrap_or_default();
    let is_child = |number: &i32| {
        let stat = String::from_utf8_lossy(&read(*number, "stat")).into_owned();
        let parent = parent.to_string();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(parent.as_str()))
    };
    let moves =
        |number: &i32| read(*number, "cmdline").split(|byte| *byte == 0).any(|word| word == b"migrate");
    numbers.filter(is_child).filter(moves).filter_map(Pid::from_raw).collect()
}

#[test]
fn a_target_that_ends_on_the_way_costs_nothing_and_the_second_try_works() {
    let Some(mut pair) = Pair::shared() else { return };
    let child = pair.begin(&["--downtime", "2s"], is_sending);
    pair.hosts.virsh("b", &["destroy", NAME]).unwrap();
    let output = moves::ended(child, &pair.told());
    assert_eq!(output.code, Some(7), "{output:?}");
    let failed = events(&output).into_iter().find(|event| event["event"] == "failed").unwrap();
    assert_eq!(failed["guest_at"], "source", "{failed}");
    pair.has_stayed();
    assert_eq!(pair.live(&["--downtime", "2s"]).code, Some(0));
    pair.has_moved("a", "b");
}

#[test]
fn a_daemon_that_does_not_answer_for_a_moment_costs_nothing() {
    let Some(mut pair) = Pair::shared() else { return };
    let silent = "case \"$*\" in *domjobinfo*) if [ -e silent ]; then echo 1 >> asked; echo 'error: no route' >&2; exit 1; fi;; esac";
    let slowly = ["--downtime", "2s", "--rate-max", "17m", "--channels", "1"];
    let child = moves::spawn(pair.command_by(silent, &slowly), &pair.told());
    assert!(moves::is_told(&pair.told(), is_sending), "nothing is sent");
    let place = |name: &str| pair.folder.path().join(name);
    std::fs::write(place("silent"), "").unwrap();
    drover_stage::process::wait_until("it is asked again", Duration::from_secs(120), || {
        std::fs::read(place("asked")).is_ok_and(|asked| asked.len() >= 8)
    });
    std::fs::remove_file(place("silent")).unwrap();
    let output = moves::ended(child, &pair.told());
    assert_eq!(output.code, Some(0), "{output:?}");
    pair.has_moved("a", "b");
}

/// `drover live` with this in the place of `virsh`.
fn with_standin(body: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    put_script(&folder.path().join("virsh"), body).unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    let mut command = drover.command(&["live", "web01", "--to", "qemu+ssh://other/system"]);
    command.args(more).env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
    moves::run(command)
}

#[test]
fn daemons_that_cannot_be_asked_are_named_with_what_to_try() {
    let output = with_standin("#!/bin/sh\necho 'error: no route' >&2\nexit 1\n", &[]);
    assert_eq!(output.code, Some(6), "{output:?}");
    assert!(output.err.contains("`virsh uri` at qemu:///system: no route"), "{}", output.err);
    assert!(output.err.contains("virsh -c qemu:///system list"), "{}", output.err);
    let only_here = "#!/bin/sh\ncase \"$*\" in *other*) echo 'error: no login' >&2; exit 1;; esac\n";
    let output = with_standin(only_here, &[]);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("qemu+ssh://other/system: no login"), "{}", output.err);
    // Both answer, and neither has it.
    let empty = "#!/bin/sh\ncase \"$*\" in *other*) host=b;; *) host=a;; esac\n\
                 case \"$*\" in *capabilities) echo \"<capabilities><host><uuid>$host</uuid></host></capabilities>\";; esac\n";
    let output = with_standin(empty, &[]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("no domain web01 is at"), "{}", output.err);
}

#[test]
fn what_is_not_for_domains_is_told_before_anybody_is_asked() {
    for more in [&["--nbd", "10.0.0.2:1"][..], &["--rate-max", "1m"], &["--assume-shared"]] {
        let output = with_standin("#!/bin/sh\nexit 99\n", more);
        assert_eq!(output.code, Some(2), "{more:?}: {output:?}");
        assert!(output.err.contains(more[0]), "{}", output.err);
    }
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    let socket = drover.run(&["live", "/run/a.sock", "--to", "qemu:///system"]).unwrap();
    assert_eq!(socket.code, Some(2), "{socket:?}");
    assert!(socket.err.contains("no name of a domain"), "{}", socket.err);
    let lonely = drover.run(&["live", "web01", "--to", "host-b"]).unwrap();
    assert_eq!(lonely.code, Some(2), "{lonely:?}");
    assert!(lonely.err.contains("qemu+ssh://host/system"), "{}", lonely.err);
}
