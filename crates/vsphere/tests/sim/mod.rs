//! Starts the vSphere simulator for a test and ends it after.
// Each test program uses a part of this.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use drover_disk::{Buffer, Completion, Disk, Lane, Request, Work};
use drover_http::{Client, Timeouts, Trust, Url};
use drover_types::inventory::Vm;
use drover_types::{ByteSpan, ExtentKind, Secret};
use drover_vsphere::{ConnectOptions, Session};
use serde_json::{Value, json};

pub const USER: &str = "administrator@vsphere.local";
pub const PASSWORD: &str = "s3cret";

/// A running simulator.
pub struct Sim {
    child: Child,
    _stdin: Option<ChildStdin>,
    work: PathBuf,
    pub port: u16,
    pub thumbprint: String,
    control: Client,
}

/// The simulator's program, or `None` after a printed reason.
fn program() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/lab/vsphere-sim");
    let path = std::env::var_os("DROVER_VSPHERE_SIM").map_or(built, PathBuf::from);
    if !path.is_file() {
        println!("skipped: no vSphere simulator at {} (or set DROVER_VSPHERE_SIM)", path.display());
        return None;
    }
    Some(path)
}

impl Sim {
    /// Starts a vCenter with the tests' inventory; `None` if the simulator is not built.
    pub fn start() -> Option<Sim> {
        Sim::start_as("vcenter")
    }

    pub fn start_as(mode: &str) -> Option<Sim> {
        Sim::start_with(mode, include_str!("inventory.yaml"))
    }

