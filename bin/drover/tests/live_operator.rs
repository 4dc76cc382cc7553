//! `drover operator` in a true Kubernetes whose pods run, installed from `deploy/` (by its chart) with the rights that it asks for there: VMs of the
//! simulator become machines of the cluster by Jobs. KubeVirt's controllers are played by the lab.
#![allow(clippy::unwrap_used)]

use std::process::Stdio;
use std::time::Duration;

use drover_lab::cluster::{CLASS, Volume};
use drover_lab::{PASSWORD, chart};
use drover_stage::kubernetes::{CLAIMS, MACHINES, NAMESPACE, PODS, SECRETS, assert_holds};
use drover_stage::operated::{DEPLOYMENT, JOBS, LOCKS, OWN, Operated, condition, process_of};
use drover_stage::{MIB, disk_file, vm, with};
use serde_json::{Value, json};

#[test]
fn vms_of_a_plan_arrive_whoever_dies_on_the_way_and_none_gets_a_second_migration() {
    let operated = Operated::new(151, |folder| {
        vec![
            vm("web01", &[&disk_file(folder, "a", 96 * MIB)]),
            vm("db01", &[&disk_file(folder, "b", 8 * MIB)]),
        ]
    });
    let Some(mut operated) = operated else { return };
    let a = operated.landing.cluster.volume("v-a", Volume::Block, 96 * MIB).unwrap();
    let b = operated.landing.cluster.volume("v-b", Volume::Block, 8 * MIB).unwrap();
    for state in ["s-a", "s-b"] {
        operated.landing.cluster.volume(state, Volume::Folder, 64 * MIB).unwrap();
    }
    operated.source_gives(2 * MIB);
    let plan = operated.plan("first", json!([{"name": "web01"}, {"name": "db01"}]), "64MiB");
    operated.make(&plan);
    operated.moves("web01", 0);

    operated.wait("the node finds the operator ready", || {
        let deployment = operated.landing.cluster.get(DEPLOYMENT).unwrap().unwrap_or_default();
        deployment["status"]["readyReplicas"] == 1
    });

    let forecast = || operated.migration("web01").unwrap()["status"]["forecast"].clone();
    operated.wait("its arrival is foreseen", || forecast()["p50"].is_string());
    let foreseen =
        ["at", "p10", "p50", "p90"].map(|key| forecast()[key].as_str().unwrap_or_default().to_string());
    assert!(foreseen.is_sorted() && foreseen[0] < foreseen[2], "{foreseen:?}");
    operated.wait("the plan's, too", || {
        let plan = operated.landing.cluster.get(&format!("{OWN}/plans/first")).unwrap().unwrap();
        plan["status"]["forecast"]["p50"].is_string()
    });
    let text = operated.says(&["status", "web01"]);
    assert!(text.contains("web01: foreseen for "), "{text}");

    // The worker's pod dies: another goes on.
    let pod = operated.worker("web01").unwrap();
    operated.remove(&format!("{PODS}/{pod}?gracePeriodSeconds=1"));
    let seen = operated.done_bytes("web01");
    operated.wait("another worker", || operated.worker("web01").is_some_and(|it| it != pod));
    operated.moves("web01", seen);

    // The operator dies.
    let leaders = operated.items(&format!("{PODS}?labelSelector=app.kubernetes.io%2Fname%3Ddrover-operator"));
    let leader = leaders[0]["metadata"]["name"].as_str().unwrap().to_string();
    operated.remove(&format!("{PODS}/{leader}?gracePeriodSeconds=0"));
    let seen = operated.done_bytes("web01");
    operated.moves("web01", seen);
    let epoch = operated.migration("web01").unwrap()["status"]["epoch"].as_u64().unwrap();
    assert!(epoch >= 2, "{epoch}");

    // Its Job is removed.
    let job = operated.migration("web01").unwrap()["status"]["job"]["name"].as_str().unwrap().to_string();
    operated.remove(&format!("{JOBS}/{job}?propagationPolicy=Background"));
    operated.wait("its worker goes", || operated.migration("web01").unwrap()["status"]["job"]["name"] != job);
    operated.source_gives(0);
    for name in ["web01", "db01"] {
        operated.wait("it arrives", || operated.phase(name) == "Done");
    }
    assert_holds(&a, &operated.landing.stage.path("a"));
    assert_holds(&b, &operated.landing.stage.path("b"));
    let web = operated.migration("web01").unwrap();
    assert!(web["status"]["epoch"].as_u64().unwrap() > epoch, "{}", operated.told());
    assert_eq!(condition(&web, "Arrived")["status"], "True");
    assert_eq!(condition(&web, "CleanedUp")["status"], "True");
    assert_eq!(web["status"]["progress"]["percent"], 100);
    assert!(web["status"]["forecast"].is_null(), "{:#}", web["status"]);
    let measured = &web["status"]["measured"];
    assert!(measured["readBytes"].as_u64() > Some(0) && measured["disks"] == 1, "{measured:#}");
    assert_eq!(web["status"]["roots"][0]["verified"], true, "{:#}", web["status"]);
    assert_eq!(operated.landing.names(MACHINES), ["db01", "web01"]);
    let plans = operated.landing.cluster.get(&format!("{OWN}/plans/first"));
    operated.wait("the plan is summed up", || {
        operated.landing.cluster.get(&format!("{OWN}/plans/first")).unwrap().unwrap()["status"]["done"] == 2
    });
    assert_eq!(condition(&plans.unwrap().unwrap(), "Resolved")["status"], "True");

    // Another plan, another name: the same VM.
    operated.make(&operated.plan("second", json!([{"name": "web01", "target_name": "other"}]), "64MiB"));
    let edited =
        json!({"spec": {"plan": {"vms": [{"name": "web01", "target_name": "third"}, {"name": "db01"}]}}});
    operated.landing.cluster.merge(&format!("{OWN}/plans/first"), &edited).unwrap();
    operated.wait("both are laid over the source", || {
        ["first", "second"].iter().all(|name| {
            let plan = operated.landing.cluster.get(&format!("{OWN}/plans/{name}")).unwrap().unwrap();
            plan["status"]["resolvedGeneration"] == plan["metadata"]["generation"]
        })
    });
    assert_eq!(operated.items(&format!("{OWN}/migrations")).len(), 2);
    let second = operated.landing.cluster.get(&format!("{OWN}/plans/second")).unwrap().unwrap();
    assert_eq!(second["status"]["refused"][0]["vm"], "web01", "{second:#}");
    assert_eq!(condition(&second, "Complete")["reason"], "VmsRefused");
    assert_eq!(operated.landing.names(MACHINES), ["db01", "web01"]);
}

