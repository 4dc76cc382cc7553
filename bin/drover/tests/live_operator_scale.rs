//! `drover operator` beside a true API server with many Migrations, whose workers are played: how long it takes until all had their turn, what
//! that costs the API server, and what the operator holds in memory. `make bench-operator` plays 5,000 of them.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_kubevirt::{Access, Change, Cluster, Seen};
use drover_lab::chart;
use drover_operator::model::{Conversion, DiskSize, MigrationSpec, Pinned, Size, SourceId, VmId, WarmSize};
use drover_operator::objects::{migration, migration_name};
use drover_operator::{EPOCH, MIGRATION};
use serde_json::{Value, json};

const OWN: &str = "/apis/drover.dev/v1alpha1/namespaces/vms";
const JOBS: &str = "/apis/batch/v1/namespaces/vms/jobs";
const SOURCE: &str = "0a1b2c3d-3d1c-0c4c-8b0e-9a6d1f1a2b3c";
/// Who makes them at once.
const MAKERS: usize = 4;
const HOSTS: usize = 50;
/// What VMs are called at the target whose workers the test plays itself.
const WARM: &str = "warm";
/// Requests for one Migration from its beginning to its end, at most.
const REQUESTS_MAX: f64 = 20.0;
/// Requests in 4 s of one that has nothing to do: its Lease, and what it sums up.
const REST_MAX: u64 = 6;
const RSS_MAX: u64 = 300 << 20;

/// An operator that runs beside the API server, as one who may all.
struct Operator {
    child: Child,
    port: u16,
}

impl Operator {
    fn start(kubeconfig: &Path, log: &Path) -> Operator {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let child = Command::new(env!("CARGO_BIN_EXE_drover"))
            .args(["operator", "--namespace", "vms", "--image", "localhost/drover:test", "--kubeconfig"])
            .arg(kubeconfig)
            .args(["--listen", &format!("127.0.0.1:{port}"), "--json"])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(log).unwrap())
            .spawn()
            .unwrap();
        Operator { child, port }
    }

    fn ask(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn is_ready(&self) -> bool {
        self.ask("/readyz").is_some_and(|text| text.starts_with("HTTP/1.1 200"))
    }

    /// A figure, by its name and labels.
    fn figure(&self, name: &str) -> u64 {
        let text = self.ask("/metrics").unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.trim().parse().unwrap())
    }

    fn in_phase(&self, phase: &str) -> u64 {
        self.figure(&format!("drover_operator_migrations{{phase=\"{phase}\"}}"))
    }

    /// The most memory that it held so far.
    fn rss_max(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}