    /// Starts it with another inventory, as YAML.
    pub fn start_with(mode: &str, inventory: &str) -> Option<Sim> {
        let program = program()?;
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let work = std::env::temp_dir().join(format!("drover-vsphere-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&work).unwrap();
        let file = work.join("inventory.yaml");
        std::fs::write(&file, inventory).unwrap();
        let mut child = Command::new(program)
            .args(["--mode", mode, "--exit-with-parent", "--work"])
            .arg(&work)
            .arg("--inventory")
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).expect("the simulator prints one JSON line");
        let control: Url = ready["control"].as_str().unwrap().parse().unwrap();
        Some(Sim {
            _stdin: child.stdin.take(),
            child,
            work,
            port: ready["port"].as_u64().unwrap() as u16,
            thumbprint: ready["thumbprint_sha1"].as_str().unwrap().to_string(),
            control: Client::new(control.endpoint, &Trust::System, Timeouts::default()).unwrap(),
        })
    }

    pub fn options(&self) -> ConnectOptions {
        ConnectOptions {
            endpoint: format!("127.0.0.1:{}", self.port),
            user: USER.to_string(),
            password: Secret::new(PASSWORD),
            trust: self.trust(),
            timeouts: Timeouts { stall: Duration::from_secs(60), ..Timeouts::default() },
        }
    }

    pub fn trust(&self) -> Trust {
        Trust::Thumbprint(self.thumbprint.parse().unwrap())
    }

    pub fn session(&self) -> Session {
        Session::connect(self.options()).unwrap()
    }

    /// A call of the control API that must succeed.
    pub fn post(&self, path: &str, body: Value) -> Value {
        let request = drover_http::Request::post(path, body.to_string());
        self.answer(&request)
    }

    pub fn get(&self, path: &str) -> Value {
        self.answer(&drover_http::Request::get(path))
    }

    fn answer(&self, request: &drover_http::Request) -> Value {
        let response = self.control.send(request).unwrap();
        let text = String::from_utf8(response.body).unwrap();
        assert_eq!(response.head.status, 200, "{} {}", request.path, text);
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// Spoils data requests.
    pub fn spoil_data(&self, fault: Value) {
        let mut fault = fault;
        fault["path"] = json!("/folder");
        self.post("/fault/http", fault);
    }

    /// Fills a disk's span with random bytes, as its guest would.
    pub fn fill(&self, vm: &str, disk: usize, span: ByteSpan) {
        let (offset, length) = (span.offset, span.length);
        self.post(
            "/write",
            json!({"vm": vm, "disk": disk, "offset": offset, "length": length, "fill": "random"}),
        );
    }

    /// Stops the guest's writing; how much it wrote.
    pub fn stop_writer(&self, vm: &str) -> u64 {
        let answer = self.answer(&drover_http::Request {
            method: "DELETE",
            ..drover_http::Request::get(format!("/writer?vm={vm}"))
        });
        answer["bytes"].as_u64().unwrap()
    }

    /// Content of a VM's first disk as its guest sees it.
    pub fn live(&self, vm: &str) -> Vec<u8> {
        let disks = self.get(&format!("/disks?vm={vm}"));
        std::fs::read(disks[0]["disks"][0]["live"].as_str().unwrap()).unwrap()
    }

    /// How often a SOAP method was called.
    pub fn calls(&self, method: &str) -> u64 {
        let stats = self.get("/stats");
        stats["soap"][method].as_u64().unwrap_or(0)
    }

    /// The properties that were read since the counts were reset, as `VirtualMachine.name`.
    pub fn properties(&self) -> Vec<String> {
        let stats = self.get("/stats");
        stats["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.work);
    }
}

/// The VM of that folder and name.
pub fn vm(session: &Session, folder: &str, name: &str) -> Vm {
    let inventory = session.inventory().unwrap();
    let found = inventory.vms.into_iter().find(|vm| vm.folder == folder && vm.name == name);
    found.unwrap_or_else(|| panic!("no {folder}/{name}"))
}

/// A read of `span`.
pub fn read(id: u64, span: ByteSpan) -> Request {
    Request { id, span, work: Work::Read(Buffer::zeroed(span.length as usize)) }
}

/// Takes the next completion.
pub fn next(lane: &mut dyn Lane) -> Completion {
    lane.complete().expect("a request is in flight")
}

/// The whole disk, read in pieces with several requests in flight, again and again until all went well.
pub fn read_whole(disk: &dyn Disk, piece: u64) -> Vec<u8> {
    let mut content = vec![0; disk.size() as usize];
    let mut todo: Vec<ByteSpan> = (0..disk.size().div_ceil(piece))
        .map(|i| ByteSpan::from_bounds(i * piece, ((i + 1) * piece).min(disk.size())))
        .collect();
    for _ in 0..50 {
        todo = read_pieces(disk, &todo, &mut content);
        if todo.is_empty() {
            return content;
        }
    }
    panic!("{} pieces are never read", todo.len());
}

/// One try with one lane; gives back what failed in a way that may pass.
fn read_pieces(disk: &dyn Disk, spans: &[ByteSpan], content: &mut [u8]) -> Vec<ByteSpan> {
    let mut failed = Vec::new();
    let mut lane = disk.open_lane().unwrap();
    let mut waiting = spans.iter().copied();
    loop {
        while lane.in_flight() < disk.limits().depth_max {
            let Some(span) = waiting.next() else { break };
            lane.submit(read(span.offset, span));
        }
        let Some(done) = lane.complete() else { return failed };
        match (done.result, done.work) {
            (Ok(()), Work::Read(buffer)) => {
                content[done.span.offset as usize..done.span.end() as usize].copy_from_slice(&buffer);
            }
            (Err(error), _) if error.kind == drover_disk::DiskErrorKind::Transient => failed.push(done.span),
            (result, _) => panic!("{result:?}"),
        }
    }
}

/// Extents of the whole disk, asked for piece by piece as a copy does; also how many questions it took.
pub fn extents(disk: &dyn Disk) -> (Vec<(ByteSpan, ExtentKind)>, usize) {
    let mut all = Vec::new();
    let (mut at, mut questions) = (0, 0);
    while at < disk.size() {
        let found = disk.extents(ByteSpan::from_bounds(at, disk.size())).unwrap();
        questions += 1;
        for extent in found {
            assert_eq!(extent.span.offset, at, "extents leave no gap");
            assert!(!extent.span.is_empty());
            at = extent.span.end();
            all.push((extent.span, extent.kind));
        }
    }
    (all, questions)
}
