//! kill -9 at random moments; and hundreds of VMs at once, whose hosts have little NFC memory.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drover_types::BLOCK_BYTES;
use serde_json::json;

use crate::{assert_equal, counted, image, one, plan};
use drover_stage::process::recorded_blocks;
use drover_stage::{MIB, Stage, disk_file, vm, with};

/// Hosts notice late that a client is gone: what it had stays taken, so each run after a kill finds less.
#[test]
fn killed_at_random_moments_it_resumes_equal_and_leaves_no_snapshot() {
    kills(3);
}

/// Run by `make soak`.
#[test]
#[ignore = "takes minutes; `make soak` runs it"]
fn soak() {
    kills(25);
    many_disks_move_warm();
}

fn kills(count: u64) {
    let Some(stage) = Stage::new(140, one(12 * (count + 1))) else { return };
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let host = json!({"host_bytes_per_s": 12 * MIB, "vanished_hold_ms": 1_800_000});
    stage.sim.post("/nfc/set", host).unwrap();
    let plan = plan(&stage, "killed", "", &[]);
    // One that is killed very early is not begun.
    let next = || match stage.run(&["status", &plan]).err.contains("there is no plan") {
        true => "migrate",
        false => "resume",
    };
    let target = image(&stage, "killed", "one", 0);
    let mut recorded = 0;
    for _ in 0..count {
        let running = stage.drover.start(&[next(), &plan]).unwrap();
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        // From before the login to the middle of the copy.
        std::thread::sleep(Duration::from_millis(seed % 1500));
        running.kill().unwrap();
        // Although the host holds the locks of all that were killed.
        let now = recorded_blocks(&target);
        assert!(now >= recorded, "{recorded} blocks were on the target, and now {now} are");
        recorded = now;
    }
    println!("{recorded} blocks are on the target");
    stage.sim.post("/nfc/set", json!({"host_bytes_per_s": 0})).unwrap();
    let output = stage.run(&[next(), &plan]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert_equal(&stage, "killed", "one", 0, &stage.path("a"));
    let details = &stage.report(&plan)["vms"][0]["disks"][0]["details"];
    assert_eq!(details["resumed_bytes"], recorded * BLOCK_BYTES, "{details:#}");
    let count = |key| counted(&stage, "esx1.lab", "vpxa-nfc", key);
    assert_eq!(count("sessions"), count("held"), "all that is left is what the host has not noticed");
    assert!(!stage.sim.vm("one").unwrap()["snapshots"].to_string().contains("drover"));
}

const HOSTS: usize = 8;
const VMS: usize = 200;

/// Guests that write, all at once.
fn many_disks_move_warm() {
    let vms = |folder: &std::path::Path| {
        let a = disk_file(folder, "a", MIB);
        let one = |number: usize| {
            let mac = format!("00:50:56:aa:01:{number:02x}");
            let nics = json!([{"network": "VM Network", "mac": mac, "model": "vmxnet3"}]);
            let host = format!("esx{}.lab", number % HOSTS + 1);
            let keys = json!({"host": host, "power": "on", "nics": nics});
            with(vm(&format!("vm{number}"), &[&a, &a]), keys)
        };
        (0..VMS).map(one).collect()
    };
    let Some(stage) = Stage::with_hosts(151, HOSTS, vms) else { return };
    for number in (0..VMS).step_by(10) {
        let writer = json!({"vm": format!("vm{number}"), "disk": 0, "bytes_per_s": 50_000, "block": 4096, "span": "0-512KiB"});
        stage.sim.post("/writer", writer).unwrap();
    }
    let warm = "mode: warm\nwarm: {interval: 5s, cutover: auto}";
    let limits = "limits: {disks: 400, vms_per_host: 25}\nvms:\n";
    let plan = plan(&stage, "many", "", &[("mode: cold", warm), ("vms:\n", limits)]);
    stage.migrate(&plan);
    for host in 1..=HOSTS {
        let count = |key| counted(&stage, &format!("esx{host}.lab"), "vpxa-nfc", key);
        println!(
            "esx{host}: {} sessions, at most {} at once with {} MiB",
            count("sessions_opened"),
            count("sessions_most"),
            count("memory_most") >> 20
        );
        assert_eq!((count("refused"), count("errors"), count("sessions")), (0, 0, 0), "esx{host}");
        assert!(count("memory_most") <= 48 * MIB);
    }
    for number in 0..VMS {
        let name = format!("vm{number}");
        let disks = stage.sim.get(&format!("/disks?vm={name}")).unwrap();
        for disk in 0..2 {
            let live = disks[0]["disks"][disk]["live"].as_str().unwrap();
            assert_equal(&stage, "many", &name, disk, std::path::Path::new(live));
        }
        assert!(!stage.sim.vm(&name).unwrap()["snapshots"].to_string().contains("drover"), "{name}");
    }
}