impl Operator {
    /// Lets the next one lead at once.
    fn end(mut self) {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        self.child.wait().unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spec(number: usize, plan: &Pinned, provider: &Pinned) -> MigrationSpec {
    let name = format!("web{number:05}");
    let keys = json!({
        "target": {"type": "kubevirt", "storage_class": "fast", "namespace": "vms"}, "networks": {"*": "pod:masquerade"},
        "mode": "cold", "power_off": "shutdown", "start": true, "vms": [{"id": format!("vm-{number}"), "target_name": name}],
    });
    MigrationSpec {
        plan_ref: plan.clone(),
        provider: provider.clone(),
        source: SourceId { instance_uuid: SOURCE.into() },
        vm: VmId {
            instance_uuid: format!("5030a0e6-3d1c-0c4c-8b0e-{number:012x}"),
            id: format!("vm-{number}"),
            name: name.clone(),
        },
        target_name: name,
        size: Size {
            host: format!("host-{}", number % HOSTS),
            disks: vec![DiskSize {
                bytes: 40 << 30,
                datastore: format!("datastore-{}", number % 7),
                data: None,
            }],
            ..Size::default()
        },
        plan: keys,
        ..MigrationSpec::default()
    }
}

fn pinned(object: &Value) -> Pinned {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap().to_string();
    Pinned { name: text("name"), uid: text("uid"), generation: metadata["generation"].as_i64().unwrap() }
}

/// Makes a Plan that counts as laid over its Provider.
fn laid(kube: &Cluster, plan: &Value, provider: &Pinned) -> Pinned {
    let plan = pinned(&kube.create(&format!("{OWN}/plans"), plan, false).unwrap());
    let path = format!("{OWN}/plans/{}", plan.name);
    let status = json!({"status": {"observedGeneration": 1, "resolvedGeneration": 1, "provider": provider}});
    // An operator that saw it before writes that it cannot lay it, once.
    let mut stands = 0;
    while stands < 10 {
        if kube.get(&path).unwrap().unwrap()["status"]["resolvedGeneration"] == 1 {
            stands += 1;
        } else {
            kube.change(&format!("{path}/status"), Change::Merge, &status).unwrap();
            stands = 0;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    plan
}

/// The Provider and a Plan that counts as laid over it, and their Migrations.
fn make(kube: &Arc<Cluster>, count: usize) {
    let api = "drover.dev/v1alpha1";
    let provider = json!({"apiVersion": api, "kind": "Provider", "metadata": {"name": "vcenter"},
        "spec": {"endpoint": "vcenter.example.org", "secretName": "vcenter", "insecure": true}});
    let provider = pinned(&kube.create(&format!("{OWN}/providers"), &provider, false).unwrap());
    let plan = json!({"apiVersion": api, "kind": "Plan", "metadata": {"name": "all"},
        "spec": {"provider": "vcenter", "plan": {"target": {"type": "kubevirt"}, "vms": [{"glob": "*"}]}}});
    let plan = laid(kube, &plan, &provider);
    std::thread::scope(|scope| {
        for maker in 0..MAKERS {
            let (plan, provider) = (&plan, &provider);
            scope.spawn(move || {
                for number in (maker..count).step_by(MAKERS) {
                    let spec = spec(number, plan, provider);
                    let name = migration_name(SOURCE, &spec.vm.instance_uuid);
                    kube.create(&format!("{OWN}/migrations"), &migration(&name, &spec), false).unwrap();
                }
            });
        }
    });
}

/// Says what a worker says that has begun.
fn say(kube: &Cluster, migration: &str, status: Value) {
    kube.change(&format!("{OWN}/migrations/{migration}/status"), Change::Merge, &json!({"status": status}))
        .unwrap();
}

/// A Job comes to its end, its worker has arrived.
fn end_well(kube: &Cluster, job: &Value, migration: &str) {
    let epoch: u64 = job["metadata"]["annotations"][EPOCH].as_str().unwrap().parse().unwrap();
    let bytes = 40_u64 << 30;
    let word = json!({
        "begun": true, "worker": {"epoch": epoch, "pod": "played", "exit": 0, "reason": "Success", "message": "it arrived"},
        "progress": {"totalBytes": bytes, "doneBytes": bytes, "percent": 100},
    });
    say(kube, migration, word);
    let now = "2026-01-01T00:00:00Z";
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let ended = json!({"status": {
        "startTime": now, "completionTime": now, "succeeded": 1,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
    }});
    let name = job["metadata"]["name"].as_str().unwrap();
    kube.change(&format!("{JOBS}/{name}/status"), Change::Merge, &ended).unwrap();
}

/// Plays workers and the controller of Jobs: whatever Job is made has moved its VM at once, but warm ones.
fn play(kube: Arc<Cluster>) {
    let query = "labelSelector=app.kubernetes.io%2Fmanaged-by%3Ddrover-operator";
    kube.clone().follow(JOBS, query, |seen| {
        let Seen::There(job) = seen else { return true };
        if job["status"]["succeeded"] == 1 || !job["metadata"]["deletionTimestamp"].is_null() {
            return true;
        }
        if job["metadata"]["labels"]["drover.dev/vm"] != WARM {
            end_well(&kube, &job, job["metadata"]["labels"][MIGRATION].as_str().unwrap());
        }
        true
    });
}

#[track_caller]
fn wait(what: &str, log: &Path, within: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !holds() {
        let told = || std::fs::read_to_string(log).unwrap_or_default();
        assert!(
            Instant::now() < until,
            "{what}: {}",
            told().lines().rev().take(30).collect::<Vec<_>>().join("\n")
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Each line is JSON with its moment, and the log tells of each Migration that it arrived.
#[track_caller]
fn assert_log(log: &Path, count: usize) {
    let text = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(lines.iter().all(|line| line["time"].is_string() && line["event"].is_string()), "{text}");
    let arrived = lines.iter().filter(|line| line["kind"] == "Migration" && line["reason"] == "Arrived");
    let names: BTreeSet<&str> = arrived.map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), count);
}

/// A Plan with waves, of which one cannot go on, one is after it, one has its window in a time to come, one missed it and stops the one after
/// it; and one in a freeze. Then the first is given up, and the last one let go. No worker moves what is not to begin: those that are played
/// would have it arrive at once.
fn waves_windows_and_freezes_are_kept(kube: &Cluster, log: &Path, patience: Duration) {
    let of = |name: &str, more: Value| {
        let mut plan = json!({"apiVersion": "drover.dev/v1alpha1", "kind": "Plan", "metadata": {"name": name},
            "spec": {"provider": "vcenter", "plan": {"target": {"type": "kubevirt"}, "vms": [{"glob": "*"}]}}});
        plan["spec"]["plan"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        plan
    };
    // The API server knows the keys of a plan, and keeps others for the operator, which refuses them.
    let plans = format!("{OWN}/plans");
    let refused = kube.create(&plans, &of("wrong", json!({"mode": "lukewarm"})), true).unwrap_err();
    assert!(refused.what.contains("lukewarm"), "{refused}");
    for other in [
        json!({"exlude": [{"name": "web01"}]}),
        json!({"waves": [{"name": "a", "windows": "22:00-06:00"}]}),
        json!({"vms": [{"name": "web01", "nmae": "web01"}]}),
        json!({"hooks": {"before": {"copy": {"command": ["true"]}}}}),
    ] {
        let plan = of("wrong", other);
        assert_eq!(kube.create(&plans, &plan, true).unwrap()["spec"]["plan"], plan["spec"]["plan"]);
    }
    let provider = pinned(&kube.get(&format!("{OWN}/providers/vcenter")).unwrap().unwrap());
    let waves = json!([
        {"name": "pilot"}, {"name": "web", "after": ["pilot"]}, {"name": "night", "window": "2099-01-01"},
        {"name": "gone", "until": "2020-01-01T00:00:00Z", "if_failed": "stop"}, {"name": "late", "after": ["gone"]},
    ]);
    let waved = laid(kube, &of("waved", json!({"waves": waves})), &provider);
    let freezes = json!({"waves": [{"name": "all"}], "freezes": "2020-01-01 - 2098-12-31 Europe/Berlin"});
    let frozen = laid(kube, &of("frozen", freezes), &provider);
    let path = |number: usize| {
        let spec = spec(number, &waved, &provider);
        format!("{OWN}/migrations/{}", migration_name(SOURCE, &spec.vm.instance_uuid))
    };
    let all = [
        ("pilot", &waved),
        ("web", &waved),
        ("night", &waved),
        ("all", &frozen),
        ("gone", &waved),
        ("late", &waved),
    ];
    for (number, (wave, plan)) in (90_000..).zip(all) {
        // Nothing begins of one that needs what this operator has not.
        let conversion = if wave == "pilot" { Conversion::Needed } else { Conversion::No };
        let spec = MigrationSpec { wave: Some(wave.into()), conversion, ..spec(number, plan, &provider) };
        let name = migration_name(SOURCE, &spec.vm.instance_uuid);
        kube.create(&format!("{OWN}/migrations"), &migration(&name, &spec), false).unwrap();
    }
    let arrived = |number: usize| {
        let found = kube.get(&path(number)).unwrap().unwrap();
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let it = conditions.into_iter().find(|it| it["type"] == "Arrived").unwrap_or_default();
        let text = |key: &str| it[key].as_str().unwrap_or_default().to_string();
        (text("reason"), text("message"))
    };
    let reasons = || [0, 1, 2, 3, 4, 5].map(|number| arrived(90_000 + number).0);
    let waiting =
        ["ConverterMissing", "WaitsForWave", "WaitsForWindow", "WaitsForWindow", "WindowOver", "WaveStopped"];
    wait("each says what it waits for", log, patience, || reasons() == waiting);
    assert!(arrived(90_001).1.contains("wave pilot"), "{:?}", arrived(90_001));
    assert!(arrived(90_002).1.contains("Thu 2099-01-01 00:00 UTC"), "{:?}", arrived(90_002));
    assert!(arrived(90_003).1.contains("Thu 2099-01-01 00:00 Europe/Berlin"), "{:?}", arrived(90_003));
    kube.change(&path(90_000), Change::Merge, &json!({"spec": {"cancel": true}})).unwrap();
    wait("the next wave goes", log, patience, || arrived(90_001).0 == "Arrived");
    assert_eq!(reasons()[2..], waiting[2..], "and no other");
    let status = || kube.get(&format!("{OWN}/plans/waved")).unwrap().unwrap()["status"].clone();
    let held = |status: &Value| {
        let all = status["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|it| it["type"] == "WavesHeld").unwrap_or_default()
    };
    wait("the Plan tells of its waves", log, patience, || {
        let status = status();
        let waves = &status["waves"];
        waves[1]["arrived"] == 1
            && waves[1]["passed"] == true
            && waves[2]["waits"].to_string().contains("2099-01-01")
            && waves[3]["holds"] == true
            && held(&status)["message"].to_string().contains("`kubectl drover proceed waved gone`")
    });
    // One more fails: the Plan tells it, and no further event.
    let late = MigrationSpec { wave: Some("gone".into()), ..spec(90_006, &waved, &provider) };
    let name = migration_name(SOURCE, &late.vm.instance_uuid);
    kube.create(&format!("{OWN}/migrations"), &migration(&name, &late), false).unwrap();
    wait("the Plan tells of both", log, patience, || {
        held(&status())["message"].to_string().contains("2 VMs of wave gone failed")
    });
    wait("and so does its one event", log, patience, || {
        let events = kube.all("/api/v1/namespaces/vms/events").unwrap();
        let told: Vec<&Value> = events.iter().filter(|it| it["reason"] == "WaveStopped").collect();
        assert!(told.len() <= 1, "{told:#?}");
        told.iter().any(|it| it["count"] == 2 && it["message"].to_string().contains("2 VMs"))
    });
    let word = json!({"metadata": {"annotations": {"drover.dev/proceed": "gone"}}});
    kube.change(&format!("{OWN}/plans/waved"), Change::Merge, &word).unwrap();
    wait("the wave after the one that failed goes", log, patience, || arrived(90_005).0 == "Arrived");
    wait("and the Plan tells so", log, patience, || held(&status())["status"] == "False");
    assert_eq!((&status()["proceed"], &status()["proceeded"]), (&json!(["gone"]), &json!("gone")));
    let events = kube.all("/api/v1/namespaces/vms/events").unwrap();
    for reason in ["WaveStopped", "Proceed", "WavesGoOn"] {
        let told =
            events.iter().filter(|it| it["involvedObject"]["kind"] == "Plan" && it["reason"] == reason);
        assert_eq!(told.count(), 1, "{reason}");
    }
}

/// A Plan of which nothing can begin is given up, and removed at once. It has more Migrations than are given up in one turn.
fn a_plan_is_given_up_in_turns(kube: &Cluster, operator: &Operator, log: &Path, patience: Duration) {
    const COUNT: usize = 60;
    let provider = pinned(&kube.get(&format!("{OWN}/providers/vcenter")).unwrap().unwrap());
    let plan = json!({"apiVersion": "drover.dev/v1alpha1", "kind": "Plan", "metadata": {"name": "given-up"},
        "spec": {"provider": "vcenter", "plan": {"target": {"type": "kubevirt"}, "vms": [{"glob": "*"}]}}});
    let plan = laid(kube, &plan, &provider);
    let before = ["Pending", "Cancelled"].map(|phase| operator.in_phase(phase));
    for number in 92_000..92_000 + COUNT {
        let waits = MigrationSpec { conversion: Conversion::Needed, ..spec(number, &plan, &provider) };
        let name = migration_name(SOURCE, &waits.vm.instance_uuid);
        kube.create(&format!("{OWN}/migrations"), &migration(&name, &waits), false).unwrap();
    }
    let count = COUNT as u64;
    wait("they wait for a converter", log, patience, || operator.in_phase("Pending") == before[0] + count);
    let path = format!("{OWN}/plans/given-up");
    kube.change(&path, Change::Merge, &json!({"spec": {"cancel": true}})).unwrap();
    kube.delete(&path, &plan.uid).unwrap();
    wait("all are given up", log, patience, || operator.in_phase("Cancelled") == before[1] + count);
}

/// Two warm VMs of a Plan that lets one guest be down ask to move over: one may, the other while that makes a pass, and the first again once
/// the other has arrived, whatever operator leads then.
fn no_more_guests_are_down_than_their_plan_lets(
    kube: &Cluster,
    operator: Operator,
    config: &Path,
    log: &Path,
    patience: Duration,
) {
    let provider = pinned(&kube.get(&format!("{OWN}/providers/vcenter")).unwrap().unwrap());
    let plan = json!({"apiVersion": "drover.dev/v1alpha1", "kind": "Plan", "metadata": {"name": "warm"},
        "spec": {"provider": "vcenter", "plan": {"target": {"type": "kubevirt"}, "vms": [{"glob": "*"}], "mode": "warm",
            "limits": {"cutovers": 1}}}});
    let plan = laid(kube, &plan, &provider);
    let names = [91_000, 91_001].map(|number| {
        let plain = spec(number, &plan, &provider);
        let size = Size { warm: Some(WarmSize::default()), ..plain.size };
        let warm = MigrationSpec { size, target_name: WARM.into(), ..plain };
        let name = migration_name(SOURCE, &warm.vm.instance_uuid);
        kube.create(&format!("{OWN}/migrations"), &migration(&name, &warm), false).unwrap();
        name
    });
    let status = |name: &str| {
        kube.get(&format!("{OWN}/migrations/{name}")).unwrap().unwrap_or_default()["status"].clone()
    };
    for name in &names {
        wait("it has a worker", log, patience, || status(name)["job"]["uid"].is_string());
        say(kube, name, json!({"begun": true, "worker": {"epoch": 1, "pod": "played", "asksCutover": true}}));
    }
    // Of one moment.
    let may = || {
        let list = kube.all(&format!("{OWN}/migrations")).unwrap();
        let lets = list.iter().filter(|it| it["status"]["cutoverEpoch"] == 1);
        let lets: Vec<&str> = lets.filter_map(|it| it["metadata"]["name"].as_str()).collect();
        let all: Vec<&String> = names.iter().filter(|name| lets.contains(&name.as_str())).collect();
        assert!(all.len() <= 1, "{all:?}");
        all.first().map(|name| (*name).clone())
    };
    let queued = |name: &str| {
        let all = status(name)["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().any(|it| it["type"] == "Arrived" && it["reason"] == "CutoverQueued")
    };
    wait("one may move over", log, patience, || may().is_some());
    let first = may().unwrap();
    let second = names.iter().find(|name| **name != first).unwrap();
    wait("the other says why it does not", log, patience, || queued(second));
    say(kube, &first, json!({"worker": {"asksCutover": false}}));
    wait("the other may while it makes a pass", log, patience, || may().as_ref() == Some(second));
    say(kube, &first, json!({"worker": {"asksCutover": true}}));
    wait("it says why it does not", log, patience, || queued(&first));
    let (first, second) = (second.clone(), &first);
    say(kube, &first, json!({"worker": {"outage": true}}));
    operator.end();
    let operator = Operator::start(config, log);
    wait("another operator leads", log, patience, || {
        operator.is_ready() && operator.in_phase("Running") == 2
    });
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(may().as_ref(), Some(&first), "its guest is down still");
    let job = status(&first)["job"]["name"].as_str().unwrap().to_string();
    end_well(kube, &kube.get(&format!("{JOBS}/{job}")).unwrap().unwrap(), &first);
    wait("then the other may", log, patience, || may().as_ref() == Some(second));
    let job = status(second)["job"]["name"].as_str().unwrap().to_string();
    end_well(kube, &kube.get(&format!("{JOBS}/{job}")).unwrap().unwrap(), second);
    wait("both arrive", log, patience, || names.iter().all(|name| status(name)["phase"] == "Done"));
}

#[test]
fn many_migrations_cost_the_same_each() {
    let count = std::env::var("DROVER_MIGRATIONS").map_or(100, |it| it.parse().unwrap());
    let patience = Duration::from_secs(120) + Duration::from_millis(500) * count as u32;
    let folder = tempfile::Builder::new().prefix("kv-").tempdir().unwrap();
    let Some(cluster) = drover_lab::Cluster::start_api(folder.path()).unwrap() else { return };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vms"}});
    cluster.make("/api/v1/namespaces", &namespace).unwrap();
    chart::install_resources(&cluster, "vms").unwrap();
    let access = Access { kubeconfig: Some(cluster.kubeconfig()), context: None };
    let kube = Cluster::connect(&access).unwrap();
    make(&kube, count);
    let player = Cluster::connect(&access).unwrap();
    // It ends with the process.
    std::thread::spawn(move || play(player));

    let (log, begun) = (folder.path().join("operator.log"), Instant::now());
    let operator = Operator::start(&cluster.kubeconfig(), &log);
    wait("it is ready", &log, patience, || operator.is_ready());
    let ready = begun.elapsed();
    wait("all were admitted", &log, patience, || {
        operator.in_phase("Pending") + operator.in_phase("Queued") == 0 && operator.in_phase("Done") > 0
    });
    let admitted = begun.elapsed();
    wait("all arrived", &log, patience, || operator.in_phase("Done") == count as u64);
    let (done, requests) = (begun.elapsed(), operator.figure("drover_operator_requests_total"));
    let each = requests as f64 / count as f64;
    // What has arrived costs nothing any more, once its claim is gone.
    let mut at_rest = 0;
    wait("it comes to rest", &log, patience, || {
        let before = operator.figure("drover_operator_requests_total");
        std::thread::sleep(Duration::from_secs(4));
        at_rest = operator.figure("drover_operator_requests_total") - before;
        at_rest <= REST_MAX
    });
    let rss = operator.rss_max();
    operator.end();
    assert_log(&log, count);
    // Another begins with all of it.
    let begun = Instant::now();
    let operator = Operator::start(&cluster.kubeconfig(), &log);
    wait("it leads, and knows them", &log, patience, || operator.in_phase("Done") == count as u64);
    let again = begun.elapsed();
    std::thread::sleep(Duration::from_secs(2));
    let (asked_again, rss_again) = (operator.figure("drover_operator_requests_total"), operator.rss_max());
    println!(
        "{count} Migrations: ready after {:.1} s, all admitted after {:.1} s, all done after {:.1} s; {each:.1} requests each, {at_rest} in 4 s \
         at rest; RSS {} MiB at most. Begun again: {:.1} s, {asked_again} requests, RSS {} MiB",
        ready.as_secs_f64(),
        admitted.as_secs_f64(),
        done.as_secs_f64(),
        rss >> 20,
        again.as_secs_f64(),
        rss_again >> 20,
    );
    assert!(each <= REQUESTS_MAX, "{each} requests for each Migration");
    assert!(asked_again <= 100 + count as u64 / 100, "{asked_again} requests of one that begins again");
    assert!(rss.max(rss_again) < RSS_MAX, "{rss} and {rss_again} bytes");
    waves_windows_and_freezes_are_kept(&kube, &log, patience);
    a_plan_is_given_up_in_turns(&kube, &operator, &log, patience);
    no_more_guests_are_down_than_their_plan_lets(&kube, operator, &cluster.kubeconfig(), &log, patience);
}