#[test]
fn a_cancel_leaves_nothing_and_a_removed_migration_is_undone() {
    let operated = Operated::new(152, |folder| vec![vm("web01", &[&disk_file(folder, "a", 64 * MIB)])]);
    let Some(mut operated) = operated else { return };
    operated.landing.cluster.volume("v-a", Volume::Block, 64 * MIB).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Folder, 64 * MIB).unwrap();
    let before = operated.landing.stage.source_state();
    operated.make(&operated.plan("slow", json!([{"name": "web01"}]), "2MiB"));
    operated.moves("web01", 0);
    let name = operated.migration("web01").unwrap()["metadata"]["name"].as_str().unwrap().to_string();
    let path = format!("{OWN}/migrations/{name}");
    assert_eq!(operated.landing.names(LOCKS).len(), 1);
    let text = operated.says(&["status"]);
    assert!(text.contains("web01  slow  Running") && text.contains("Resolved"), "{text}");
    let lines = operated.says(&["logs", "web01", "--tail", "200"]);
    assert!(lines.lines().any(|line| line.contains("\"event\":")), "{lines}");
    assert!(lines.contains("worker pod vms/web01-drover is reached at its address"), "{lines}");
    let refused = operated.kubectl(&["cutover", "web01"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(3), "a cold VM has no cutover: {refused:?}");
    operated.says(&["cancel", &name]);
    operated.wait("it is undone", || operated.phase("web01") == "Cancelled");
    assert_eq!(operated.condition("web01", "CleanedUp")["status"], "True");
    let rest = |operated: &Operated| {
        let left = [CLAIMS, JOBS, MACHINES, LOCKS].iter().flat_map(|path| operated.landing.names(path));
        left.collect::<Vec<_>>()
    };
    operated.wait("nothing is left", || rest(&operated).is_empty());
    assert_eq!(operated.landing.names(SECRETS), ["vcenter"]);
    assert_eq!(operated.landing.stage.source_state(), before, "the source is as it was");

    // An edit elsewhere does not bring it back; removed, it is made anew by its plan.
    let edited = json!({"spec": {"plan": {"target": {"rate_limit": ["3MiB"]}}}});
    operated.landing.cluster.merge(&format!("{OWN}/plans/slow"), &edited).unwrap();
    operated.wait("it is laid over the source", || {
        let plan = operated.landing.cluster.get(&format!("{OWN}/plans/slow")).unwrap().unwrap();
        plan["status"]["resolvedGeneration"] == 2
    });
    assert_eq!(operated.phase("web01"), "Cancelled");
    assert!(rest(&operated).is_empty());
    let uid = |it: &Value| it["metadata"]["uid"].clone();
    let cancelled = operated.migration("web01").as_ref().map(uid);
    operated.remove(&path);
    operated.wait("it is made anew", || {
        let now = operated.migration("web01").as_ref().map(uid);
        now.is_some() && now != cancelled
    });
    operated.moves("web01", 0);

    // Removed while it moves, it is undone first: also when its plan is gone, and its provider was made again.
    operated.remove(&format!("{OWN}/plans/slow"));
    operated.remove(&format!("{OWN}/providers/vcenter"));
    operated.make_provider(NAMESPACE);
    operated.remove(&path);
    operated.wait("it goes when it is undone", || operated.migration("web01").is_none());
    operated.wait("nothing is left", || rest(&operated).is_empty());
    assert_eq!(operated.landing.names(SECRETS), ["vcenter"]);
    assert_eq!(operated.landing.stage.source_state(), before);
}

#[test]
fn a_warm_vm_in_a_file_system_moves_over_when_kubectl_asks_for_it() {
    let operated = Operated::new(164, |folder| {
        let web = vm("web01", &[&disk_file(folder, "a", 8 * MIB)]);
        vec![with(web, json!({"power": "on"}))]
    });
    let Some(mut operated) = operated else { return };
    let a = operated.landing.cluster.volume("v-a", Volume::Folder, 128 * MIB).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Folder, 64 * MIB).unwrap();
    // The plan file of `drover migrate`, but for the address at which pods find the source.
    let port = operated.landing.stage.sim.port;
    let (hosts, own) =
        (format!("    from: hosts\n    port: {port}\n"), format!("endpoint: 127.0.0.1:{port}"));
    // The cutover is manual, as it is unless a plan says another.
    let warm = "mode: warm\nwarm: {interval: 1s}\nwaves: [{name: all, vms: [{glob: 'web*'}], until: 2099-01-01T00:00:00Z, if_failed: go_on}]";
    let there = format!("endpoint: {}", operated.address);
    let edits = [
        ("mode: cold", warm),
        (hosts.as_str(), "    from: provider\n"),
        ("  image_pull", "  volume_mode: filesystem\n  image_pull"),
        (own.as_str(), there.as_str()),
    ];
    let apply = |edits: &[(&str, &str)]| {
        let plan = operated.landing.plan("warm", edits);
        operated.landing.stage.run(&["plan", "apply", &plan, "--kube", "--provider", "other"])
    };
    let applied = apply(&edits);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let refused = apply(&edits[..3]);
    assert!(refused.code == Some(3) && refused.err.contains("the Provider other is of"), "{refused:?}");
    operated.moves("web01", 0);
    assert_eq!(operated.landing.stage.sim.vm("web01").unwrap()["power"], "poweredOn");
    // Its worker has its own wave alone.
    let spec = operated.migration("web01").unwrap()["spec"].clone();
    let wave = json!([{"name": "all", "vms": [{"id": spec["vm"]["id"]}], "until": "2099-01-01T00:00:00Z"}]);
    assert_eq!((&spec["wave"], &spec["plan"]["waves"]), (&json!("all"), &wave));
    let mut watching = operated.kubectl(&["status", "--plan", "warm", "--watch", "--json"]);
    let watching = watching.stdout(Stdio::piped()).spawn().unwrap();
    operated.says(&["cutover", "--plan", "warm"]);
    operated.wait("it arrives", || operated.phase("web01") == "Done");
    assert_holds(&a.join("disk.img"), &operated.landing.stage.path("a"));
    assert_eq!(operated.landing.stage.sim.vm("web01").unwrap()["power"], "poweredOff");
    // It ends by itself.
    let seen = watching.wait_with_output().unwrap();
    let last = String::from_utf8_lossy(&seen.stdout).lines().last().unwrap_or_default().to_string();
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!((seen.status.code(), &last["phase"], &last["vm"]), (Some(0), &json!("Done"), &json!("web01")));
}

