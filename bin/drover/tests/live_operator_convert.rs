//! Guests that workers of the operator convert, in a true Kubernetes whose pods run.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use drover_lab::cluster::{Cluster, Volume};
use drover_lab::v2v::V2v;
use drover_lab::{chart, workspace};
use drover_stage::debian::{DISK_BYTES, debian, guest_of_vmware, marked, put_marking_converter};
use drover_stage::kubernetes::{CLAIMS, NAMESPACE, assert_holds};
use drover_stage::operated::{JOBS, LOCKS, OWN, Operated};
use drover_stage::{MIB, disk_file, vm, with};
use serde_json::{Value, json};

/// What the image with a converter is called.
const CONVERTER: &str = "localhost/drover-convert:test";
/// What the stand-in and drover call; but for the shell they are found by the image's `PATH`.
const TOOLS: [&str; 8] = [
    "/bin/sh",
    "/bin/sed=/usr/bin/sed",
    "/bin/grep=/usr/bin/grep",
    "/bin/rm=/usr/bin/rm",
    "/bin/sleep=/usr/bin/sleep",
    "/usr/bin/dirname",
    "/usr/bin/qemu-img",
    "/usr/bin/qemu-io",
];

/// Makes the image, of drover and these files or of a whole system, and gives it to the cluster.
fn import(cluster: &Cluster, system: Option<&Path>, files: &[String]) {
    let image = cluster.folder().join("converter.tar");
    let mut made = Command::new(workspace().join("lab/cluster/image"));
    if let Some(system) = system {
        made.arg("--on").arg(system);
    }
    let made = made.args([env!("CARGO_BIN_EXE_drover"), CONVERTER]).arg(&image).args(files).status();
    assert!(made.unwrap().success());
    cluster.import(&image).unwrap();
    std::fs::remove_file(image).unwrap();
}

fn plan_of(operated: &Operated, vms: Value) -> Value {
    let mut plan = operated.plan("convert", vms, "64MiB");
    plan["spec"]["plan"]["convert"] = json!("auto");
    plan
}

fn image_of_worker(operated: &Operated, vm: &str) -> Value {
    let migration = operated.migration(vm).unwrap()["metadata"]["name"].clone();
    let jobs = operated.items(JOBS);
    let job = jobs.iter().find(|it| it["metadata"]["labels"]["drover.dev/migration"] == migration);
    job.unwrap()["spec"]["template"]["spec"]["containers"][0]["image"].clone()
}

