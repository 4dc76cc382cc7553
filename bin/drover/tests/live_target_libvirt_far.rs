//! Plans whose target is the libvirt daemon of another host: its daemon is reached by an address of its own, its disks by an agent that
//! has the files of that host (`lab/libvirt/hosts`).
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use drover_lab::{Guests, lab_folder};
use drover_stage::certificates::certificates_for;
use drover_stage::landing::{EARLY_EDGES, Landing, edges, hear};
use drover_stage::{MIB, disk_file, same_bytes, vm, with};
use serde_json::json;

fn pool_of(landing: &Landing, host: &str) -> String {
    format!("images={}", landing.image(host, "").display())
}

#[test]
fn vms_land_on_another_host_by_its_agent_and_prove_themselves() {
    let Ok(guests) = Guests::load(&lab_folder().join("guests")) else {
        println!("skipped: the test guests are not built (`make lab`)");
        return;
    };
    let guest = guests.get("web01").unwrap();
    let files: Vec<PathBuf> = guest.disks.iter().map(|disk| guests.folder.join(&disk.file)).collect();
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let firmware = if guest.firmware == "uefi" { "efi" } else { "bios" };
    let nic = json!({"network": "VM Network", "mac": "00:50:56:aa:02:11", "model": "vmxnet3"});
    let told = json!({"firmware": firmware, "cpus": guest.cpus, "memory_mib": guest.memory_mib, "nics": [nic],
                      "power": "on"});
    let web = with(vm("web01", &files), told);
    let landing = Landing::new(151, |folder| {
        let (a, b) = (disk_file(folder, "a", 5 * MIB + 512), disk_file(folder, "b", 3 * MIB));
        vec![web, with(vm("safe", &[&a, &b]), json!({"firmware": "efi", "secure_boot": true, "nics": []}))]
    });
    let Some(landing) = landing else { return };
    let (uri, _sshd) = landing.by_ssh("b");
    let _agent = landing.agent("b", "site-b", &[&pool_of(&landing, "b")]);
    let plan = landing.far_plan(
        "far",
        &uri,
        &[
            ("mode: cold", "mode: warm\nwarm: {interval: 1s, cutover: auto}\nstart: true"),
            ("\"*\": user", "\"VM Network\": user"),
            ("  overcommit", "  autostart: true\n  overcommit"),
            ("  - name: \"safe\"", "  - name: \"safe\"\n    mode: cold\n    start: false"),
        ],
    );
    let checked = landing.arrives(&["plan", "check", &plan]);
    assert!(checked.out.contains("the plan is fine"), "{}", checked.out);
    assert_eq!(landing.all_of("b"), Vec::<String>::new(), "a check touches nothing");
    landing.arrives(&["migrate", &plan]);
    // One that has proven itself switches itself off, while the other is still on its way.
    let state = landing.hosts.virsh("b", &["domstate", "--reason", "web01"]).unwrap();
    assert!(state.starts_with("running") || state.contains("shut off (shutdown)"), "{state}");
    assert_eq!(landing.state("b", "safe"), "shut off");
    assert_eq!(landing.all_of("a"), Vec::<String>::new());
    for (disk, file) in [("safe-0.raw", "a"), ("safe-1.raw", "b")] {
        assert!(same_bytes(&landing.image("b", disk), &landing.stage.path(file)), "{disk}");
    }
    // What was asked is what that host's libvirt has.
    let xml = landing.xml("b", "safe");
    for disk in ["safe-0.raw", "safe-1.raw"] {
        let source = format!("<source file='{}'/>", landing.image("b", disk).display());
        assert!(xml.contains(&source), "{source} in {xml}");
    }
    assert!(xml.contains("secure='yes'") && xml.contains("plan=\"far\""), "{xml}");
    // Its first disk ends within a sector of 4 KiB.
    assert!(xml.contains("cache='writeback'"), "{xml}");
    let listed = landing.hosts.virsh("b", &["vol-list", "images"]).unwrap();
    assert!(listed.contains("web01-0.raw") && listed.contains("safe-1.raw"), "{listed}");
    for name in ["web01", "safe"] {
        assert!(landing.hosts.virsh("b", &["dominfo", name]).unwrap().contains("Autostart:      enable"));
    }
    let report = landing.stage.report(&plan);
    for vm in report["vms"].as_array().unwrap() {
        assert_eq!(vm["site"], "site-b");
        for disk in vm["disks"].as_array().unwrap() {
            assert_eq!(disk["equal"], json!(true), "{disk:#}");
            assert!(disk["path"].as_str().unwrap().starts_with("agent://site-b/images/"), "{disk:#}");
        }
    }
    // A second run finds nothing to do, and another plan may not take what is there.
    landing.arrives(&["migrate", &plan]);
    let other = landing.far_plan("other", &uri, &[("  - name: \"safe\"\n", "")]);
    let refused = landing.run(&["plan", "check", &other]);
    assert_eq!(refused.code, Some(7), "{refused:?}");
    assert!(refused.err.contains("plan far made it"), "{}", refused.err);
    // From inside. What the guest said when drover started it, nobody heard.
    let _ = landing.hosts.virsh("b", &["destroy", "web01"]);
    let tty = landing.hosts.start_heard("b", "web01").unwrap();
    let said = hear(tty, |said| guest.missing_in(said).is_empty());
    assert_eq!(guest.missing_in(&said), Vec::<&str>::new(), "{said}");
}