#[test]
fn edits_while_a_vm_is_copied_change_others_and_stop_nothing() {
    let operated = Operated::with_options(158, &["--keep-done", "2s"], |folder| {
        let warm = vm("warm01", &[&disk_file(folder, "c", 24 * MIB)]);
        vec![
            vm("web01", &[&disk_file(folder, "a", 64 * MIB)]),
            vm("db01", &[&disk_file(folder, "b", 8 * MIB)]),
            with(warm, json!({"power": "on"})),
            vm("cold01", &[&disk_file(folder, "d", 4 * MIB)]),
            vm("bad01", &[&disk_file(folder, "e", 2 * MIB)]),
        ]
    });
    let Some(mut operated) = operated else { return };
    let a = operated.landing.cluster.volume("v-a", Volume::Block, 64 * MIB).unwrap();
    let b = operated.landing.cluster.volume("v-b", Volume::Block, 8 * MIB).unwrap();
    for state in ["s-a", "s-b"] {
        operated.landing.cluster.volume(state, Volume::Folder, 64 * MIB).unwrap();
    }
    operated.source_gives(2 * MIB);
    operated.make(&operated.plan("first", json!([{"name": "web01"}]), "64MiB"));
    operated.moves("web01", 0);
    let cluster = &operated.landing.cluster;
    let name = operated.migration("web01").unwrap()["metadata"]["name"].as_str().unwrap().to_string();
    for edit in [json!({"plan": {"vms": [{"glob": "*"}]}}), json!({"targetName": "another"})] {
        let refused = cluster.merge(&format!("{OWN}/migrations/{name}"), &json!({"spec": edit})).unwrap_err();
        assert!(refused.to_string().contains("has begun"), "{refused}");
    }

    // The plan gets another VM, and the provider's spec changes.
    let edited = json!({"spec": {"plan": {"vms": [{"name": "web01"}, {"name": "db01"}]}}});
    cluster.merge(&format!("{OWN}/plans/first"), &edited).unwrap();
    operated.wait("the other VM gets its turn", || operated.migration("db01").is_some());
    let thumbprint = operated.landing.stage.sim.thumbprint.to_lowercase();
    let edited = json!({"spec": {"thumbprint": thumbprint}});
    cluster.merge(&format!("{OWN}/providers/vcenter"), &edited).unwrap();
    let pod = operated.worker("web01").unwrap();
    operated.remove(&format!("{PODS}/{pod}?gracePeriodSeconds=1"));
    let seen = operated.done_bytes("web01");
    operated.wait("another worker", || operated.worker("web01").is_some_and(|it| it != pod));
    operated.moves("web01", seen);
    operated.wait("it is laid over both as they are", || {
        let plan = cluster.get(&format!("{OWN}/plans/first")).unwrap().unwrap();
        let provider = cluster.get(&format!("{OWN}/providers/vcenter")).unwrap().unwrap();
        plan["status"]["provider"]["generation"] == provider["metadata"]["generation"]
    });
    operated.source_gives(0);
    for name in ["db01", "web01"] {
        operated.wait("it arrives", || operated.phase(name) == "Done");
    }
    assert_holds(&a, &operated.landing.stage.path("a"));
    assert_holds(&b, &operated.landing.stage.path("b"));
    // No pod names it any more: the one that was removed left none, and those that were done go soon here.
    operated.wait("no state is kept", || {
        operated.landing.names(CLAIMS).iter().all(|name| !name.ends_with("-state"))
    });
    a_wave_that_stops_holds_the_next_one_until_somebody_lets_that_go_on(&mut operated);
}