#[test]
fn a_guest_waits_untouched_for_a_converter_and_is_converted_by_its_worker() {
    let operated = Operated::new(187, |folder| {
        let vmware = with(vm("vmware", &[&debian(folder, "vmware", &[])]), json!({"nics": []}));
        vec![vmware, vm("plain", &[&disk_file(folder, "b", 4 * MIB)])]
    });
    let Some(mut operated) = operated else { return };
    let a = operated.landing.cluster.volume("v-a", Volume::Block, DISK_BYTES).unwrap();
    let b = operated.landing.cluster.volume("v-b", Volume::Block, 4 * MIB).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Folder, 256 * MIB).unwrap();
    operated.landing.cluster.volume("s-b", Volume::Folder, 64 * MIB).unwrap();
    let source = std::fs::read(operated.landing.stage.path("vmware")).unwrap();
    let before = operated.landing.stage.source_state();
    operated.make(&plan_of(&operated, json!([{"name": "vmware", "convert": "always"}])));
    operated.wait("it says what is missing", || {
        operated.condition("vmware", "Arrived")["reason"] == "ConverterMissing"
    });
    let message = operated.condition("vmware", "Arrived")["message"].to_string();
    assert!(message.contains("--converter-image"), "{message}");
    let made: Vec<String> = [CLAIMS, JOBS, LOCKS].iter().flat_map(|it| operated.landing.names(it)).collect();
    assert_eq!(made, Vec::<String>::new());
    assert_eq!(operated.landing.stage.source_state(), before);

    let tools = operated.landing.stage.path("tools");
    put_marking_converter(&tools, "");
    let converter = format!("{}=/usr/bin/virt-v2v-in-place", tools.join("virt-v2v-in-place").display());
    let files: Vec<String> = TOOLS.map(str::to_string).into_iter().chain([converter]).collect();
    import(&operated.landing.cluster, None, &files);
    with_converter(&operated, &[("converterMemory", "512Mi"), ("converterStateSize", "128Mi")]);
    // Its state fits the larger volume alone.
    let claims = || operated.items(CLAIMS);
    let is_state = |it: &&Value| it["metadata"]["name"].as_str().unwrap().ends_with("-state");
    operated.wait("its state", || claims().iter().find(is_state).is_some());
    let state = claims().iter().find(is_state).cloned().unwrap();
    assert_eq!(state["spec"]["resources"]["requests"]["storage"], "128Mi");
    operated.wait("it arrives", || operated.phase("vmware") == "Done");
    assert_eq!(image_of_worker(&operated, "vmware"), CONVERTER);
    let words = operated.says(&["logs", "vmware"]);
    assert!(words.contains("convert.log"), "{words}");
    let volume = std::fs::read(&a).unwrap();
    assert!(volume[..source.len()] == marked(source.clone()), "by the mark, and nothing else");

    // Who converts nothing has the plain image.
    let both = json!([{"name": "vmware", "convert": "always"}, {"name": "plain", "convert": "never"}]);
    let edited = json!({"spec": {"plan": {"vms": both}}});
    operated.landing.cluster.merge(&format!("{OWN}/plans/convert"), &edited).unwrap();
    operated.wait("the other arrives", || operated.phase("plain") == "Done");
    assert_ne!(image_of_worker(&operated, "plain"), CONVERTER);
    assert_holds(&b, &operated.landing.stage.path("b"));
}

/// Has the operator's workers use the image.
fn with_converter(operated: &Operated, more: &[(&str, &str)]) {
    let values = [&[("converterImage", CONVERTER)][..], more].concat();
    chart::install_with(&operated.landing.cluster, NAMESPACE, "16Mi", &values).unwrap();
}

/// Some 10 minutes, most of them without KVM in the converter's appliance.
#[test]
#[ignore = "takes four minutes; `make check-conversion` runs it"]
fn a_guest_of_vmware_is_converted_by_the_real_converter_in_a_pod() {
    let (Some(v2v), Some((guest, _))) = (V2v::find().unwrap(), guest_of_vmware()) else { return };
    let disks: [PathBuf; 2] = ["root.img", "data.img"].map(|name| guest.join(name));
    let operated =
        Operated::new(188, |_| vec![with(vm("vmware", &[&disks[0], &disks[1]]), json!({"memory_mib": 512}))]);
    let Some(mut operated) = operated else { return };
    for (number, disk) in disks.iter().enumerate() {
        let bytes = std::fs::metadata(disk).unwrap().len();
        operated.landing.cluster.volume(&format!("v-{number}"), Volume::Block, bytes).unwrap();
    }
    operated.landing.cluster.volume("s-a", Volume::Folder, 4096 * MIB).unwrap();
    let system = v2v.bin().parent().unwrap().join("root");
    import(&operated.landing.cluster, Some(&system), &[]);
    with_converter(&operated, &[("converterMemory", "3Gi"), ("converterStateSize", "4Gi")]);
    operated.make(&plan_of(&operated, json!([{"name": "vmware", "convert": "always"}])));
    for _ in 0..10 {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while operated.phase("vmware") != "Done" && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_secs(2));
        }
    }
    assert_eq!(operated.phase("vmware"), "Done", "{}", operated.told());
    let words = operated.says(&["logs", "vmware"]);
    assert!(words.contains("convert.log"), "{words}");
}
