//! Reading from a simulated ESXi host by NFC, beside VMware's way (nbdkit's true vddk plugin with a stand-in for the library,
//! which reads by NFC from the same host) and HTTPS. All bytes go nowhere, so no disk is in the way.

use std::path::PathBuf;

use anyhow::{Context, Result};
use drover_lab::{PASSWORD, Scene, Sim, StandIn, USER};
use serde_json::json;

use crate::clone::copy::cases::{copier, limit, program, text};
use crate::clone::copy::data::Data;
use crate::clone::copy::measure::{Case, Entry, Role};
use crate::clone::copy::server::Server;

const GOAL: f64 = 1.5;

/// VDDK's buffers (64 KiB each, how many) that did best by hand, at all latencies; see `bench/LOG.md`.
const BEST_BUFFERS: (u32, u32) = (16, 16);
/// And nbdcopy's settings with them. nbdkit says no to more than one connection to this plugin.
const BEST_NBDCOPY: [&str; 2] = ["--requests=16", "--request-size=1048576"];

/// Of the scene: no other bench has its addresses.
const NUMBER: u8 = 87;

/// drover through the same nbdkit. Each connection would be a session of its own at the host, and three of them are all of
/// its memory; so plans (`path: vddk`) have one, too.
const BY_ONE: [&str; 4] = ["copy", "--quiet", "--lanes", "1"];

const GIGABIT_BYTES_PER_S: u64 = 125_000_000;

/// Names of the cases: one for each latency, and one for a slow line.
pub const NAMES: [&str; 4] =
    ["NFC 0ms to null", "NFC 1ms to null", "NFC 5ms to null", "NFC half sparse, 1 Gbit/s, to null"];

/// The case of that name, with a simulated vSphere of its own; none where the stand-in is not there. Made when it is run,
/// since each has copies of the disk.
pub fn case(data: &Data, name: &'static str) -> Result<Option<Case>> {
    if Sim::program().is_none() || !StandIn::is_there() {
        return Ok(None);
    }
    let latency_ms = match NAMES.iter().position(|it| *it == name) {
        Some(0) => 0,
        Some(1) => 1,
        Some(2) => 5,
        _ => return half_sparse(data, name).map(Some),
    };
    cold(data, name, latency_ms).map(Some)
}

/// A simulated vSphere with this disk: VM `bench` at a host that speaks NFC, `ranges` at one that does not, where drover
/// takes HTTPS.
struct Lab {
    sim: Sim,
    stand_in: StandIn,
    folder: PathBuf,
    drover: String,
    servers: Vec<Server>,
}

impl Lab {
    fn new(data: &Data, disk: PathBuf) -> Result<Lab> {
        let folder = data.folder.join("nfc");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let disks = json!([{"file": disk, "datastore": "ds1", "controller": "pvscsi"}]);
        let vm = |name: &str, host: &str| json!({"name": name, "host": host, "power": "off", "disks": disks});
        let scene = Scene::new(NUMBER, vec![vm("bench", "esx1.lab"), vm("ranges", "esx2.lab")]);
        let sim = Sim::start(&scene.inventory, &folder.join("vsphere"))?;
        sim.post("/nfc/set", json!({"host": "esx2.lab", "refuse_tls": true}))?;
        let stand_in = StandIn::new(&folder.join("libdir"), &sim)?;
        stand_in.set("data=nfc")?;
        Ok(Lab { sim, stand_in, folder, drover: program()?, servers: Vec::new() })
    }

    /// drover, reading a VM's disk by itself.
    fn drover(&self, name: &'static str, vm: &str) -> Entry {
        let disk = format!("vsphere://127.0.0.1:{}/{vm}/0", self.sim.port);
        let thumbprint = &self.sim.thumbprint;
        copier(name, &[&self.drover, "copy", "--quiet", "--thumbprint", thumbprint, &disk, "null:"])
    }

    /// A command that ends with the URI of an nbdkit of its own and `null:`. What nbdkit uses counts as the command's.
    fn through_vddk(&mut self, name: &'static str, command: &[&str], vddk: &Vddk) -> Result<Entry> {
        let socket = self.folder.join(format!("{}.sock", self.servers.len()));
        let server = vddk.serve(&self.sim, &self.stand_in, "bench", socket)?;
        let uri = server.uri();
        let all = [command, &[&uri, "null:"]].concat();
        let entry = Entry { helper: Some(server.pid()), ..copier(name, &all) };
        self.servers.push(server);
        Ok(entry)
    }