/// A VM of the first wave fails, since its state volume has the state of another, while a worker copies a warm one of the next wave: this one
/// does not move over, and another does not begin.
fn a_wave_that_stops_holds_the_next_one_until_somebody_lets_that_go_on(operated: &mut Operated) {
    let warm = operated.landing.cluster.volume("v-warm", Volume::Block, 24 * MIB).unwrap();
    let cold = operated.landing.cluster.volume("v-cold", Volume::Block, 4 * MIB).unwrap();
    let cutover = json!({"interval": "1s", "cutover": "auto"});
    let rest = json!({"name": "warm01", "wave": "rest", "mode": "warm", "warm": cutover});
    let mut plan = operated.plan("waves", json!([rest]), "64MiB");
    plan["spec"]["plan"]["waves"] = json!([{"name": "rest"}]);
    // Its first pass is not over before the wave before its own is there.
    operated.source_gives(MIB);
    operated.make(&plan);
    operated.moves("warm01", 0);
    // Of those that fit a claim gets the smallest: this one is the next one's.
    let state = operated.landing.cluster.volume("s-bad", Volume::Folder, 32 * MIB).unwrap();
    std::fs::write(state.join("drover.migration"), "of another").unwrap();
    operated.wait("it can be claimed", || {
        let volume = operated.landing.cluster.get("/api/v1/persistentvolumes/s-bad").unwrap().unwrap();
        volume["status"]["phase"] == "Available"
    });
    let edited = json!({"spec": {"plan": {
        "waves": [{"name": "pilot", "if_failed": "stop"}, {"name": "rest", "after": ["pilot"]}],
        "vms": [{"name": "bad01", "wave": "pilot"}, rest, {"name": "cold01", "wave": "rest"}],
    }}});
    operated.landing.cluster.merge(&format!("{OWN}/plans/waves"), &edited).unwrap();
    let reason = |vm: &str| operated.condition(vm, "Arrived")["reason"].clone();
    operated.wait("a VM of the first wave fails", || operated.phase("bad01") == "Failed");
    assert_eq!(reason("bad01"), "StateLost", "{}", operated.told());
    operated.wait("the next wave is stopped", || {
        ["warm01", "cold01"].iter().all(|vm| reason(vm) == "WaveStopped")
    });
    operated.source_gives(0);
    operated.wait("the warm one would move over", || {
        operated.migration("warm01").unwrap()["status"]["worker"]["asksCutover"] == true
    });
    // Who would let it, and begin the other, has had time for that.
    std::thread::sleep(Duration::from_secs(3));
    let told = operated.migration("warm01").unwrap();
    assert_eq!(told["status"]["phase"], "Running", "{:#}", told["status"]);
    assert!(told["status"]["cutoverEpoch"].is_null(), "{:#}", told["status"]);
    let message = operated.condition("warm01", "Arrived")["message"].to_string();
    assert!(message.contains("does not move over: VMs of wave pilot failed"), "{message}");
    assert_eq!(operated.landing.stage.sim.vm("warm01").unwrap()["power"], "poweredOn");
    let told = operated.migration("cold01").unwrap();
    assert_eq!(told["status"]["phase"], "Failed", "{:#}", told["status"]);
    assert!(told["status"]["begun"] != true && told["status"]["claim"].is_null(), "{:#}", told["status"]);

    // The Plan says why, an event does, and `kubectl drover status`.
    let path = format!("{OWN}/plans/waves");
    let held = || condition(&operated.landing.cluster.get(&path).unwrap().unwrap(), "WavesHeld");
    operated.wait("its Plan tells", || held()["status"] == "True");
    let words = "1 VM of wave pilot failed (bad01), and the waves after it do not begin (rest)";
    let told = held();
    assert!(told["reason"] == "WaveStopped" && told["message"].to_string().contains(words), "{told:#}");
    operated.wait("an event says it", || {
        let events = operated.items("/api/v1/namespaces/vms/events");
        let of_plan = events.iter().filter(|it| it["involvedObject"]["name"] == "waves");
        of_plan.filter(|it| it["reason"] == "WaveStopped").any(|it| it["message"].to_string().contains(words))
    });
    let text = operated.says(&["status", "--plan", "waves"]);
    assert!(text.contains("`kubectl drover proceed waves pilot`"), "{text}");

    let text = operated.says(&["proceed", "waves"]);
    assert!(text.contains("whatever of wave pilot failed, these go on: rest"), "{text}");
    for (vm, volume, disk) in [("warm01", &warm, "c"), ("cold01", &cold, "d")] {
        operated.wait("it arrives", || operated.phase(vm) == "Done");
        assert_holds(volume, &operated.landing.stage.path(disk));
    }
    assert_eq!(operated.landing.stage.sim.vm("warm01").unwrap()["power"], "poweredOff");
    assert_eq!(reason("bad01"), "StateLost");
    operated.wait("no wave is held", || held()["status"] == "False");
}

#[test]
fn a_drain_and_an_api_server_that_is_away_lose_nothing() {
    // A worker copies on while the API server is away: there has to be something left for the one after the drain.
    const DISK: u64 = 192 * MIB;
    let operated = Operated::new(160, |folder| vec![vm("web01", &[&disk_file(folder, "a", DISK)])]);
    let Some(mut operated) = operated else { return };
    let a = operated.landing.cluster.volume("v-a", Volume::Block, DISK).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Folder, 64 * MIB).unwrap();
    operated.source_gives(3 * MIB / 2);
    operated.make(&operated.plan("slow", json!([{"name": "web01"}]), "64MiB"));
    operated.moves("web01", 0);
    let cluster = &operated.landing.cluster;
    cluster.without_api(Duration::from_secs(30)).unwrap();
    let seen = operated.done_bytes("web01");
    operated.moves("web01", seen);

    // A drain: the node takes no pods any more, and the worker's and its agent's are evicted.
    let failures = operated.migration("web01").unwrap()["status"]["failures"].clone();
    operated.cordon("node-1", true);
    let pod = operated.worker("web01").unwrap();
    for pod in [pod.as_str(), "web01-drover"] {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}});
        cluster.make(&format!("{PODS}/{pod}/eviction"), &eviction).unwrap();
    }
    operated.wait("its worker waits for a node", || {
        let job = operated.migration("web01").unwrap()["status"]["job"]["name"].clone();
        let pods = operated.items(PODS);
        pods.iter().any(|it| {
            it["metadata"]["labels"]["batch.kubernetes.io/job-name"] == job
                && it["metadata"]["name"] != pod.as_str()
                && it["status"]["phase"] == "Pending"
        })
    });
    assert_eq!(operated.migration("web01").unwrap()["status"]["failures"], failures, "a drain is none");
    let seen = operated.done_bytes("web01");
    operated.cordon("node-1", false);
    operated.moves("web01", seen);
    operated.source_gives(0);
    operated.wait("it arrives", || operated.phase("web01") == "Done");
    assert_holds(&a, &operated.landing.stage.path("a"));
    assert_eq!(operated.migration("web01").unwrap()["status"]["roots"][0]["verified"], true);
}

