//! The simulator's pretended guest, as tests of warm migrations use it.
#![allow(clippy::unwrap_used)]

use drover_lab::Sim;
use serde_json::json;

#[test]
fn a_guest_that_was_stopped_leaves_disks_whose_hashes_stay() {
    if Sim::program().is_none() {
        println!("skipped: the vSphere simulator is not built; run `make lab`");
        return;
    }
    let work = std::env::temp_dir().join(format!("drover-lab-writer-{}", std::process::id()));
    let vm = json!({"name": "web", "power": "on", "disks": [{"capacity": "4MiB"}, {"capacity": "1MiB"}]});
    let sim = Sim::start(&json!({"vms": [vm]}), &work).unwrap();
    let before = sim.disk_hashes("web").unwrap();
    sim.post("/writer", json!({"vm": "web", "disk": 0, "bytes_per_s": 4_000_000})).unwrap();
    while sim.disk_hashes("web").unwrap()[0] == before[0] {}
    assert!(sim.stop_writer("web").unwrap() > 0);
    let after = sim.disk_hashes("web").unwrap();
    assert!(after[0] != before[0] && after[1] == before[1]);
    assert_eq!(sim.disk_hashes("web").unwrap(), after);
    assert!(sim.disk_hashes("nobody").is_err());
    drop(sim);
    std::fs::remove_dir_all(&work).unwrap();
}
