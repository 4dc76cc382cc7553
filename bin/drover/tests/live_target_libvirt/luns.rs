//! Pools of LUNs: the plan names a volume that is there for each disk. The SCSI host that libvirt looks at is made up of files and loop devices
//! (`lab/libvirt/hosts`), libvirt is not.

use serde_json::json;

use drover_stage::debian::{debian, marked, put_marking_converter};
use drover_stage::landing::{EARLY_EDGES, Landing, Loops, edges};
use drover_stage::{MIB, disk_file, vm, with};

/// A plan's name, the volumes that it names, what is replaced in it, and what the check says.
type Case<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)], &'a str);

/// What LUNs of somebody else hold.
const THEIRS: u8 = 0o245;

/// A plan that has the disks of a VM in these volumes.
fn plan(landing: &Landing, name: &str, vm: &str, volumes: &[&str], edits: &[(&str, &str)]) -> String {
    let named = format!("- name: \"{vm}\"");
    let lines = (1..).zip(volumes).map(|(number, volume)| format!("\n      Hard disk {number}: {volume}"));
    let with_volumes = format!("{named}\n    volumes:{}", lines.collect::<String>());
    let with_volumes = if volumes.is_empty() { named.clone() } else { with_volumes };
    let usual = [
        ("pool: images", "pool: san"),
        ("mode: cold", "mode: cold\nstart: true"),
        (named.as_str(), with_volumes.as_str()),
    ];
    landing.plan(name, &[&usual[..], edits].concat())
}

/// The LUN begins with these bytes, and behind them it is as it was.
#[track_caller]
fn holds(luns: &Loops, lun: usize, wanted: &[u8], behind: u8) {
    let found = std::fs::read(luns.file(lun)).unwrap();
    let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    assert_eq!(differs, None, "LUN {lun} is not what its source is");
    assert!(
        found[wanted.len()..].iter().all(|byte| *byte == behind),
        "LUN {lun} was changed behind the disk"
    );
}

