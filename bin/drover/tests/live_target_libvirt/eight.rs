//! One plan for VMs of all kinds.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use drover_lab::{Guests, lab_folder};
use serde_json::{Value, json};

use drover_stage::debian::{
    debian, marked, put_marking_converter, put_windows_tools, windows as windows_disk,
};
use drover_stage::domain_xml::{differences, parts};
use drover_stage::landing::{Landing, hear};
use drover_stage::process::PATIENCE;
use drover_stage::{MIB, moves, vm, with};

/// Guests that landed, which of the lab's guests each is, and its host.
const PROVE: [(&str, &str, &str); 5] = [
    ("web01", "web01", "a"),
    ("web02", "web02", "b"),
    ("db01", "db01", "a"),
    ("warm02", "web02", "b"),
    ("two", "web01", "a"),
];

/// The guest with a signed loader (`make lab`), if it is built; else, after a printed line, one with a loader that nobody signed.
fn safe_guest(guests: &Guests) -> (Guests, &'static str) {
    match Guests::load(&lab_folder().join("guests-secure")) {
        Ok(secure) => (secure, "safe01"),
        Err(_) => {
            println!("note: the guest for Secure Boot is not built, so none boots with it (`make lab`)");
            (Guests::load(&guests.folder).unwrap(), "web02")
        }
    }
}

/// The eight VMs: BIOS, UEFI, Secure Boot, several disks, warm with either firmware, two that are converted, one of them as Windows has its
/// disk, and one with two NICs.
fn eight(folder: &Path, guests: &Guests, safe: &(Guests, &str)) -> Vec<Value> {
    let of = |guests: &Guests, name: &str, of: &str, more: Value| {
        let guest = guests.get(of).unwrap();
        let files: Vec<PathBuf> = guest.disks.iter().map(|disk| guests.folder.join(&disk.file)).collect();
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let firmware = if guest.firmware == "bios" { "bios" } else { "efi" };
        let told = json!({"firmware": firmware, "cpus": guest.cpus, "memory_mib": guest.memory_mib});
        with(with(vm(name, &files), told), more)
    };
    let of_guest = |name: &str, it: &str, more: Value| of(guests, name, it, more);
    let nic = |network: &str, mac: u8| json!({"network": network, "mac": format!("00:50:56:aa:02:{mac:02x}"), "model": "vmxnet3"});
    let mut db01 = of_guest("db01", "db01", json!({"power": "on", "nics": [nic("Storage Net", 3)]}));
    db01["disks"][2]["datastore"] = json!("ds2");
    let windows = json!({"guest_id": "windows2019srv_64Guest", "nics": [nic("VM Network", 5)]});
    vec![
        of_guest("web01", "web01", json!({"nics": [nic("VM Network", 1)]})),
        of_guest("web02", "web02", json!({"nics": [nic("VM Network", 2)]})),
        db01,
        of(&safe.0, "safe", safe.1, json!({"secure_boot": true, "nics": []})),
        of_guest("warm02", "web02", json!({"power": "on", "nics": [nic("VM Network", 4)]})),
        with(vm("vmware", &[&debian(folder, "vmware", &[])]), json!({"nics": []})),
        with(vm("win", &[&windows_disk(folder, "win")]), windows),
        of_guest("two", "web01", json!({"nics": [nic("VM Network", 6), nic("Storage Net", 7)]})),
    ]
}