#[test]
fn a_vm_that_another_namespace_moves_is_left_alone() {
    let operated = Operated::new(159, |folder| vec![vm("web01", &[&disk_file(folder, "a", 64 * MIB)])]);
    let Some(mut operated) = operated else { return };
    let other = "/apis/drover.dev/v1alpha1/namespaces/other";
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    operated.landing.cluster.make("/api/v1/namespaces", &namespace).unwrap();
    // Its states fit the last volume alone.
    operated.install("other", "200Mi");
    operated.source_gives(MIB);
    let plan = operated.plan("slow", json!([{"name": "web01"}]), "64MiB");
    operated.landing.cluster.make(&format!("{other}/plans"), &plan).unwrap();
    let second = |operated: &Operated| operated.items(&format!("{other}/migrations")).into_iter().next();
    operated.wait("it is laid out there, and waits for its claim", || {
        second(&operated).is_some_and(|it| !it["status"]["job"].is_null())
    });
    let a = operated.landing.cluster.volume("v-a", Volume::Block, 64 * MIB).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Folder, 64 * MIB).unwrap();
    operated.make(&plan);
    operated.moves("web01", 0);
    // A plan with other VMs besides is not refused because of it.
    let all = operated.plan("all", json!([{"glob": "*"}]), "64MiB");
    operated.landing.cluster.make(&format!("{other}/plans"), &all).unwrap();
    let all = || operated.landing.cluster.get(&format!("{other}/plans/all")).unwrap().unwrap();
    operated.wait("it is laid over the source there", || !condition(&all(), "Resolved").is_null());
    assert_eq!(condition(&all(), "Resolved")["status"], "True", "{:#}", all()["status"]);
    assert_eq!(operated.phase("web01"), "Running");
    operated.landing.cluster.volume("s-b", Volume::Folder, 256 * MIB).unwrap();
    operated.wait("the second is refused", || {
        let arrived = condition(&second(&operated).unwrap(), "Arrived");
        arrived["message"].as_str().is_some_and(|message| message.contains("snapshot"))
    });
    let refused = second(&operated).unwrap();
    assert_ne!(refused["status"]["begun"], true, "{:#}", refused["status"]);
    assert_ne!(operated.phase("web01"), "Done", "the first one still copied then");
    operated.source_gives(0);
    operated.wait("the first arrives", || operated.phase("web01") == "Done");
    assert_holds(&a, &operated.landing.stage.path("a"));

    // The source has no trace of it any more. What forbids the second one to begin stays also when the first one's Migration is gone.
    let path = |it: &Value| format!("{other}/migrations/{}", it["metadata"]["name"].as_str().unwrap());
    let epoch = second(&operated).unwrap()["status"]["epoch"].clone();
    for word in ["arrived", "gone"] {
        let it = second(&operated).unwrap();
        let again = json!({"metadata": {"annotations": {"drover.dev/retry": word}}});
        operated.landing.cluster.merge(&path(&it), &again).unwrap();
        operated.wait("the second looks, and is refused", || {
            let it = second(&operated).unwrap();
            it["status"]["retried"] == word && condition(&it, "Arrived")["reason"] == "MovedElsewhere"
        });
        let it = second(&operated).unwrap();
        let message = condition(&it, "Arrived")["message"].to_string();
        assert!(message.contains("Migration vms/vm-"), "{message}");
        assert!(it["status"]["begun"] != true && it["status"]["job"].is_null(), "{:#}", it["status"]);
        assert_eq!(it["status"]["epoch"], epoch, "no worker was made");
        if word == "arrived" {
            operated.remove(&format!("{OWN}/plans/slow"));
            operated.remove(&format!("{OWN}/migrations"));
            operated.wait("the first goes", || operated.items(&format!("{OWN}/migrations")).is_empty());
        }
    }
    operated.remove(&format!("{other}/plans"));
    operated.wait("it goes with its plan", || second(&operated).is_none());
    assert_eq!(operated.landing.names(LOCKS).len(), 1, "it has arrived");
    assert!(operated.items(&MACHINES.replace("/vms/", "/other/")).is_empty());
}

#[test]
fn a_worker_whose_lock_is_removed_stops_and_leaves_the_vm_to_whom_it_is() {
    // A worker copies on until it notices.
    const DISK: u64 = 160 * MIB;
    let operated = Operated::new(162, |folder| {
        let web = vm("web01", &[&disk_file(folder, "a", DISK)]);
        vec![with(web, json!({"power": "on"}))]
    });
    let Some(mut operated) = operated else { return };
    let a = operated.landing.cluster.volume("v-a", Volume::Block, DISK).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Folder, 64 * MIB).unwrap();
    operated.source_gives(MIB);
    operated.make(&operated.plan("slow", json!([{"name": "web01"}]), "64MiB"));
    operated.moves("web01", 0);
    let name = operated.landing.names(LOCKS).remove(0);
    let lock = format!("{LOCKS}/{name}");
    operated.remove(&lock);
    let others = json!({"apiVersion": "drover.dev/v1alpha1", "kind": "VmLock", "metadata": {"name": name},
        "spec": {"migration": {"namespace": "other", "name": "vm", "uid": "u"}, "vm": "web01"}});
    operated.landing.cluster.make(LOCKS, &others).unwrap();
    let mut has_stopped = false;
    operated.wait("its worker stops, and the next one begins nothing", || {
        let arrived = operated.condition("web01", "Arrived");
        has_stopped |= arrived["reason"] == "VmLockLost";
        has_stopped && arrived["reason"] == "MovedElsewhere"
    });
    let source = |operated: &Operated| operated.landing.stage.sim.vm("web01").unwrap();
    assert_eq!(source(&operated)["power"], "poweredOn", "the guest runs at the source");
    let message = operated.condition("web01", "Arrived")["message"].to_string();
    assert!(message.contains("Migration other/vm"), "{message}");
    let it = operated.migration("web01").unwrap();
    assert_eq!(it["status"]["outages"], 1, "{:#}", it["status"]);
    assert!(operated.done_bytes("web01") < DISK, "{}", operated.told());

    // The other one gives it back.
    operated.source_gives(0);
    operated.remove(&lock);
    let again = json!({"metadata": {"annotations": {"drover.dev/retry": "free"}}});
    let path = format!("{OWN}/migrations/{}", it["metadata"]["name"].as_str().unwrap());
    operated.landing.cluster.merge(&path, &again).unwrap();
    operated.wait("it arrives", || operated.phase("web01") == "Done");
    assert_holds(&a, &operated.landing.stage.path("a"));
    let lock = operated.landing.cluster.get(&lock).unwrap().unwrap();
    assert_eq!(lock["spec"]["migration"]["uid"], it["metadata"]["uid"]);
}

