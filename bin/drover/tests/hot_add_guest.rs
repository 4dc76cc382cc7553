//! A real proxy VM: a Linux guest under QEMU with the agent inside. What the simulator attaches and detaches is plugged into and
//! taken out of the running guest as SCSI disks.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use drover_lab::{Drover, lab_folder, workspace};
use drover_stage::process::{wait_for_records, wait_until};
use drover_stage::sites::own_address;
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::json;

/// A guest boots under emulation, beside other tests.
const PATIENCE: Duration = Duration::from_secs(240);

/// A guest with the agent, until it is dropped.
struct Guest {
    qemu: Child,
    console: PathBuf,
    monitor: PathBuf,
    address: String,
}

impl Guest {
    /// Boots one whose agent has this state.
    fn boot(folder: &Path, state: &Path) -> Guest {
        let made = folder.join("proxy");
        let status = Command::new(workspace().join("lab/guests/make-proxy"))
            .arg("--out")
            .arg(&made)
            .args(["--program", env!("CARGO_BIN_EXE_drover"), "--state"])
            .arg(state)
            .arg("--guests")
            .arg(lab_folder().join("guests"))
            .status();
        assert!(status.unwrap().success());
        let (console, monitor) = (folder.join("console"), folder.join("qmp.sock"));
        // Free now, and on an address that nobody else uses.
        let address = TcpListener::bind(own_address()).unwrap().local_addr().unwrap();
        let forward = format!("user,id=n,hostfwd=tcp:{}:{}-10.0.2.15:7843", address.ip(), address.port());
        let qemu = Command::new("qemu-system-x86_64")
            .args([
                "-machine",
                "q35",
                "-accel",
                "tcg",
                "-cpu",
                "max",
                "-smp",
                "2",
                "-m",
                "768",
                "-nodefaults",
            ])
            .args([
                "-display",
                "none",
                "-no-reboot",
                "-device",
                "virtio-scsi-pci,id=scsi0",
                "-netdev",
                &forward,
            ])
            .args(["-device", "virtio-net-pci,netdev=n,romfile=", "-append"])
            .arg("console=ttyS0,115200 quiet panic=5 no5lvl mitigations=off random.trust_cpu=on")
            .arg("-kernel")
            .arg(made.join("vmlinuz"))
            .arg("-initrd")
            .arg(made.join("initrd"))
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut guest = Guest { qemu, console, monitor, address: address.to_string() };
        wait_until("the agent in the guest listens", PATIENCE, || {
            assert!(guest.qemu.try_wait().unwrap().is_none(), "{}", guest.said());
            guest.said().contains("\"listening\"")
        });
        guest
    }