#[test]
fn vms_land_on_two_daemons_as_was_asked_and_prove_themselves() {
    let Ok(guests) = Guests::load(&lab_folder().join("guests")) else {
        println!("skipped: the test guests are not built (`make lab`)");
        return;
    };
    let safe = safe_guest(&guests);
    let Some(landing) = Landing::new(131, |folder| eight(folder, &guests, &safe)) else { return };
    let virsh = |host: &str, words: &[&str]| landing.hosts.virsh(host, words).unwrap();
    let fast = landing.folder.path().join("shared/fast");
    std::fs::create_dir(&fast).unwrap();
    virsh("a", &["pool-define-as", "fast", "dir", "--target", fast.to_str().unwrap()]);
    virsh("a", &["pool-start", "fast"]);
    let (bridge, network) = match landing.has_bridge() {
        true => ("br-lan", "network:lan"),
        false => ("user", "user"),
    };
    if landing.has_bridge() {
        let file = landing.folder.path().join("lan.xml");
        std::fs::write(
            &file,
            "<network><name>lan</name><forward mode='bridge'/><bridge name='br-lan'/></network>",
        )
        .unwrap();
        for host in ["a", "b"] {
            virsh(host, &["net-define", file.to_str().unwrap()]);
            virsh(host, &["net-start", "lan"]);
        }
    }
    landing.somebodys("a", "theirs", None);
    std::fs::write(landing.image("b", "theirs.raw"), "somebody's").unwrap();
    let hold = landing.overhear();
    let tools = landing.stage.path("bin");
    put_marking_converter(&tools, "");
    let windows = put_windows_tools(&tools);
    let command = |args: &[&str]| {
        let mut command = landing.command(args);
        command.envs(windows.clone());
        landing.sees_their_devices(&command)
    };
    let arrives = |args: &[&str]| {
        let output = moves::run(command(args));
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
        output
    };
    let on_b = format!("    uri: '{}'", landing.hosts.uri("b"));
    let lan = format!("    networks: {{VM Network: '{network}'}}");
    let is_said: [(&str, &[&str]); 8] = [
        ("web01", &["    mode: cold", "    format: qcow2"]),
        ("web02", &["    mode: cold", "    disk_bus: scsi", "    nic_model: keep", &on_b]),
        ("db01", &[]),
        ("safe", &["    mode: cold", &on_b]),
        ("warm02", &[&on_b]),
        ("vmware", &["    mode: cold", "    convert: auto"]),
        ("win", &["    mode: cold", "    convert: auto", &on_b, &lan]),
        ("two", &["    mode: cold", "    nic_model: e1000e", "    autostart: false", &lan]),
    ];
    let said = is_said.map(|(name, lines)| {
        let name = format!("  - name: \"{name}\"");
        (name.clone(), format!("{name}\n{}", lines.join("\n")))
    });
    let networks =
        format!("\"VM Network\": user\n  \"Storage Net\": {bridge}\nstorage: {{ds2: fast, \"*\": default}}");
    let mut edits = vec![
        ("mode: cold", "mode: warm\nwarm: {interval: 1s, cutover: auto}\nstart: true"),
        ("\"*\": user", networks.as_str()),
        ("  overcommit", "  autostart: true\n  cpu: qemu64\n  io: threads\n  overcommit"),
    ];
    edits.extend(said.iter().map(|(from, to)| (from.as_str(), to.as_str())));
    let plan = landing.plan("land", &edits);
    let of_source = || {
        let state = landing.stage.source_state();
        let vms = state.as_array().unwrap().iter();
        vms.map(|vm| ["name", "power", "snapshots", "disks"].map(|key| vm[key].clone())).collect::<Vec<_>>()
    };
    let at_target = || {
        let of_pool =
            std::fs::read_dir(&fast).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        (landing.all_of("a"), landing.all_of("b"), of_pool, landing.xml("a", "theirs"))
    };
    let (source, target) = (of_source(), at_target());
    let checked = arrives(&["plan", "check", &plan]);
    assert!(checked.out.contains("the plan is fine"), "{}{}", checked.out, checked.err);
    assert_eq!((of_source(), at_target()), (source.clone(), target.clone()), "a check touches nothing");

    // Given up when all that drover makes is there, and no guest has arrived.
    std::fs::write(&hold, "").unwrap();
    let log = std::fs::File::create(landing.stage.path("held.log")).unwrap();
    let mut held = command(&["migrate", &plan]);
    let mut held = held.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    let missing = || {
        let defined = ["a", "b"].map(|host| virsh(host, &["list", "--all", "--name"])).join("\n");
        let is_defined = |name: &str| defined.lines().any(|it| it == name);
        is_said.iter().map(|(name, _)| *name).filter(|name| !is_defined(name)).collect::<Vec<_>>()
    };
    let until = Instant::now() + PATIENCE;
    while !missing().is_empty() && held.try_wait().unwrap().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = std::fs::read_to_string(landing.stage.path("held.log")).unwrap();
    assert_eq!(missing(), Vec::<&str>::new(), "{said}");
    held.kill().unwrap();
    held.wait().unwrap();
    std::fs::remove_file(&hold).unwrap();
    let cancelled = arrives(&["cancel", "land"]);
    assert!(cancelled.err.contains("what it had begun is undone"), "{}", cancelled.err);
    assert_eq!((of_source(), at_target()), (source.clone(), target), "exactly what was made is gone");

    arrives(&["migrate", &plan]);
    let inventory = arrives(&["inventory", &plan, "--json"]).json().unwrap();
    for vm in inventory["vms"].as_array().unwrap() {
        let name = vm["name"].as_str().unwrap();
        let host = if is_said.iter().any(|(it, lines)| *it == name && lines.contains(&on_b.as_str())) {
            "b"
        } else {
            "a"
        };
        let state = virsh(host, &["domstate", "--reason", name]);
        // One that has proven itself switches itself off.
        assert!(state.starts_with("running") || state.contains("shut off (shutdown)"), "{name}: {state}");
        assert_eq!(vm["power"], "off", "{name}");
        let autostart = if name == "two" { "disable" } else { "enable" };
        assert!(virsh(host, &["dominfo", name]).contains(&format!("Autostart:      {autostart}")), "{name}");
        // What was asked is what libvirt has, and what was asked is what the source was and the plan says.
        let xml = landing.xml(host, name);
        assert_eq!(differences(&landing.asked(name), &xml), Vec::<String>::new(), "{name}: {xml}");
        let images = |disk: usize| match name {
            "db01" if disk == 2 => fast.join("db01-2.raw"),
            "web01" => landing.image(host, "web01-0.qcow2"),
            _ => landing.image(host, &format!("{name}-{disk}.raw")),
        };
        assert_eq!(parts(&xml), wanted(vm, images, (bridge, network)), "{name}: {xml}");
    }
    assert!(landing.xml("a", "web01").contains("plan=\"land\""), "whose it is");
    let of_file = |name: &str| std::fs::read(landing.stage.path(name)).unwrap();
    for (host, name) in [("a", "vmware"), ("b", "win")] {
        let is_it =
            std::fs::read(landing.image(host, &format!("{name}-0.raw"))).unwrap() == marked(of_file(name));
        assert!(is_it, "{name} is the source's, but for what the converter wrote");
    }
    let listed = virsh("a", &["vol-list", "images"]) + &virsh("a", &["vol-list", "fast"]);
    assert!(listed.contains("web01-0.qcow2") && listed.contains("db01-2.raw"), "{listed}");

    // A second run finds nothing to do, and another plan may not take what is there.
    let xml = landing.xml("a", "web01");
    arrives(&["migrate", &plan]);
    assert_eq!(landing.xml("a", "web01"), xml);
    let refused = moves::run(command(&["plan", "check", &landing.plan("other", &edits)]));
    assert_eq!(refused.code, Some(7), "{refused:?}");
    let errors: Vec<&str> = refused.err.lines().filter(|line| line.contains(": error: ")).collect();
    assert!(errors.iter().all(|line| line.contains("plan land made it")), "{errors:#?}");
    assert!(refused.err.contains("the plan has 8 errors"), "{}", refused.err);
    let cancelled = arrives(&["cancel", "land"]);
    assert!(cancelled.err.contains("nothing to cancel"), "what has arrived stays: {}", cancelled.err);

    // From inside. What a guest said when drover started it, nobody heard; those that have proven themselves are off by now.
    for name in ["web01", "db01", "two", "vmware"] {
        let _ = landing.hosts.virsh("a", &["destroy", name]);
    }
    for name in ["web02", "warm02", "win", "safe"] {
        let _ = landing.hosts.virsh("b", &["destroy", name]);
    }
    let mut prove = PROVE.map(|(name, of, host)| (name, guests.get(of).unwrap(), host)).to_vec();
    let safe_guest = safe.0.get(safe.1).unwrap();
    if safe_guest.firmware == "secure" {
        prove.push(("safe", safe_guest, "b"));
    }
    // Two at a time, as this machine may have but two cores.
    std::thread::scope(|scope| {
        for host in ["a", "b"] {
            let (landing, prove) = (&landing, &prove);
            scope.spawn(move || {
                for (name, guest, _) in prove.iter().filter(|(.., its)| *its == host) {
                    let tty = landing.hosts.start_heard(host, name).unwrap();
                    let is_bridged = |to: &&String| to.contains(" to bridge ") || to.contains(" to network ");
                    let taps = parts(&landing.xml(host, name)).iter().filter(is_bridged).count();
                    assert_eq!(plugged(landing, host, name), taps, "{name}");
                    let said = hear(tty, |said| guest.missing_in(said).is_empty());
                    assert_eq!(guest.missing_in(&said), Vec::<&str>::new(), "{name}: {said}");
                }
            });
        }
    });
    // With Microsoft's keys the firmware refuses a loader that nobody signed: that of another guest, in the place of the signed one.
    let _ = landing.hosts.virsh("b", &["destroy", "safe"]);
    let unsigned = &guests.get("web02").unwrap().disks[0].file;
    let mut boot = vec![0; 32 * MIB as usize];
    std::fs::File::open(guests.folder.join(unsigned)).unwrap().read_exact_at(&mut boot, MIB).unwrap();
    let volume = std::fs::File::options().write(true).open(landing.image("b", "safe-0.raw")).unwrap();
    volume.write_all_at(&boot, MIB).unwrap();
    let tty = landing.hosts.start_heard("b", "safe").unwrap();
    let said = hear(tty, |said| said.contains("Access Denied"));
    assert!(said.contains("Access Denied") && !said.contains("DROVER-GUEST"), "{said}");
    let left = of_source().iter().map(|vm| vm[2].clone()).collect::<Vec<_>>();
    assert_eq!(left, source.iter().map(|vm| vm[2].clone()).collect::<Vec<_>>(), "no snapshot is left");
}