    fn curl(&self) -> Entry {
        let address = format!("https://127.0.0.1:{}", self.sim.port);
        let url = format!("{address}/folder/ranges/ranges-flat.vmdk?dcPath=DC0&dsName=ds1");
        let login = format!("{USER}:{PASSWORD}");
        limit("limit: curl, one GET", &["curl", "-sSfk", "-u", &login, "-o", "/dev/null", &url])
    }

    fn case(self, name: &'static str, bytes: u64, entries: Vec<Entry>) -> Case {
        let servers = vec![self.sim.pid()];
        let mut case = Case { name, goal: GOAL, bytes, entries, output: None, keep: Vec::new(), servers };
        case.keep.extend(self.servers.into_iter().map(|it| Box::new(it) as Box<dyn std::any::Any>));
        case.keep.push(Box::new(self.sim));
        case
    }
}

fn cold(data: &Data, name: &'static str, latency_ms: u64) -> Result<Case> {
    let mut lab = Lab::new(data, data.random()?)?;
    lab.sim.post("/nfc/set", json!({"host": "esx1.lab", "latency_ms": latency_ms}))?;
    lab.sim.post("/latency", json!({"ms": latency_ms}))?;
    let (usual, best) = (Vddk::default(), Vddk { buffers: Some(BEST_BUFFERS), compression: None });
    let drover = lab.drover.clone();
    let entries = vec![
        lab.drover("drover copy, NFC", "bench"),
        lab.through_vddk("nbdkit-vddk 1 x 4 + nbdcopy", &["nbdcopy"], &usual)?,
        lab.through_vddk("nbdkit-vddk 16 x 16 + nbdcopy", &["nbdcopy"], &best)?,
        lab.through_vddk(
            "nbdkit-vddk 16 x 16 + nbdcopy -R16 1 MiB",
            &[&["nbdcopy"], &BEST_NBDCOPY[..]].concat(),
            &best,
        )?,
        Entry {
            role: Role::Ours,
            ..lab.through_vddk(
                "drover through nbdkit-vddk 16 x 16",
                &[&[drover.as_str()], &BY_ONE[..]].concat(),
                &best,
            )?
        },
        Entry { role: Role::Ours, ..lab.drover("drover copy, HTTPS", "ranges") },
        lab.curl(),
    ];
    Ok(lab.case(name, data.mib << 20, entries))
}

/// A disk that is half zeros, all of them allocated as far as the host tells, over 1 Gbit/s.
fn half_sparse(data: &Data, name: &'static str) -> Result<Case> {
    let mut lab = Lab::new(data, data.half_sparse()?)?;
    let line = json!({"host": "esx1.lab", "host_bytes_per_s": GIGABIT_BYTES_PER_S, "qab": "off"});
    lab.sim.post("/nfc/set", line)?;
    let plain = Vddk { buffers: Some(BEST_BUFFERS), compression: None };
    let packed = Vddk { compression: Some("skipz"), ..plain };
    let nbdcopy = [&["nbdcopy"], &BEST_NBDCOPY[..]].concat();
    let drover = lab.drover.clone();
    let entries = vec![
        lab.drover("drover copy, NFC", "bench"),
        lab.through_vddk("nbdkit-vddk 16 x 16 + nbdcopy -R16 1 MiB", &nbdcopy, &plain)?,
        lab.through_vddk("nbdkit-vddk 16 x 16 skipz + nbdcopy -R16 1 MiB", &nbdcopy, &packed)?,
        Entry {
            role: Role::Ours,
            ..lab.through_vddk(
                "drover through nbdkit-vddk 16 x 16 skipz",
                &[&[drover.as_str()], &BY_ONE[..]].concat(),
                &packed,
            )?
        },
    ];
    Ok(lab.case(name, data.mib << 20, entries))
}

/// How VDDK reads.
#[derive(Clone, Copy, Default)]
pub struct Vddk {
    /// Buffers of a disk: units of 64 KiB each, and how many; its own (1 x 4) if it is not told.
    pub buffers: Option<(u32, u32)>,
    pub compression: Option<&'static str>,
}

impl Vddk {
    /// nbdkit with the first disk of a VM that is off.
    pub fn serve(&self, sim: &Sim, stand_in: &StandIn, vm: &str, socket: PathBuf) -> Result<Server> {
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
        if let Some((size, count)) = self.buffers {
            let config = socket.with_extension("conf");
            let settings = [("BufSizeIn64KB", size), ("BufCount", count)];
            let line = |(key, value)| format!("vixDiskLib.nfcAio.Session.{key}={value}\n");
            std::fs::write(&config, settings.map(line).concat())?;
            arguments.push(format!("config={}", text(&config)));
        }
        arguments.extend(self.compression.map(|codec| format!("compression={codec}")));
        Server::nbdkit(socket, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