/// Kills it, so that it says no more.
fn kill(pod: &Value) {
    let process = process_of(pod).unwrap();
    assert!(std::process::Command::new("kill").args(["-KILL", &process]).status().unwrap().success());
}

/// Some 90 s.
#[test]
#[ignore = "soak"]
fn a_guest_that_dead_workers_left_off_is_switched_on_again_and_moves_when_that_is_asked_for() {
    let operated = Operated::new(163, |folder| {
        let web = vm("web01", &[&disk_file(folder, "a", 64 * MIB)]);
        vec![with(web, json!({"power": "on"}))]
    });
    let Some(mut operated) = operated else { return };
    let a = operated.landing.cluster.volume("v-a", Volume::Block, 64 * MIB).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Folder, 64 * MIB).unwrap();
    operated.make(&operated.plan("slow", json!([{"name": "web01"}]), "1MiB"));
    let status = |operated: &Operated| operated.migration("web01").unwrap()["status"].clone();
    let power = |operated: &Operated| operated.landing.stage.sim.vm("web01").unwrap()["power"].clone();
    for outages in 1..=3 {
        let seen = operated.done_bytes("web01");
        operated.moves("web01", seen);
        assert_eq!(
            (&status(&operated)["worker"]["outage"], power(&operated)),
            (&json!(true), json!("poweredOff"))
        );
        let pod = operated.worker("web01").unwrap();
        kill(&operated.landing.cluster.get(&format!("{PODS}/{pod}")).unwrap().unwrap());
        operated.wait("that counts", || status(&operated)["outages"] == outages);
        assert_eq!(status(&operated)["guestOff"], true);
    }
    operated.wait("it is switched on", || operated.condition("web01", "GuestOn")["status"] == "True");
    assert_eq!(power(&operated), "poweredOn");
    let failed = status(&operated);
    assert_eq!((&failed["phase"], &failed["guestOff"]), (&json!("Failed"), &json!(false)), "{failed:#}");
    assert_eq!(operated.condition("web01", "Arrived")["reason"], "TooManyOutages");
    let seen = operated.done_bytes("web01");
    assert!(seen > 0, "{failed:#}");

    let name = operated.migration("web01").unwrap()["metadata"]["name"].as_str().unwrap().to_string();
    let again = json!({"metadata": {"annotations": {"drover.dev/retry": "mended"}}});
    operated.landing.cluster.merge(&format!("{OWN}/migrations/{name}"), &again).unwrap();
    operated.wait("it arrives", || operated.phase("web01") == "Done");
    assert_holds(&a, &operated.landing.stage.path("a"));
    assert!(operated.condition("web01", "GuestOn").is_null());
}

