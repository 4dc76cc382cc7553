//! Reading from a simulated ESXi host by NFC, beside VMware's way (nbdkit's true vddk plugin with a stand-in for the library)
//! and HTTPS. All bytes go nowhere, so no disk is in the way.
//!
//! The simulator's NFC server and HTTPS server send through TLS; the stand-in reads the same file in its own process, and
//! waits as long for each buffer as the simulator for each answer. So nothing is decrypted there, nor sent: where there is
//! no latency it has the easier work.

use std::path::PathBuf;

use anyhow::{Context, Result};
use drover_lab::{PASSWORD, Scene, Sim, StandIn, USER};
use serde_json::json;

use crate::cases::{TUNED, copier, limit, program, text};
use crate::data::Data;
use crate::measure::{Case, Entry, Role};
use crate::server::Server;

const GOAL: f64 = 1.5;

/// A case for each latency, each with a simulated vSphere of its own; none where the stand-in is not there.
pub fn cases(data: &Data) -> Result<Vec<Case>> {
    if Sim::program().is_none() || !StandIn::is_there() {
        return Ok(Vec::new());
    }
    let of = |(name, latency_ms, number)| case(data, name, latency_ms, number);
    [("NFC 0ms to null", 0, 87), ("NFC 1ms to null", 1, 88), ("NFC 5ms to null", 5, 89)]
        .into_iter()
        .map(of)
        .collect()
}

fn case(data: &Data, name: &'static str, latency_ms: u64, number: u8) -> Result<Case> {
    let drover = program()?;
    let folder = data.folder.join(format!("nfc-{latency_ms}"));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let disks = json!([{"file": data.random()?, "datastore": "ds1", "controller": "pvscsi"}]);
    // The same disk at a host that speaks NFC and at one that does not, where drover takes HTTPS.
    let vm = |name: &str, host: &str| json!({"name": name, "host": host, "power": "off", "disks": disks});
    let scene = Scene::new(number, vec![vm("bench", "esx1.lab"), vm("ranges", "esx2.lab")]);
    let sim = Sim::start(&scene.inventory, &folder.join("vsphere"))?;
    sim.post("/nfc/set", json!({"host": "esx1.lab", "latency_ms": latency_ms}))?;
    sim.post("/nfc/set", json!({"host": "esx2.lab", "refuse_tls": true}))?;
    sim.post("/latency", json!({"ms": latency_ms}))?;
    let stand_in = StandIn::new(&folder.join("libdir"), &sim)?;
    stand_in.set(&format!("latency_us={}", latency_ms * 1000))?;
    let usual = vddk(&sim, &stand_in, "bench", folder.join("usual.sock"), None)?;
    let best = vddk(&sim, &stand_in, "bench", folder.join("best.sock"), Some(folder.join("vddk.conf")))?;
    let copy = |name, from: &str| {
        copier(name, &[&drover, "copy", "--quiet", "--thumbprint", &sim.thumbprint, from, "null:"])
    };
    let disk = |vm: &str| format!("vsphere://127.0.0.1:{}/{vm}/0", sim.port);
    let url = format!("https://127.0.0.1:{}/folder/bench/bench-flat.vmdk?dcPath=DC0&dsName=ds1", sim.port);
    let login = format!("{USER}:{PASSWORD}");
    let (usual_uri, best_uri) = (usual.uri(), best.uri());
    let entries = vec![
        copy("drover copy, NFC", &disk("bench")),
        copier("nbdkit-vddk + nbdcopy", &["nbdcopy", &usual_uri, "null:"]),
        copier("nbdkit-vddk 16 x 4 + nbdcopy", &["nbdcopy", &best_uri, "null:"]),
        copier(
            "nbdkit-vddk 16 x 4 + nbdcopy -C4 -R16 1 MiB",
            &[&["nbdcopy"], &TUNED[..], &[&best_uri, "null:"]].concat(),
        ),
        Entry { role: Role::Ours, ..copy("drover through nbdkit-vddk 16 x 4", &best_uri) },
        Entry { role: Role::Ours, ..copy("drover copy, HTTPS", &disk("ranges")) },
        limit("limit: curl, one GET", &["curl", "-sSfk", "-u", &login, "-o", "/dev/null", &url]),
    ];
    let mut case = Case {
        name,
        goal: GOAL,
        bytes: data.mib << 20,
        entries,
        output: None,
        keep: Vec::new(),
        servers: vec![sim.pid()],
    };
    case = case.keep(usual).keep(best);
    case.keep.push(Box::new(sim));
    Ok(case)
}

/// nbdkit with the first disk of a VM that is off; with a configuration file, the buffers of VMware's advice (1 MiB x 4).
pub fn vddk(
    sim: &Sim,
    stand_in: &StandIn,
    vm: &str,
    socket: PathBuf,
    config: Option<PathBuf>,
) -> Result<Server> {
    let moid = sim.vm(vm)?["moid"].as_str().context("a moid")?.to_string();
    let mut arguments = vec![
        "-r".to_string(),
        text(&StandIn::plugin()),
        format!("libdir={}", text(stand_in.libdir())),
        "server=127.0.0.1".to_string(),
        format!("port={}", sim.port),
        format!("user={USER}"),
        format!("password={PASSWORD}"),
        format!("thumbprint={}", sim.thumbprint),
        format!("vm=moref={moid}"),
        format!("file=[ds1] {vm}/{vm}.vmdk"),
    ];
    if let Some(config) = config {
        let buffers = ["BufSizeIn64KB=16", "BufCount=4"];
        std::fs::write(&config, buffers.map(|it| format!("vixDiskLib.nfcAio.Session.{it}\n")).concat())?;
        arguments.push(format!("config={}", text(&config)));
    }
    Server::nbdkit(socket, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}
