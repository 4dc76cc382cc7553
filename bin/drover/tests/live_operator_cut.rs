//! The line to the node of one of the operator's workers is cut at random moments, in a true Kubernetes of two nodes.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::kubernetes::{PODS, assert_holds};
use common::operated::Operated;
use common::{MIB, disk_file, vm};
use drover_lab::cluster::Volume;
use serde_json::json;

/// Moments of faults: others in each run, told, and the same with `DROVER_SEED`.
struct Moments(u64);

impl Moments {
    fn new() -> Moments {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed =
            std::env::var("DROVER_SEED").ok().map_or(since.as_millis() as u64, |it| it.parse().unwrap());
        println!("DROVER_SEED={seed}");
        Moments(seed | 1)
    }

    fn pass(&mut self, milliseconds_max: u64) {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        std::thread::sleep(Duration::from_millis(self.0 % milliseconds_max));
    }
}

#[test]
fn a_worker_that_is_cut_off_has_no_successor_beside_it() {
    let rounds = std::env::var("DROVER_PARTITION_ROUNDS").map_or(2, |it| it.parse().unwrap());
    let operated =
        Operated::new(161, |folder| vec![vm("web01", &[&disk_file(folder, "a", (rounds + 1) * 32 * MIB)])]);
    let Some(mut operated) = operated else { return };
    operated.landing.cluster.second_node().unwrap();
    // What writes the volume is on the first node, the worker on the second.
    let a = operated.landing.cluster.volume("v-a", Volume::Block, (rounds + 1) * 32 * MIB).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Shared, 64 * MIB).unwrap();
    let cordon = |is_cordoned: bool| operated.cordon("node-1", is_cordoned);
    let mut moments = Moments::new();
    cordon(true);
    operated.make(&operated.plan("slow", json!([{"name": "web01"}]), "1MiB"));
    for round in 0..rounds {
        operated.wait("a worker on the second node", || operated.node("web01") == "node-2");
        cordon(false);
        let seen = operated.done_bytes("web01");
        operated.moves("web01", seen);
        let pod = operated.worker("web01").unwrap();
        let epoch = |operated: &Operated| operated.migration("web01").unwrap()["status"]["epoch"].clone();
        let before = epoch(&operated);
        operated.landing.cluster.cut(true).unwrap();
        moments.pass(15_000);
        operated.remove(&format!("{PODS}/{pod}?gracePeriodSeconds=1"));
        moments.pass(20_000);
        operated.assert_alone();
        assert_eq!(epoch(&operated), before, "nobody knows that the first one ended: {}", operated.told());
        if round % 2 == 1 {
            // By force, which the Job's finalizer outlives: only without that one its name is gone, and a successor comes on the first
            // node while the other still runs.
            operated.remove(&format!("{PODS}/{pod}?gracePeriodSeconds=0"));
            moments.pass(5_000);
            operated.assert_alone();
            assert_eq!(epoch(&operated), before, "{}", operated.told());
            let freed = json!({"metadata": {"finalizers": null}});
            operated.landing.cluster.merge(&format!("{PODS}/{pod}"), &freed).unwrap();
            operated.wait("a successor", || operated.node("web01") == "node-1");
            moments.pass(20_000);
            operated.landing.cluster.cut(false).unwrap();
            let seen = operated.done_bytes("web01");
            operated.moves("web01", seen);
            // Back, for the next round.
            cordon(true);
            let pod = operated.worker("web01").unwrap();
            operated.remove(&format!("{PODS}/{pod}?gracePeriodSeconds=1"));
        } else {
            cordon(true);
            operated.landing.cluster.cut(false).unwrap();
            operated.wait("a successor", || epoch(&operated) != before);
        }
    }
    cordon(false);
    while operated.phase("web01") != "Done" {
        let seen = operated.done_bytes("web01");
        let is_farther = || operated.phase("web01") == "Done" || operated.done_bytes("web01") > seen;
        operated.wait("the copy goes on", is_farther);
    }
    assert_holds(&a, &operated.landing.stage.path("a"));
    assert_eq!(operated.migration("web01").unwrap()["status"]["roots"][0]["verified"], true);
}