#[test]
fn disks_land_in_the_luns_that_the_plan_names_and_what_others_have_there_is_not_touched() {
    let sizes = [(8 * MIB, 0), (12 * MIB, THEIRS), (4 * MIB, 0), (8 * MIB, 0)];
    let Some((landing, luns)) = Landing::with_luns(243, &sizes, |folder| {
        let (a, b) = (disk_file(folder, "a", 5 * MIB), disk_file(folder, "b", 8 * MIB));
        vec![
            with(vm("one", &[&a, &b]), json!({"power": "on", "nics": []})),
            with(vm("two", &[&a]), json!({"nics": []})),
        ]
    }) else {
        return;
    };
    let (one, two) = (("  - name: \"two\"\n", ""), ("  - name: \"one\"\n", ""));
    let theirs = "<domain type='qemu'><name>theirs</name><memory unit='MiB'>32</memory><os><type arch='x86_64' machine='q35'>hvm</type></os>\
        <devices><disk type='volume' device='disk'><source pool='san' volume='unit:0:0:4'/><target dev='vda' bus='virtio'/></disk></devices></domain>";
    let file = landing.folder.path().join("theirs.xml");
    std::fs::write(&file, theirs).unwrap();
    landing.hosts.virsh("a", &["define", file.to_str().unwrap()]).unwrap();

    let refuses = |plan: &str, words: &str| {
        let checked = landing.run(&["plan", "check", plan]);
        assert!(checked.code != Some(0) && checked.err.contains(words), "'{words}' in {}", checked.err);
    };
    let images = ("pool: san", "pool: images");
    let cases: [Case<'_>; 8] = [
        ("unnamed", &[], &[one], "the plan names none for it"),
        ("half", &["unit:0:0:1"], &[one], "Hard disk 2: the volumes of pool san"),
        ("missing", &["unit:0:0:1", "unit:0:0:9"], &[one], "LUN unit:0:0:9 of pool san is not there"),
        ("twice", &["unit:0:0:1", "36001drover-1"], &[one], "is that of Hard disk 1 of one, too"),
        ("small", &["unit:0:0:1", "unit:0:0:3"], &[one], "LUN unit:0:0:3 of pool san has 4194304 bytes"),
        ("held", &["unit:0:0:1", "unit:0:0:2"], &[one], "holds something that drover has no record of"),
        ("used", &["unit:0:0:1", "unit:0:0:4,overwrite"], &[one], "is a disk of the domain theirs"),
        ("images", &["unit:0:0:1"], &[one, images], "pool images of"),
    ];
    for (name, volumes, edits, words) in cases {
        refuses(&plan(&landing, name, "one", volumes, edits), words);
    }
    let qcow2 = ("  accel", "  format: qcow2\n  accel");
    let fine = ["unit:0:0:1", "unit:0:0:2,overwrite"];
    refuses(&plan(&landing, "format", "one", &fine, &[one, qcow2]), "and those hold raw disks");
    let checked = landing.arrives(&["plan", "check", &plan(&landing, "fine", "one", &fine, &[one])]);
    let told = format!("{}{}", checked.out, checked.err);
    let way = "Hard disk 2 of one is written to the LUN unit:0:0:2 (/dev/disk/by-path/lab-lun-2)";
    assert!(told.contains(way), "{told}");
    for (lun, (bytes, value)) in (1..).zip(sizes) {
        assert!(
            std::fs::read(luns.file(lun)).unwrap() == vec![value; bytes as usize],
            "LUN {lun} was touched"
        );
    }

    // Given up, they stay, and hold something from then on.
    let again = ["unit:0:0:1,overwrite", "unit:0:0:2,overwrite"];
    for edge in EARLY_EDGES {
        let name = format!("c-{}-{}", edge.0, edge.1).replace('_', "-");
        let volumes = if edge == EARLY_EDGES[0] { fine } else { again };
        let begun = plan(&landing, &name, "one", &volumes, &[one]);
        assert!(landing.killed_at(&["migrate", &begun], edge).is_some(), "{edge:?} never came");
        landing.runs_once("a", "one", edge);
        assert_ne!(landing.state("a", "one"), "running", "{edge:?}");
        let is_written = edge != EARLY_EDGES[0];
        if is_written {
            let other = plan(&landing, &format!("{name}-other"), "two", &["unit:0:0:1,overwrite"], &[two]);
            refuses(&other, "was written for another disk");
        }
        let given_up = landing.arrives(&["cancel", &name]);
        let told = format!("{}{}", given_up.out, given_up.err);
        for lun in ["unit:0:0:1", "unit:0:0:2"].into_iter().filter(|_| is_written) {
            let words =
                format!("LUN {lun} of pool san (/dev/disk/by-path/lab-lun-{}) stays as it is", &lun[9..]);
            assert!(told.contains(&words), "'{words}' in {told}");
        }
    }
    refuses(
        &plan(&landing, "left", "two", &["unit:0:0:1"], &[two]),
        "holds something that drover has no record of",
    );
    let other = plan(&landing, "freed", "two", &["unit:0:0:1,overwrite"], &[two]);
    landing.arrives(&["plan", "check", &other]);

    let moved = plan(&landing, "edges", "one", &again, &[one]);
    let mut args = vec!["migrate", moved.as_str()];
    for edge in edges(false) {
        landing.killed_at(&args, edge);
        landing.runs_once("a", "one", edge);
        args = vec!["resume", "edges"];
    }
    landing.arrives(&["resume", "edges"]);
    assert_eq!(landing.state("a", "one"), "running");
    let source = |disk: &str| std::fs::read(landing.stage.path(disk)).unwrap();
    holds(&luns, 1, &source("a"), 0);
    holds(&luns, 2, &source("b"), THEIRS);
    let xml = landing.xml("a", "one");
    let dev = "<source dev='/dev/disk/by-path/lab-lun-2'";
    assert!(xml.contains("<disk type='block'") && xml.contains(dev), "{xml}");
    landing.stays("a", "edges");

    // What has arrived is its domain's, also where drover has no record of it any more.
    refuses(&other, "was written for another disk");
    landing.arrives(&["clean", "edges", "--forget"]);
    refuses(&other, "is a disk of the domain one");
    landing.hosts.virsh("a", &["destroy", "one"]).unwrap();
    refuses(&moved, "is a disk of the domain one");
    landing.hosts.virsh("a", &["undefine", "one"]).unwrap();
    refuses(
        &plan(&landing, "left", "two", &["unit:0:0:1"], &[two]),
        "holds something that drover has no record of",
    );
    holds(&luns, 1, &source("a"), 0);
    assert!(std::fs::read(luns.file(4)).unwrap().iter().all(|byte| *byte == 0), "LUN 4 was touched");
}

#[test]
fn a_guest_in_a_lun_is_converted_once() {
    let Some((landing, luns)) = Landing::with_luns(244, &[(192 * MIB, 0)], |folder| {
        vec![with(vm("one", &[&debian(folder, "one", &[])]), json!({"power": "on", "nics": []}))]
    }) else {
        return;
    };
    put_marking_converter(&landing.stage.path("bin"), "");
    let convert = ("convert: never", "convert: auto");
    let plan = plan(&landing, "convert", "one", &["unit:0:0:1"], &[convert]);
    crate::is_converted_once(&landing, &plan);
    holds(&luns, 1, &marked(std::fs::read(landing.stage.path("one")).unwrap()), 0);
}