#[test]
fn what_is_wrong_is_told_by_conditions_and_mended_by_edits() {
    let operated = Operated::new(153, |folder| {
        let (b, c) = (disk_file(folder, "b", 4 * MIB), disk_file(folder, "c", 4 * MIB));
        vec![
            vm("web01", &[&disk_file(folder, "a", 4 * MIB)]),
            with(vm("db01", &[&b, &c]), json!({"power": "on"})),
        ]
    });
    let Some(mut operated) = operated else { return };
    let a = operated.landing.cluster.volume("v-a", Volume::Block, 4 * MIB).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Folder, 64 * MIB).unwrap();
    let cluster = &operated.landing.cluster;
    // The schemas.
    let refused = |kind: &str, object: &Value, word: &str| {
        let error = cluster.make(&format!("{OWN}/{kind}"), object).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
    };
    let mut wrong = operated.plan("wrong", json!([{"name": "web01"}]), "64MiB");
    wrong["spec"]["plan"]["target"]["type"] = json!("qemu");
    refused("plans", &wrong, "Unsupported value");
    refused("plans", &operated.plan("wrong", json!([]), "64MiB"), "spec.plan.vms");
    let both = json!({"apiVersion": "drover.dev/v1alpha1", "kind": "Provider", "metadata": {"name": "both"},
        "spec": {"endpoint": "vc", "secretName": "s", "insecure": true, "thumbprint": "00"}});
    refused("providers", &both, "one of thumbprint");
    let pinned = json!({"name": "p", "uid": "u", "generation": 1});
    let misnamed = json!({"apiVersion": "drover.dev/v1alpha1", "kind": "Migration", "metadata": {"name": "mine"},
        "spec": {"planRef": pinned, "provider": pinned, "source": {"instanceUuid": "s"},
                 "vm": {"instanceUuid": "v", "id": "vm-1", "name": "web01"}, "targetName": "web01", "plan": {}}});
    refused("migrations", &misnamed, "instance UUIDs");

    // The plan, and the login.
    operated.make(&operated.plan("bad", json!([{"name": "web02"}]), "64MiB"));
    let plan = || cluster.get(&format!("{OWN}/plans/bad")).unwrap().unwrap();
    operated.wait("the misspelt VM is told", || condition(&plan(), "Resolved")["reason"] == "PlanHasErrors");
    let message = condition(&plan(), "Resolved")["message"].to_string();
    assert!(message.contains("there is no VM called 'web02'"), "{message}");
    let is_told = |event: &Value| {
        (&event["involvedObject"]["kind"], &event["reason"]) == (&json!("Plan"), &json!("PlanHasErrors"))
    };
    let events = || cluster.get("/api/v1/namespaces/vms/events").unwrap().unwrap();
    operated.wait("an event says it", || events()["items"].as_array().unwrap().iter().any(is_told));
    let edited =
        json!({"spec": {"plan": {"vms": [{"name": "web01"}], "target": {"namespace": "kube-system"}}}});
    cluster.merge(&format!("{OWN}/plans/bad"), &edited).unwrap();
    operated.wait("the foreign namespace is told", || {
        condition(&plan(), "Resolved")["reason"] == "PlanForbidden"
    });
    cluster.merge(&format!("{SECRETS}/vcenter"), &json!({"stringData": {"password": "wrong"}})).unwrap();
    // Somebody's claim of the name that the disk is to have.
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "web01-0"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": CLASS,
                 "resources": {"requests": {"storage": "1Mi"}}}});
    cluster.make(CLAIMS, &claim).unwrap();
    let edited = json!({"spec": {"plan": {"target": {"namespace": null, "storage_class": "fast"}}}});
    cluster.merge(&format!("{OWN}/plans/bad"), &edited).unwrap();
    operated.wait("the login is told", || condition(&plan(), "Resolved")["reason"] == "SourceAccess");
    let provider = cluster.get(&format!("{OWN}/providers/vcenter")).unwrap().unwrap();
    assert_eq!(condition(&provider, "Ready")["status"], "False", "{provider:#}");
    cluster.merge(&format!("{SECRETS}/vcenter"), &json!({"stringData": {"password": PASSWORD}})).unwrap();
    let told = |reason: &str| {
        operated.wait(reason, || operated.condition("web01", "Arrived")["reason"] == reason);
        let it = operated.migration("web01").unwrap();
        assert_ne!(it["status"]["begun"], true, "{reason}: {:#}", it["status"]);
        condition(&it, "Arrived")["message"].to_string()
    };
    // A worker may just be at it.
    let retry = || {
        let output = operated.kubectl(&["retry", "web01"]).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    };
    let message = told("StorageClassMissing");
    assert!(message.contains("no storage class fast"), "{message}");
    assert!(operated.says(&["status"]).contains("no storage class fast"));
    let edited = json!({"spec": {"plan": {"target": {"storage_class": CLASS}}}});
    cluster.merge(&format!("{OWN}/plans/bad"), &edited).unwrap();
    told("NameTaken");
    assert_eq!(operated.phase("web01"), "Retrying");

    // A KubeVirt of before v1, and the operator's own rights.
    serve_machines(&operated, false);
    retry();
    let message = told("KubeVirtMissing");
    assert!(message.contains("without virtual machines"), "{message}");
    serve_machines(&operated, true);
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/vms/roles/drover-operator";
    let all = cluster.get(path).unwrap().unwrap()["rules"].clone();
    let mut fewer = all.as_array().unwrap().clone();
    fewer.iter_mut().filter(|rule| rule["resources"][0] == "jobs").for_each(|rule| {
        rule["verbs"] = json!(["get", "list", "watch", "delete"]);
    });
    cluster.merge(path, &json!({"rules": fewer})).unwrap();
    retry();
    let message = told("WorkerRefused");
    assert!(message.contains("cannot create resource"), "{message}");
    cluster.merge(path, &json!({"rules": all})).unwrap();
    // Whatever changes has it look again before its half a minute is over.
    let name = operated.migration("web01").unwrap()["metadata"]["name"].as_str().unwrap().to_string();
    let touched = json!({"metadata": {"annotations": {"lab": "touched"}}});
    cluster.merge(&format!("{OWN}/migrations/{name}"), &touched).unwrap();
    told("NameTaken");

    // The workers' rights, and a quota that others have used up meanwhile.
    let role = "/apis/rbac.authorization.k8s.io/v1/namespaces/vms/roles/drover-worker";
    let all = cluster.get(role).unwrap().unwrap()["rules"].clone();
    let mut fewer = all.as_array().unwrap().clone();
    fewer.retain(|rule| rule["resources"][0] != "virtualmachines");
    assert_eq!(fewer.len() + 1, all.as_array().unwrap().len());
    cluster.merge(role, &json!({"rules": fewer})).unwrap();
    retry();
    let message = told("RightsMissing");
    assert!(message.contains("create virtualmachines"), "{message}");
    // What it failed of before can still be read.
    let failed = |job: &Value| {
        let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == "Failed" && it["status"] == "True")
    };
    operated.wait("three failed, and are kept", || {
        operated.items(JOBS).iter().filter(|it| failed(it)).count() == 3
    });
    let lines = operated.says(&["logs", "web01", "--failed"]);
    assert!(lines.contains("RightsMissing"), "{lines}");
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
        "spec": {"hard": {"persistentvolumeclaims": "1"}}});
    let quotas = "/api/v1/namespaces/vms/resourcequotas";
    cluster.make(quotas, &quota).unwrap();
    cluster.remove(&format!("{CLAIMS}/web01-0")).unwrap();
    operated.wait("the quota counts its state", || {
        let quota = cluster.get(&format!("{quotas}/small")).unwrap().unwrap();
        quota["status"]["used"]["persistentvolumeclaims"] == "1"
    });
    cluster.merge(role, &json!({"rules": all})).unwrap();
    retry();
    let message = told("QuotaExceeded");
    assert!(message.contains("quota small has 0 of persistentvolumeclaims left"), "{message}");

    // Locks are not served any more, as when deploy/crds.yaml is older than the operator.
    let migration = operated.migration("web01").unwrap();
    cluster.remove("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/vmlocks.drover.dev").unwrap();
    operated.wait("they are not served", || cluster.get(LOCKS).ok().flatten().is_none());
    let path = format!("{OWN}/migrations/{}", migration["metadata"]["name"].as_str().unwrap());
    operated.remove(&path);
    operated.wait("it goes, and the next one waits for locks", || {
        operated.migration("web01").is_some_and(|it| {
            it["metadata"]["uid"] != migration["metadata"]["uid"]
                && condition(&it, "Arrived")["reason"] == "VmLockRefused"
        })
    });
    let message = operated.condition("web01", "Arrived")["message"].to_string();
    assert!(message.contains("deploy/crds.yaml"), "{message}");
    assert!(operated.landing.names(JOBS).is_empty(), "they went with it");
    chart::install_resources(cluster, NAMESPACE).unwrap();
    cluster.remove(&format!("{quotas}/small")).unwrap();
    operated.wait("it arrives", || operated.phase("web01") == "Done");
    assert_holds(&a, &operated.landing.stage.path("a"));
    a_quota_that_is_used_up_in_the_middle_is_told_and_a_cancel_leaves_nothing(&mut operated);
}