/// How many NICs of a domain are plugged into the bridge.
fn plugged(landing: &Landing, host: &str, name: &str) -> usize {
    let ports = landing.ports_of_bridge().unwrap_or_default();
    let listed = landing.hosts.virsh(host, &["domiflist", name]).unwrap();
    let taps =
        listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with("vnet")));
    taps.filter(|tap| ports.contains(&format!(" {tap}:"))).count()
}

/// The parts of the domain that a VM of the inventory is to be.
fn wanted(vm: &Value, image: impl Fn(usize) -> PathBuf, (bridge, network): (&str, &str)) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let name = text(&vm["name"]);
    let (is_uefi, is_secure) = (vm["firmware"] == "uefi", name == "safe");
    let (bus, device) = match name.as_str() {
        "web02" => ("scsi", "sd"),
        _ => ("virtio", "vd"),
    };
    let mut parts = vec![
        format!(
            "{name} {} {} MiB, {} of qemu64",
            text(&vm["uuid"]).to_lowercase(),
            vm["memory_mib"],
            vm["cpus"]
        ),
        match (is_uefi, is_secure) {
            (_, true) => "efi nvram enrolled-keys secure-boot".into(),
            (true, _) => "efi nvram ".into(),
            (false, _) => "bios ".into(),
        },
        format!("clock {}", if name == "win" { "localtime" } else { "utc" }),
    ];
    for (at, disk) in vm["disks"].as_array().unwrap().iter().enumerate() {
        let digits = text(&disk["uuid"]).replace('-', "").to_lowercase();
        let serial = if bus == "scsi" { &digits[..] } else { &digits[..20] };
        let letter = ["a", "b", "c"][at];
        let (image, order) = (image(at), at + 1);
        let format = image.extension().unwrap().to_str().unwrap();
        parts.push(format!(
            "{format} disk {} {device}{letter} {bus} {serial} {order} none/threads/unmap",
            image.display()
        ));
    }
    for nic in vm["nics"].as_array().unwrap() {
        let to = match (text(&nic["network"]).as_str(), name.as_str()) {
            ("Storage Net", _) => bridge,
            (_, "win" | "two") => network,
            _ => "user",
        };
        let to = match to {
            "user" => "user nothing".to_string(),
            "br-lan" => "bridge br-lan".to_string(),
            other => other.replace(':', " "),
        };
        let model = match name.as_str() {
            "web02" => text(&nic["model"]),
            "two" => "e1000e".into(),
            _ => "virtio".into(),
        };
        parts.push(format!("NIC {} {model} to {to}", text(&nic["mac"])));
    }
    parts.extend((bus == "scsi").then(|| "SCSI virtio-scsi".to_string()));
    parts
}

#[test]
fn a_difference_is_seen() {
    let asked = "<domain type='qemu'><memory unit='MiB'>1</memory><os><type machine='q35'>hvm</type></os><devices>\
                 <disk><source file='a'/></disk><disk><source file='b'/></disk></devices></domain>";
    let has = asked.replace("<os>", "<uuid>u</uuid><os>").replace("q35", "pc-q35-9.2");
    let has = has.replace("unit='MiB'>1<", "unit='KiB'>1024<");
    assert_eq!(differences(asked, &has), Vec::<String>::new());
    for (from, to) in [
        ("1024", "1025"),
        ("pc-q35", "pc-i440fx"),
        ("hvm", "xen"),
        ("type='qemu'", "type='kvm'"),
        ("<disk><source file='b'/></disk>", ""),
        ("<disk><source file='b'/></disk>", "<disk><source file='b'/></disk><disk/>"),
        ("'b'", "'c'"),
        (
            "<disk><source file='a'/></disk><disk><source file='b'/></disk>",
            "<disk><source file='b'/></disk><disk><source file='a'/></disk>",
        ),
    ] {
        assert!(has.contains(from) && !differences(asked, &has.replace(from, to)).is_empty(), "{from} {to}");
    }
}