/// A plan's name, what is replaced in it, and what the check says.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

#[test]
fn a_check_asks_the_other_host_for_everything() {
    let Some(landing) = Landing::new(152, |folder| {
        let a = disk_file(folder, "a", MIB);
        let big = json!([{"file": a, "datastore": "ds1", "thin": true, "controller": "pvscsi", "capacity": "14TiB"}]);
        vec![
            vm("one", &[&a]),
            with(vm("boots", &[&a]), json!({"firmware": "efi", "nics": []})),
            with(vm("big", &[&a]), json!({"disks": big, "nics": []})),
            with(vm("win", &[&a]), json!({"guest_id": "windows2019srv_64Guest", "nics": []})),
        ]
    }) else {
        return;
    };
    let inside = |script: &str| {
        let words = landing.hosts.inside("b").unwrap();
        let done =
            std::process::Command::new(&words[0]).args(&words[1..]).args(["sh", "-c", script]).status();
        assert!(done.unwrap().success(), "{script}");
    };
    let other = landing.folder.path().join("shared/other");
    std::fs::create_dir(&other).unwrap();
    for (name, folder) in [("unserved", "shared/unserved"), ("elsewhere", "shared/elsewhere")] {
        let folder = landing.folder.path().join(folder);
        std::fs::create_dir(&folder).unwrap();
        landing
            .hosts
            .virsh("b", &["pool-create-as", name, "dir", "--target", folder.to_str().unwrap()])
            .unwrap();
    }
    let pools = [pool_of(&landing, "b"), format!("elsewhere={}", other.display())];
    let mut agent = landing.agent("b", "site-b", &[&pools[0], &pools[1]]);
    landing.somebodys("b", "taken", None);
    std::fs::write(landing.image("b", "clash-0.raw"), "somebody's").unwrap();
    landing
        .hosts
        .virsh("b", &["vol-create-as", "images", "blank-0.raw", "1MiB", "--allocation", "0"])
        .unwrap();
    inside("mkdir -p /var/lib/libvirt/qemu/nvram && touch /var/lib/libvirt/qemu/nvram/boots_VARS.fd");
    let before = landing.all_of("b");
    let uri = landing.hosts.uri("b");
    let all = "  - name: \"one\"\n  - name: \"boots\"\n  - name: \"big\"\n  - name: \"win\"\n";
    let only = (all, "  - name: \"one\"\n");
    let cases: [Case<'_>; 12] = [
        ("nosite", &[only, ("via: site-b", "via: site-x")], "there is no site 'site-x'"),
        ("nopool", &[only, ("pool: images", "pool: imagse")], "has no storage pool imagse"),
        ("unserved", &[only, ("pool: images", "pool: unserved")], "the agent of site-b has no pool unserved"),
        ("elsewhere", &[only, ("pool: images", "pool: elsewhere")], "and that of the agent of site-b in"),
        (
            "nobridge",
            &[only, ("\"*\": user", "\"*\": br-none")],
            "the host of site-b has no bridge or device br-none",
        ),
        (
            "loop",
            &[only, ("\"*\": user", "\"*\": lo")],
            "network device lo of the host of site-b is no bridge",
        ),
        ("name", &[only, ("- name: \"one\"", "- name: \"one\"\n    target_name: taken")], "a domain taken ("),
        (
            "volume",
            &[only, ("- name: \"one\"", "- name: \"one\"\n    target_name: clash")],
            "agent://site-b/images/clash-0.raw already holds something that this plan did not write",
        ),
        (
            "blank",
            &[only, ("- name: \"one\"", "- name: \"one\"\n    target_name: blank")],
            "blank-0.raw is there already and holds nothing, but drover has no record that it made it",
        ),
        (
            "variables",
            &[(all, "  - name: \"boots\"\n")],
            "firmware variables of an earlier domain boots are left in",
        ),
        ("space", &[(all, "  - name: \"big\"\n"), ("  overcommit: true\n", "")], "pool images has"),
        (
            "windows",
            &[(all, "  - name: \"win\"\n"), ("convert: never", "convert: auto")],
            "win needs conversion: ",
        ),
    ];
    let mut wrong = Vec::new();
    for (name, edits, words) in cases {
        let checked = landing.run(&["plan", "check", &landing.far_plan(name, &uri, edits)]);
        let told = format!("{}{}", checked.out, checked.err);
        if !told.contains(words) || checked.code == Some(0) {
            wrong.push(format!("{name}: '{words}' with {:?} in {told}", checked.code));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let plan = landing.far_plan("away", &uri, &[only]);
    landing.arrives(&["plan", "check", &plan]);
    agent.kill();
    let away = landing.run(&["plan", "check", &plan]);
    assert!(away.code != Some(0) && away.err.contains("agent of site-b"), "{away:?}");
    assert_eq!(landing.all_of("b"), before, "nothing was touched");
}

#[test]
fn killed_at_every_edge_a_plan_arrives_once_on_the_other_host() {
    let Some(landing) = Landing::new(153, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    let _agent = landing.agent("b", "site-b", &[&pool_of(&landing, "b")]);
    landing.somebodys("b", "theirs", None);
    let theirs = landing.xml("b", "theirs");
    let plan =
        landing.far_plan("edges", &landing.hosts.uri("b"), &[("mode: cold", "mode: cold\nstart: true")]);
    let mut args = vec!["migrate", plan.as_str()];
    let mut came = HashSet::new();
    for edge in edges(false) {
        if landing.killed_at(&args, edge).is_some() {
            came.insert(edge);
        }
        landing.runs_once("b", "one", edge);
        args = vec!["resume", "edges"];
    }
    assert!(came.len() >= 14, "{came:?}");
    landing.arrives(&["resume", "edges"]);
    assert_eq!(landing.state("b", "one"), "running");
    assert_eq!(landing.stage.sim.vm("one").unwrap()["power"], "poweredOff");
    let images = landing.all_of("b").into_iter().filter(|name| !name.contains(".drover-"));
    assert_eq!(images.collect::<Vec<_>>(), ["domain one", "domain theirs", "one-0.raw"]);
    assert_eq!(landing.xml("b", "theirs"), theirs);
    landing.stays("b", "edges");
}

#[test]
fn cancelled_after_a_kill_exactly_what_was_made_on_the_other_host_is_gone() {
    let Some(landing) = Landing::new(154, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    let mut agent = landing.agent("b", "site-b", &[&pool_of(&landing, "b")]);
    landing.somebodys("b", "theirs", None);
    std::fs::write(landing.image("b", "theirs.raw"), "somebody's").unwrap();
    let before = (landing.all_of("b"), landing.xml("b", "theirs"));
    for edge in EARLY_EDGES {
        let name = format!("c-{}-{}", edge.0, edge.1).replace('_', "-");
        let plan =
            landing.far_plan(&name, &landing.hosts.uri("b"), &[("mode: cold", "mode: cold\nstart: false")]);
        assert!(landing.killed_at(&["migrate", &plan], edge).is_some(), "{edge:?} never came");
        if edge == ("phase_ended", "copy") {
            // An agent that is away is told, and what is left goes with the next try.
            agent.kill();
            let left = landing.run(&["cancel", &name]);
            assert!(left.code != Some(0) && left.err.contains("site-b"), "{left:?}");
            agent.start();
        }
        let cancelled = landing.run(&["cancel", &name]);
        if cancelled.err.contains("had arrived") || cancelled.err.contains("nothing to cancel") {
            // It was killed later than it was told to be.
            landing.hosts.virsh("b", &["undefine", "--nvram", "one"]).unwrap();
            for file in landing.all_of("b").iter().filter(|name| name.starts_with("one-0.raw")) {
                std::fs::remove_file(landing.image("b", file)).unwrap();
            }
        } else {
            assert!(cancelled.err.contains("what it had begun is undone"), "{cancelled:?}");
            assert_eq!(landing.stage.sim.vm("one").unwrap()["power"], "poweredOn", "{edge:?}");
        }
        assert_eq!((landing.all_of("b"), landing.xml("b", "theirs")), before, "{edge:?}");
    }
}

#[test]
fn a_daemon_is_reached_by_tls_with_certificates_of_its_ca_and_no_others() {
    let made = Landing::by_tls(164, |folder| {
        vec![with(vm("one", &[&disk_file(folder, "a", 2 * MIB)]), json!({"nics": []}))]
    });
    let Some((landing, uri, certificates)) = made else { return };
    let _agent = landing.agent("b", "site-b", &[&pool_of(&landing, "b")]);
    let plan = |name: &str, certificates: &Path| {
        let uri = format!("{uri}?pkipath={}", certificates.display());
        landing.far_plan(name, &uri, &[("mode: cold", "mode: cold\nstart: true")])
    };
    let strangers = landing.stage.path("strangers");
    let address = uri.trim_start_matches("qemu+tls://").split(':').next().unwrap();
    certificates_for(&strangers, address);
    let refused = landing.run(&["plan", "check", &plan("stranger", &strangers)]);
    assert!(refused.code == Some(3) && refused.err.contains("does not answer"), "{refused:?}");
    assert!(refused.err.contains("certificate"), "{}", refused.err);
    assert_eq!(landing.all_of("b"), Vec::<String>::new());
    landing.arrives(&["migrate", &plan("tls", &certificates)]);
    assert_eq!(landing.state("b", "one"), "running");
    assert!(same_bytes(&landing.image("b", "one-0.raw"), &landing.stage.path("a")));
}

/// A plan for several hosts, by names, addresses and sites of their agents.
fn plan_for(landing: &Landing, name: &str, hosts: &[(&str, String, &str)], edits: &[(&str, &str)]) -> String {
    let line = |(name, uri, site): &(&str, String, &str)| {
        format!("    - {{name: {name}, uri: \"{uri}\", via: {site}}}\n")
    };
    let hosts: String = hosts.iter().map(line).collect();
    let several = format!("hosts:\n{hosts}  apart: [\"db*\"]\n  memory_reserve: 0B\n  pool: images");
    let single = "uri: qemu:///system\n  via: site-b\n  pool: images";
    landing.far_plan(name, "qemu:///system", &[&[(single, several.as_str())], edits].concat())
}

#[test]
fn vms_are_placed_on_several_hosts_and_one_that_is_down_fails_its_own_only() {
    let Some(landing) = Landing::new(155, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        ["db1", "db2", "web1", "lost"].map(|name| with(vm(name, &[&a]), json!({"nics": []}))).to_vec()
    }) else {
        return;
    };
    let _agents =
        ["a", "b"].map(|host| landing.agent(host, &format!("site-{host}"), &[&pool_of(&landing, host)]));
    let hosts = [
        ("kvm-a", landing.hosts.uri("a"), "site-a"),
        ("kvm-b", landing.hosts.uri("b"), "site-b"),
        ("kvm-c", "qemu+unix:///system?socket=/no/such".to_string(), "site-c"),
    ];
    let edits = [
        ("- name: \"web1\"", "- name: \"web1\"\n    target_host: kvm-b"),
        ("- name: \"lost\"", "- name: \"lost\"\n    target_host: kvm-c"),
    ];
    let plan = plan_for(&landing, "spread", &hosts, &edits);
    let checked = landing.run(&["plan", "check", &plan]);
    assert_eq!(checked.code, Some(7), "{checked:?}");
    assert!(checked.out.contains("web1 -> kvm-b: the plan names it"), "{}", checked.out);
    assert!(checked.out.contains("db1 -> kvm-") && checked.out.contains("db2 -> kvm-"), "{}", checked.out);
    assert!(
        checked.err.contains("host kvm-c: its daemon at") && checked.err.contains("lost will fail"),
        "{}",
        checked.err
    );
    let told = landing.run(&["plan", "check", &plan, "--json"]).json().unwrap();
    assert_eq!(told["hosts"].as_array().unwrap().len(), 4, "{told:#}");
    assert_eq!(landing.all_of("a").len() + landing.all_of("b").len(), 0, "a check touches nothing");
    let ran = landing.run(&["migrate", &plan]);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    let report = landing.stage.report(&plan);
    let of =
        |name: &str| report["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == name).unwrap().clone();
    let lost = of("lost");
    assert!(lost["error"].as_str().unwrap().contains("host kvm-c"), "{lost:#}");
    assert_eq!(of("web1")["target_host"], json!({"name": "kvm-b", "why": "the plan names it"}));
    let host_of =
        |name: &str| of(name)["target_host"]["name"].as_str().unwrap().trim_start_matches("kvm-").to_string();
    assert_ne!(host_of("db1"), host_of("db2"), "they are to be apart");
    for name in ["db1", "db2", "web1"] {
        assert_eq!(of(name)["state"], "done", "{name}");
        assert_eq!(landing.state(&host_of(name), name), "shut off", "{name}");
        let image = landing.image(&host_of(name), &format!("{name}-0.raw"));
        assert!(same_bytes(&image, &landing.stage.path("a")), "{name}");
    }
    let text = landing.run(&["report", &plan]).out;
    assert!(text.contains("placed on kvm-b: the plan names it"), "{text}");
    // Where nothing is pinned, a host that is down is passed over.
    let plan = plan_for(
        &landing,
        "passed",
        &hosts,
        &[
            ("  - name: \"db1\"\n  - name: \"db2\"\n  - name: \"web1\"\n", ""),
            ("- name: \"lost\"", "- name: \"lost\"\n    target_name: found"),
        ],
    );
    let checked = landing.arrives(&["plan", "check", &plan]);
    assert!(checked.err.contains("no VM is placed on it"), "{}", checked.err);
    // Nobody can take one with more memory than there is.
    let huge = plan_for(&landing, "huge", &hosts, &[("memory_reserve: 0B", "memory_reserve: 900TiB")]);
    let checked = landing.run(&["plan", "check", &huge]);
    assert_eq!(checked.code, Some(3), "{checked:?}");
    assert!(checked.err.contains("db1: no host takes it: kvm-a: "), "{}", checked.err);
}

#[test]
fn a_resumed_plan_places_nothing_anew() {
    let Some(landing) = Landing::new(156, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm("solo", &[&a]), json!({"nics": []}))]
    }) else {
        return;
    };
    let mut agents =
        ["a", "b"].map(|host| landing.agent(host, &format!("site-{host}"), &[&pool_of(&landing, host)]));
    let hosts = [("kvm-a", landing.hosts.uri("a"), "site-a"), ("kvm-b", landing.hosts.uri("b"), "site-b")];
    let plan = plan_for(&landing, "solo", &hosts, &[]);
    assert!(landing.killed_at(&["migrate", &plan], ("phase_started", "copy")).is_some());
    let host = landing.stage.report("solo")["vms"][0]["target_host"]["name"].clone();
    let (its, other) = if host == "kvm-a" { (0, "b") } else { (1, "a") };
    // Its host is away: the other one does not get it.
    agents[its].kill();
    let resumed = landing.run(&["resume", "solo"]);
    assert_ne!(resumed.code, Some(0), "{resumed:?}");
    assert!(resumed.err.contains(&format!("host {}", host.as_str().unwrap())), "{}", resumed.err);
    assert_eq!(landing.all_of(other), Vec::<String>::new());
    agents[its].start();
    landing.arrives(&["resume", "solo"]);
    let report = landing.stage.report("solo");
    assert_eq!(report["vms"][0]["target_host"]["name"], host);
    let its = if other == "a" { "b" } else { "a" };
    assert!(same_bytes(&landing.image(its, "solo-0.raw"), &landing.stage.path("a")));
    assert_eq!(landing.all_of(other), Vec::<String>::new());
}

#[test]
fn an_edited_plan_goes_on_where_it_began_and_a_guest_is_never_placed_beside_itself() {
    let Some(landing) = Landing::new(157, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm("solo", &[&a]), json!({"nics": []}))]
    }) else {
        return;
    };
    let mut agents =
        ["a", "b"].map(|host| landing.agent(host, &format!("site-{host}"), &[&pool_of(&landing, host)]));
    let uri = landing.hosts.uri("b");
    let single = landing.far_plan("given-up", &uri, &[]);
    assert!(landing.killed_at(&["migrate", &single], ("phase_ended", "copy")).is_some());
    // An agent that does not serve the pool any more proves nothing.
    agents[1].kill();
    let other = vec![format!("others={}", landing.stage.path("").display())];
    let pools = std::mem::replace(&mut agents[1].pools, other);
    agents[1].start();
    let left = landing.run(&["cancel", "given-up"]);
    assert!(left.code != Some(0) && left.err.contains("does not serve pool images any more"), "{left:?}");
    agents[1].kill();
    agents[1].pools = pools;
    agents[1].start();
    landing.arrives(&["cancel", "given-up"]);
    assert_eq!(landing.all_of("b"), Vec::<String>::new(), "all of it is gone");
    // Begun with one daemon, a plan that names others by now goes on where it began.
    let single = landing.far_plan("edited", &uri, &[]);
    assert!(landing.killed_at(&["migrate", &single], ("phase_ended", "copy")).is_some());
    let several = plan_for(&landing, "edited", &[("kvm-a", landing.hosts.uri("a"), "site-a")], &[]);
    landing.arrives(&["migrate", &several]);
    assert_eq!(landing.state("b", "solo"), "shut off");
    assert_eq!(landing.all_of("a"), Vec::<String>::new());
    // What has the VM's UUID may be the same guest.
    let hosts = [("kvm-a", landing.hosts.uri("a"), "site-a"), ("kvm-b", uri, "site-b")];
    let refused = landing.run(&["plan", "check", &plan_for(&landing, "twice", &hosts, &[])]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.err.contains("host kvm-b has a domain with its UUID"), "{}", refused.err);
}