/// Has the cluster serve machines as KubeVirt v1, or not.
fn serve_machines(operated: &Operated, is_served: bool) {
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/virtualmachines.kubevirt.io";
    let cluster = &operated.landing.cluster;
    let mut versions = cluster.get(crd).unwrap().unwrap()["spec"]["versions"].clone();
    let v1 = versions.as_array_mut().unwrap().iter_mut().find(|it| it["name"] == "v1").unwrap();
    v1["served"] = json!(is_served);
    cluster.merge(crd, &json!({"spec": {"versions": versions}})).unwrap();
    operated.wait("that counts", || {
        let list = cluster.get("/apis/kubevirt.io/v1").unwrap().unwrap_or_default();
        let names = list["resources"].as_array().cloned().unwrap_or_default();
        names.iter().any(|it| it["name"] == "virtualmachines") == is_served
    });
}

/// The first claim is made, and the second one is refused.
fn a_quota_that_is_used_up_in_the_middle_is_told_and_a_cancel_leaves_nothing(operated: &mut Operated) {
    for (name, kind, bytes) in
        [("v-b", Volume::Block, 4), ("v-c", Volume::Block, 4), ("s-b", Volume::Folder, 64)]
    {
        operated.landing.cluster.volume(name, kind, bytes * MIB).unwrap();
    }
    let all = || {
        let mut all = operated.landing.names(CLAIMS);
        all.extend(operated.landing.names(LOCKS));
        all
    };
    let (before, source) = (all(), operated.landing.stage.sim.vm("db01").unwrap());
    // The plan's check knows quotas of claims by their own name, not of objects: this one is the server's to judge, claim by claim.
    let claims = operated.landing.names(CLAIMS).len() + 2;
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "objects"},
        "spec": {"hard": {"count/persistentvolumeclaims": claims.to_string()}}});
    let quotas = "/api/v1/namespaces/vms/resourcequotas";
    operated.landing.cluster.make(quotas, &quota).unwrap();
    operated.wait("the quota counts", || {
        let quota = operated.landing.cluster.get(&format!("{quotas}/objects")).unwrap().unwrap();
        quota["status"]["used"].is_object()
    });
    operated.make(&operated.plan("two", json!([{"name": "db01"}]), "64MiB"));
    operated.wait("it is told", || operated.condition("db01", "Arrived")["reason"] == "QuotaExceeded");
    let it = operated.migration("db01").unwrap();
    let message = condition(&it, "Arrived")["message"].to_string();
    assert!(message.contains("exceeded quota: objects"), "{message}");
    assert_eq!(
        (&it["status"]["begun"], &it["status"]["outages"]),
        (&json!(true), &json!(1)),
        "{:#}",
        it["status"]
    );
    assert!(operated.landing.names(CLAIMS).contains(&"db01-0".to_string()), "in the middle");
    let now = operated.landing.stage.sim.vm("db01").unwrap();
    assert_eq!((&now["power"], &now["snapshots"]), (&source["power"], &source["snapshots"]));
    operated.says(&["cancel", "db01"]);
    operated.wait("it is undone", || operated.phase("db01") == "Cancelled");
    operated.wait("nothing is left", || all() == before);
    let now = operated.landing.stage.sim.vm("db01").unwrap();
    assert_eq!((&now["power"], &now["snapshots"]), (&source["power"], &source["snapshots"]));
    assert_eq!(operated.landing.names(MACHINES), ["web01"]);
}

#[test]
fn a_namespace_that_is_removed_is_gone() {
    let operated = Operated::new(154, |folder| vec![vm("web01", &[&disk_file(folder, "a", 64 * MIB)])]);
    let Some(mut operated) = operated else { return };
    operated.landing.cluster.volume("v-a", Volume::Block, 64 * MIB).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Folder, 64 * MIB).unwrap();
    operated.make(&operated.plan("slow", json!([{"name": "web01"}]), "2MiB"));
    operated.moves("web01", 0);
    // In the order of the docs: Plans and Migrations first, then the operator.
    operated.remove(&format!("{OWN}/plans/slow"));
    operated.remove(&format!("{OWN}/migrations"));
    operated.wait("all is undone", || operated.items(&format!("{OWN}/migrations")).is_empty());
    operated.remove(DEPLOYMENT);
    operated.remove("/api/v1/namespaces/vms");
    operated.wait("the namespace is gone", || {
        operated.landing.cluster.get("/api/v1/namespaces/vms").unwrap().is_none()
    });
}