    /// As if its host had lost power.
    fn die(&mut self) {
        self.qemu.kill().unwrap();
        self.qemu.wait().unwrap();
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap_or_default()).into_owned()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn can_run() -> bool {
    let has = |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    let is_built = lab_folder().join("guests/web01-0.img").exists();
    let can = is_built && has("qemu-system-x86_64") && has("mcopy") && has("cpio") && has("strip");
    if !can {
        println!("skipped: needs QEMU, mtools, cpio, binutils and the guests of `make lab`");
    }
    can
}

#[test]
fn a_guest_sees_the_disks_that_are_attached_to_it_and_its_agent_reads_them_cold_and_warm_until_it_dies() {
    if !can_run() {
        return;
    }
    let Some(stage) = Stage::new(159, |folder| {
        let a = disk_file(folder, "a", 8 * MIB);
        let b = disk_file(folder, "b", 3 * MIB + 512);
        let large = disk_file(folder, "large", 64 * MIB);
        let own = json!({"power": "on", "disks": [], "extra_config": {"disk.EnableUUID": "TRUE"}});
        let own =
            with(own, json!({"disks": [{"capacity": 4096, "datastore": "ds1", "controller": "pvscsi"}]}));
        vec![
            vm("cold", &[&a, &b]),
            with(vm("warm", &[&a]), json!({"power": "on"})),
            vm("large", &[&large]),
            with(vm("proxy01", &[]), own),
        ]
    }) else {
        return;
    };
    let there = Drover::new(env!("CARGO_BIN_EXE_drover"), stage.path("there"));
    let token = there.run(&["agent", "pair", "--new-token"]).unwrap();
    std::fs::write(stage.path("token"), token.out.trim()).unwrap();
    let mut guest = Guest::boot(&stage.path(""), &stage.path("there"));
    let plug = json!({"vm": "proxy01", "qmp": guest.monitor, "bus": "scsi0.0"});
    stage.sim.post("/hotadd/guest", plug).unwrap();
    let token = stage.path("token").display().to_string();
    let pair = ["agent", "pair", &guest.address, "--name", "proxy", "--as", "here", "--token-file", &token];
    let paired = stage.run(&pair);
    assert_eq!(paired.code, Some(0), "{}\n{}", paired.err, guest.said());

    let path = "path: hotadd\n    proxies: [{vm: proxy01, site: proxy}]";
    // A plan of one VM.
    let of = |name: &str, edits: &[(&str, &str)]| {
        let others: Vec<String> = ["cold", "warm", "large", "proxy01"]
            .iter()
            .filter(|other| **other != name)
            .map(|other| format!("  - name: \"{other}\"\n"))
            .collect();
        let others = others.iter().map(|other| (other.as_str(), ""));
        stage.plan(name, &edits.iter().copied().chain(others).collect::<Vec<_>>())
    };
    let before = stage.source_state();
    let cold = of("cold", &[("path: https", path)]);
    stage.migrate(&cold);
    stage.assert_equal("cold", 0, &stage.path("a"));
    stage.assert_equal("cold", 1, &stage.path("b"));
    assert_eq!(stage.source_state(), before);

    let writer = json!({"vm": "warm", "disk": 0, "bytes_per_s": 100_000, "block": 4096, "span": "0-2MiB"});
    stage.sim.post("/writer", writer).unwrap();
    let warm = "mode: warm\nwarm: {interval: 1s, cutover: auto}";
    stage.migrate(&of("warm", &[("path: https", path), ("mode: cold", warm)]));
    let disks = stage.sim.get("/disks?vm=warm").unwrap();
    stage.assert_equal("warm", 0, Path::new(disks[0]["disks"][0]["live"].as_str().unwrap()));

    let hot_added = stage.sim.get("/hotadd").unwrap();
    assert!(hot_added["attached"] == json!([]) && hot_added["attaches"].as_u64() >= Some(5), "{hot_added}");
    assert_eq!(stage.served(), 0, "nothing came another way");
    let report = stage.report(&cold);
    assert!(report["vms"][0]["disks"][0]["details"]["note"].to_string().contains("read by proxy proxy01"));

    // It dies in the middle of a disk, and vSphere has not noticed.
    let either = path.replace("hotadd", "auto");
    let limits = "\nlimits: {retries: 1, retry_for: 2s}\nvms:\n";
    let dying = of("large", &[("path: https", either.as_str()), ("\nvms:\n", limits)]);
    let mut running = stage.drover.start(&["migrate", &dying]).unwrap();
    wait_for_records(&stage.image("large", 0));
    guest.die();
    assert_ne!(running.child.wait().unwrap().code(), Some(0));
    assert_nothing_left(&stage);
    let resumed = stage.run(&["resume", &dying]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    stage.assert_equal("large", 0, &stage.path("large"));
    let report = stage.report(&dying);
    let disk = &report["vms"][0]["disks"][0]["details"];
    assert!(disk["note"].to_string().contains("read by NFC"), "{disk:#}");
    assert!(disk["resumed_bytes"].as_u64() > Some(0), "it goes on where the guest left it: {disk:#}");
    assert_nothing_left(&stage);
}

fn assert_nothing_left(stage: &Stage) {
    assert_eq!(stage.sim.get("/hotadd").unwrap()["attached"], json!([]));
    assert!(!stage.source_state().to_string().contains("drover-"), "{:#}", stage.source_state());
}
