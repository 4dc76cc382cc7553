//! Pools of the type rbd, with the true Ceph and the true drivers of libvirt and QEMU for it (`drover_stage::ceph_cluster`).

use std::path::Path;
use std::process::Stdio;

use drover_qemu::{VmFolder, find_running};
use drover_stage::ceph_cluster::CephCluster;
use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, disk_file, vm, with};
use serde_json::json;

/// A rehearsal of what is in `one-0.raw` and `one-1.raw`, and one that is killed; they leave nothing and change no byte.
fn is_rehearsed(cluster: &CephCluster, name: &str, plan: &str) {
    let landing = &cluster.landing;
    let overlays = landing.stage.path(&format!("state/libvirt/{name}/one/.drover-rehearsal"));
    let images = || ["one-0.raw", "one-1.raw"].map(|image| cluster.bytes(image));
    let before = images();
    let done = landing.arrives(&["rehearse", plan, "--for", "1", "--json"]);
    assert!(done.out.contains("\"result\":\"ran\""), "{}{}", done.out, done.err);
    assert!(!overlays.exists(), "overlays are left");

    let runs = || find_running(&VmFolder::new(&overlays)).unwrap().is_some();
    let mut command = landing.command(&["rehearse", plan, "--for", "600"]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("its machine runs", PATIENCE, runs);
    running.kill().unwrap();
    running.wait().unwrap();
    wait_until("its machine is ended with it", PATIENCE, || !runs());
    wait_until("its overlays are removed", PATIENCE, || !overlays.exists());
    assert!(images() == before, "an image was written to");
}

#[test]
fn disks_land_in_a_true_ceph_after_kills_are_rehearsed_and_a_cancel_takes_away_what_was_made() {
    let vms = |folder: &Path| {
        let (a, b) = (disk_file(folder, "a", 5 * MIB + 512), disk_file(folder, "b", 3 * MIB));
        vec![with(vm("one", &[&a, &b]), json!({"power": "on", "nics": []}))]
    };
    let Some(cluster) = CephCluster::new(242, vms) else { return };
    let landing = &cluster.landing;
    let plan = |name: &str| {
        landing.plan(name, &[("pool: images", "pool: ceph"), ("mode: cold", "mode: cold\nstart: true")])
    };
    let refuses = |args: &[&str], words: &str| {
        let refused = landing.run(args);
        assert!(refused.code != Some(0) && refused.err.contains(words), "'{words}' in {}", refused.err);
    };
    let source = |disk: &str| std::fs::read(landing.stage.path(disk)).unwrap();

    // Somebody else's, of which libvirt learns by itself when it comes, and not when it goes.
    cluster.rbd(&["create", "--size", "3", "one-1.raw"]);
    let given_up = plan("given-up");
    refuses(&["plan", "check", &given_up], "rbd:vms/one-1.raw is there already");
    cluster.remove("one-1.raw");
    landing.arrives(&["plan", "check", &given_up]);
    assert_eq!(cluster.images(), Vec::<String>::new(), "a check touches nothing");

    assert!(landing.killed_at(&["migrate", &given_up], ("phase_started", "verify")).is_some());
    assert_eq!(cluster.images(), ["one-0.raw", "one-1.raw"]);
    is_rehearsed(&cluster, "given-up", &given_up);
    // As libvirt leaves it when it looked at a Ceph that is away.
    landing.hosts.virsh("a", &["pool-destroy", "ceph"]).unwrap();
    refuses(&["cancel", "given-up"], "virsh pool-start ceph");
    landing.hosts.virsh("a", &["pool-start", "ceph"]).unwrap();
    landing.arrives(&["cancel", "given-up"]);
    assert_eq!(cluster.images(), Vec::<String>::new());

    // Somebody puts another image of its name in the place of one that drover made.
    let swapped = plan("swapped");
    assert!(landing.killed_at(&["migrate", &swapped], ("phase_started", "verify")).is_some());
    let strangers = vec![0x5a; 3 * MIB as usize];
    let file = landing.folder.path().join("strangers");
    std::fs::write(&file, &strangers).unwrap();
    cluster.remove("one-1.raw");
    cluster.rbd(&["import", "--no-progress", "--dest-pool", "vms", file.to_str().unwrap(), "one-1.raw"]);
    refuses(&["rehearse", &swapped], "rbd:vms/one-1.raw is not what this plan wrote there");
    refuses(&["cancel", "swapped"], "it stays: rbd:vms/one-1.raw");
    assert_eq!(cluster.images(), ["one-1.raw"]);
    assert!(cluster.bytes("one-1.raw") == strangers, "it was written to");
    cluster.remove("one-1.raw");
    landing.arrives(&["cancel", "swapped"]);

    let edges = plan("edges");
    let mut args = vec!["migrate", edges.as_str()];
    for edge in [("phase_started", "copy"), ("phase_ended", "copy"), ("phase_ended", "define")] {
        assert!(landing.killed_at(&args, edge).is_some(), "{edge:?} never came");
        landing.runs_once("a", "one", edge);
        args = vec!["resume", "edges"];
    }
    landing.arrives(&args);
    assert_eq!(landing.state("a", "one"), "running", "{}", landing.log_of("a", "one"));
    for (image, disk) in [("one-0.raw", "a"), ("one-1.raw", "b")] {
        let status = cluster.rbd(&["status", image]);
        let status = String::from_utf8_lossy(&status);
        assert!(status.contains("watcher="), "no QEMU has {image}: {status}");
        assert!(cluster.bytes(image) == source(disk), "{image} is not what its source is");
    }
    landing.stays("a", "edges");
    assert_eq!(cluster.images(), ["one-0.raw", "one-1.raw"]);
}
