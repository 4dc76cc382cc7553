//! The stand-in for VMware's library reads disks by NFC, and is what the benches hold drover against: so what it sends is
//! looked at as closely as what it reads.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use drover_disk::{Buffer, Disk, Request, Work};
use drover_lab::{PASSWORD, Scene, Sim, StandIn, USER};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_types::{ByteSpan, ExtentKind};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

/// A simulated host with a disk that ends within a chunk, and the library that reads it.
struct Lab {
    folder: tempfile::TempDir,
    sim: Sim,
    stand_in: StandIn,
    content: Vec<u8>,
}

/// nbdkit with that disk; ends when dropped.
struct Nbdkit {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Lab {
    fn new(number: u8) -> Option<Lab> {
        if Sim::program().is_none() || !StandIn::is_there() {
            println!("skipped: simulator, stand-in or nbdkit's vddk plugin is not there");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk.raw");
        let content = content();
        write_sparse(&file, &content);
        let disk = json!({"file": file, "datastore": "ds1", "controller": "pvscsi"});
        let vm = json!({"name": "one", "host": "esx1.lab", "power": "off", "disks": [disk]});
        let sim =
            Sim::start(&Scene::new(number, vec![vm]).inventory, &folder.path().join("vsphere")).unwrap();
        let stand_in = StandIn::new(&folder.path().join("libdir"), &sim).unwrap();
        stand_in.set("data=nfc").unwrap();
        Some(Lab { folder, sim, stand_in, content })
    }

    /// nbdkit with these settings of the plugin, and of VDDK's own file.
    fn nbdkit(&self, name: &str, settings: &[&str], vddk: &str) -> Nbdkit {
        let path = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        let (socket, log, config) = (path("sock"), path("log"), path("conf"));
        std::fs::write(&config, vddk).unwrap();
        let moid = self.sim.vm("one").unwrap()["moid"].as_str().unwrap().to_string();
        let child = Command::new("nbdkit")
            .args(["-f", "-r", "--exit-with-parent", "-U"])
            .arg(&socket)
            .arg(StandIn::plugin())
            .arg(format!("libdir={}", self.stand_in.libdir().display()))
            .arg(format!("config={}", config.display()))
            .arg(format!("port={}", self.sim.port))
            .args(["server=127.0.0.1", "file=[ds1] one/one.vmdk"])
            .arg(format!("user={USER}"))
            .arg(format!("password={PASSWORD}"))
            .arg(format!("thumbprint={}", self.sim.thumbprint))
            .arg(format!("vm=moref={moid}"))
            .args(settings)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let until = Instant::now() + PATIENCE;
        // The socket is there before nbdkit listens on it.
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(&log).unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
        Nbdkit { child, socket, log }
    }

    fn counted(&self) -> Value {
        self.sim.get("/nfc/stats").unwrap()["hosts"]["esx1.lab"]["services"]["vpxa-nfc"].clone()
    }

    fn wait_until_closed(&self) {
        let until = Instant::now() + PATIENCE;
        while self.counted()["sessions"] != 0 || self.counted()["memory"] != 0 {
            assert!(Instant::now() < until, "a session is left: {}", self.counted());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Nbdkit {
    fn open(&self) -> Result<NbdDisk, drover_disk::DiskError> {
        let uri = format!("nbd+unix:///?socket={}", self.socket.display());
        // Each connection would be a session of its own at the host.
        NbdDisk::open_source(&uri.parse().unwrap(), NbdOptions { single: true, ..NbdOptions::default() })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

/// Three MiB of data, one of zeros, and so on, and an end that is no whole chunk. No two blocks are equal.
fn content() -> Vec<u8> {
    let mut bytes = vec![0; (12 * MIB + 1536) as usize];
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for (number, piece) in bytes.chunks_mut(MIB as usize).enumerate() {
        for word in piece.chunks_exact_mut(8).filter(|_| number % 4 != 3) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&state.to_be_bytes());
        }
    }
    bytes
}

/// Without the MiBs of zeros, which the host then calls not allocated.
fn write_sparse(path: &Path, content: &[u8]) {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(content.len() as u64).unwrap();
    for (number, piece) in content.chunks(MIB as usize).enumerate().filter(|(number, _)| number % 4 != 3) {
        file.write_all_at(piece, number as u64 * MIB).unwrap();
    }
}

/// Reads all of it by requests of these lengths, all in flight at once.
fn read(disk: &dyn Disk, lengths: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0; disk.size() as usize];
    let mut lane = disk.open_lane().unwrap();
    let (mut at, mut lengths) = (0, lengths.iter().cycle());
    while at < disk.size() || lane.in_flight() > 0 {
        while at < disk.size() && lane.in_flight() < disk.limits().depth_max {
            let span = ByteSpan::new(at, (*lengths.next().unwrap()).min(disk.size() - at));
            let work = Work::Read(Buffer::zeroed(span.length as usize));
            lane.submit(Request { id: at, span, work });
            at = span.end();
        }
        let done = lane.complete().unwrap();
        done.result.unwrap();
        let Work::Read(buffer) = done.work else { panic!("not a read") };
        let (start, end) = (done.span.offset as usize, done.span.end() as usize);
        bytes[start..end].copy_from_slice(&buffer[..end - start]);
    }
    bytes
}

#[test]
fn disks_are_read_equal_with_as_many_requests_in_flight_as_there_are_buffers() {
    let Some(lab) = Lab::new(160) else { return };
    lab.sim.post("/nfc/set", json!({"latency_ms": 10})).unwrap();
    let cases: [(&str, &[&str], (u64, u64)); 4] = [
        ("usual", &[], (1, 4)),
        ("large", &[], (16, 8)),
        ("clear", &["transports=nbd"], (2, 3)),
        ("packed", &["compression=skipz"], (4, 4)),
    ];
    for (name, settings, (size, count)) in cases {
        lab.sim.post("/stats/reset", json!({})).unwrap();
        let vddk = format!(
            "vixDiskLib.nfcAio.Session.BufSizeIn64KB={size}\nvixDiskLib.nfcAio.Session.BufCount={count}\n"
        );
        let nbdkit = lab.nbdkit(name, settings, if name == "usual" { "" } else { &vddk });
        let disk = nbdkit.open().unwrap();
        assert_eq!(disk.size(), lab.content.len() as u64);
        let found = read(&disk, &[1 << 20, 512, 65_536, 300_544]);
        assert!(found == lab.content, "{name}: what was read differs");
        let counted = lab.counted();
        assert_eq!(counted["in_flight_most_of_one"], count, "{name}: {counted}");
        assert_eq!(counted["memory_most"], (size * count) << 16, "{name}: {counted}");
        assert_eq!(counted["bytes_read"], lab.content.len() as u64, "{name}: each byte once: {counted}");
        let packs = counted["bytes_sent"].as_u64().unwrap() < 10 * MIB;
        assert_eq!(packs, name == "packed", "{name}: zeros are left out: {counted}");
        drop((disk, nbdkit));
        lab.wait_until_closed();
    }
    assert!(lab.stand_in.calls("open vm=")[2].contains("transport=nbd "), "{:?}", lab.stand_in.calls("open"));
}

#[test]
fn fragments_may_come_in_any_order_and_raw_ones_under_the_codec_that_was_asked_for() {
    let Some(lab) = Lab::new(161) else { return };
    let odd = json!({"fragment_bytes": [4096, 512, 65_536], "fragment_order": "shuffle", "mix": 4, "latency_ms": 1,
                     "codec_answer": "raw_kept"});
    lab.sim.post("/nfc/set", odd).unwrap();
    let nbdkit = lab.nbdkit("odd", &["compression=skipz"], "");
    assert!(read(&nbdkit.open().unwrap(), &[1 << 20]) == lab.content, "what was read differs");
}

#[test]
fn holes_are_those_that_the_host_tells() {
    let Some(lab) = Lab::new(162) else { return };
    let nbdkit = lab.nbdkit("map", &[], "");
    let disk = nbdkit.open().unwrap();
    let (mut holes, mut at) = (Vec::new(), 0);
    while at < disk.size() {
        for extent in disk.extents(ByteSpan::from_bounds(at, disk.size())).unwrap() {
            assert_eq!(extent.span.offset, at);
            at = extent.span.end();
            if extent.kind == ExtentKind::Zero {
                holes.push(extent.span);
            }
        }
    }
    let wanted: Vec<_> = [3, 7, 11].map(|mib| ByteSpan::new(mib * MIB, MIB)).to_vec();
    assert_eq!(holes, wanted);
}

#[test]
fn a_host_that_tells_no_holes_is_read_all_the_same() {
    let Some(lab) = Lab::new(164) else { return };
    for error_then_reply in [true, false] {
        lab.sim.post("/nfc/set", json!({"qab": "off", "error_then_reply": error_then_reply})).unwrap();
        let nbdkit = lab.nbdkit(&format!("untold-{error_then_reply}"), &[], "");
        assert!(read(&nbdkit.open().unwrap(), &[1 << 20]) == lab.content, "what was read differs");
        assert!(nbdkit.log().contains("QUERY_ALLOCATED_BLOCKS is not supported"), "{}", nbdkit.log());
    }
}

#[test]
fn a_host_that_refuses_is_an_error_that_says_why() {
    let Some(lab) = Lab::new(163) else { return };
    let refused = |name: &str, settings: &[&str], words: &str| {
        let nbdkit = lab.nbdkit(name, settings, "");
        let opened = nbdkit.open().map(|disk| {
            let mut lane = disk.open_lane().unwrap();
            let work = Work::Read(Buffer::zeroed(MIB as usize));
            lane.submit(Request { id: 1, span: ByteSpan::new(0, MIB), work });
            lane.complete().unwrap().result
        });
        assert!(!matches!(opened, Ok(Ok(()))), "{name}");
        assert!(nbdkit.log().contains(words), "{name}: {}", nbdkit.log());
        assert!(!nbdkit.log().contains(PASSWORD), "a secret is shown");
    };
    lab.sim.post("/nfc/set", json!({"memory_bytes": 100_000})).unwrap();
    refused("memory", &[], "NFC error 5 from server: Failed to allocate the requested 262144 bytes");
    lab.sim.post("/nfc/reset", json!({})).unwrap();
    lab.sim.post("/nfc/set", json!({"ticket_pin": "wrong"})).unwrap();
    refused("certificate", &[], "Thumbprint mismatch of the host");
    lab.sim.post("/nfc/reset", json!({})).unwrap();
    refused("codec", &["compression=zlib"], "no compression by NFC but SkipZ");
    lab.sim
        .post("/nfc/fault", json!({"at": "read", "do": "error", "code": 1, "text": "as ordered"}))
        .unwrap();
    refused("read", &[], "NFC error 1 from server: as ordered");
    lab.sim.post("/nfc/fault", json!({"at": "read", "do": "cut", "where": "extra"})).unwrap();
    refused("cut", &[], "the connection to the host broke");
    lab.wait_until_closed();
    assert!(Path::new(lab.stand_in.libdir()).join("calls.log").is_file());
}
