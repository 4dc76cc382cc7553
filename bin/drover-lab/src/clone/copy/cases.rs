//! The cases: what is copied, and by whom.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use drover_lab::{PASSWORD, Scene, Sim, USER};
use serde_json::json;

use crate::clone::copy::data::Data;
use crate::clone::copy::measure::{Case, Entry, Output, Role};
use crate::clone::copy::server::{Server, uri};

/// All cases, in the order of the table of goals.
pub fn all(data: &Data) -> Result<Vec<Case>> {
    let bench = Bench { data, drover: program()? };
    let mut cases = vec![
        bench.nbd_to_disk("NBD to disk, random", 1.35, data.random()?)?,
        bench.nbd_to_disk("NBD to disk, half sparse", 1.25, data.half_sparse()?)?,
        bench.nbd_to_disk("NBD to disk, mostly zero but allocated", 1.25, data.mostly_zero()?)?,
        bench.nbd_to_disk("NBD to disk, ext4 half full", 1.25, data.file_system()?)?,
        bench.nbd_to_tmpfs()?,
        bench.nbd_to_null("NBD to null", 1.3, "null", &data.random()?, &[])?,
        bench.nbd_to_nbd()?,
        bench.nbd_to_null(
            "source with 5 ms",
            1.2,
            "5ms",
            &data.small_random()?,
            &["--filter=delay", "rdelay=5ms"],
        )?,
        bench.nbd_to_null(
            "source with 50 ms",
            1.2,
            "50ms",
            &data.small_random()?,
            &["--filter=delay", "rdelay=50ms"],
        )?,
        bench.nbd_to_null(
            "serial source with 5 ms",
            1.2,
            "serial",
            &data.small_random()?,
            &["--filter=noparallel", "--filter=delay", "rdelay=5ms"],
        )?,
        bench.local("qcow2 to raw", 1.0, &data.qcow2()?, "qcow2", "raw")?,
        bench.local("raw to qcow2", 1.0, &data.random()?, "raw", "qcow2")?,
        bench.local("raw to raw", 1.1, &data.random()?, "raw", "raw")?,
        bench.https()?,
        bench.one_core("one core, NBD to disk", true)?,
        bench.one_core("one core, NBD to null", false)?,
    ];
    cases.iter_mut().for_each(|case| add_other(case, &bench.drover));
    Ok(cases)
}

/// Names a second drover that copies in turns with this one: an earlier revision, or one that was built without its
/// hash, to see what that costs.
const OTHER: &str = "DROVER_BENCH_OTHER";

/// Has the other drover, if there is one, do what the first entry of a case does, right after it.
pub fn add_other(case: &mut Case, drover: &str) {
    let (Some(first), Ok(other)) = (case.entries.first(), std::env::var(OTHER)) else { return };
    let word = |word: &String| if word == drover { other.clone() } else { word.clone() };
    let command = first.command.iter().map(word).collect();
    case.entries.insert(1, Entry { name: "the other drover", command, role: Role::Ours, helper: None });
}

struct Bench<'a> {
    data: &'a Data,
    drover: String,
}

/// nbdcopy's settings that did best by hand.
pub const TUNED: [&str; 4] = ["--connections=4", "--threads=4", "--requests=16", "--request-size=1048576"];

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.data.folder.join(name)
    }

    fn serve(&self, name: &str, source: &Path, args: &[&str]) -> Result<Server> {
        let filters: Vec<&str> = args.iter().copied().filter(|arg| arg.starts_with("--")).collect();
        let settings: Vec<&str> = args.iter().copied().filter(|arg| !arg.starts_with("--")).collect();
        let source = text(source);
        let all = [&["-r"][..], &filters, &["file", &source], &settings].concat();
        Server::nbdkit(self.path(&format!("{name}.sock")), &all)
    }

    fn copy(&self, from: &str, to: &str) -> Entry {
        copier("drover copy", &[&self.drover, "copy", "--quiet", from, to])
    }

    fn nbd_to_disk(&self, name: &'static str, goal: f64, source: PathBuf) -> Result<Case> {
        let socket = source.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let server = self.serve(&socket, &source, &[])?;
        let (uri, out) = (server.uri(), self.path("out.raw"));
        let to = text(&out);
        let entries = vec![
            self.copy(&uri, &to),
            copier("nbdcopy", &["nbdcopy", "--flush", &uri, &to]),
            nbdcopy_tuned(&["--flush", &uri, &to]),
            qemu_img(&["-f", "raw", "-O", "raw", &uri, &to]),
            limit("limit: nbdcopy to null", &["nbdcopy", &uri, "null:"]),
            self.disk_limit(&to, &source)?,
        ];
        let output = Output { path: out, equals: source, format: "raw" };
        Ok(self.case(name, goal, self.data.mib, entries, Some(output)).keep(server))
    }

    fn nbd_to_tmpfs(&self) -> Result<Case> {
        let source = self.data.random()?;
        let server = self.serve("tmpfs", &source, &[])?;
        let out = PathBuf::from(format!("/dev/shm/drover-bench-{}.raw", std::process::id()));
        let (uri, to) = (server.uri(), text(&out));
        let entries = vec![
            self.copy(&uri, &to),
            copier("nbdcopy", &["nbdcopy", &uri, &to]),
            nbdcopy_tuned(&[&uri, &to]),
            copier(
                "qemu-img -W -m 16",
                &["qemu-img", "convert", "-W", "-m", "16", "-f", "raw", "-O", "raw", &uri, &to],
            ),
        ];
        let output = Output { path: out, equals: source, format: "raw" };
        Ok(self.case("NBD to tmpfs", 1.2, self.data.mib, entries, Some(output)).keep(server))
    }

    fn nbd_to_null(
        &self,
        name: &'static str,
        goal: f64,
        socket: &str,
        source: &Path,
        args: &[&str],
    ) -> Result<Case> {
        let server = self.serve(socket, source, args)?;
        let uri = server.uri();
        let null = format!("driver=null-co,size={}", std::fs::metadata(source)?.len());
        let entries = vec![
            self.copy(&uri, "null:"),
            copier("nbdcopy", &["nbdcopy", &uri, "null:"]),
            nbdcopy_tuned(&[&uri, "null:"]),
            copier("nbdcopy 4 MiB", &["nbdcopy", "--request-size=4194304", &uri, "null:"]),
            copier(
                "qemu-img -W -m 16",
                &[
                    "qemu-img",
                    "convert",
                    "-n",
                    "-W",
                    "-m",
                    "16",
                    "-f",
                    "raw",
                    "--target-image-opts",
                    &uri,
                    &null,
                ],
            ),
        ];
        let mib = if source == self.data.random()? { self.data.mib } else { self.data.small_mib() };
        Ok(self.case(name, goal, mib, entries, None).keep(server))
    }

    fn nbd_to_nbd(&self) -> Result<Case> {
        let source = self.data.random()?;
        let from = self.serve("from", &source, &[])?;
        // Pages that exist: the first copy into fresh memory would measure the kernel's allocation.
        let size = format!("size={}M", self.data.mib);
        let to = Server::nbdkit(self.path("to.sock"), &["memory", &size])?;
        let (a, b) = (from.uri(), to.uri());
        let entries = vec![
            copier("drover copy", &[&self.drover, "copy", "--quiet", "--no-journal", &a, &b]),
            copier("nbdcopy", &["nbdcopy", "--flush", &a, &b]),
            nbdcopy_tuned(&["--flush", &a, &b]),
            copier(
                "qemu-img -n -W -m 16",
                &["qemu-img", "convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw", &a, &b],
            ),
        ];
        Ok(self.case("NBD to NBD", 1.1, self.data.mib, entries, None).keep(from).keep(to))
    }

    fn local(
        &self,
        name: &'static str,
        goal: f64,
        source: &Path,
        from: &str,
        to: &'static str,
    ) -> Result<Case> {
        let out = self.path(&format!("out.{to}"));
        let (source_text, out_text) = (text(source), text(&out));
        let qemu = ["-f", from, "-O", to, &source_text, &out_text];
        let mut entries = vec![self.copy(&source_text, &out_text), qemu_img(&qemu)];
        entries.push(copier("qemu-img -t none -T none -W -m 16", &[&QEMU_DIRECT[..], &qemu].concat()));
        entries.push(self.disk_limit(&out_text, &self.data.random()?)?);
        let output = Output { path: out, equals: self.data.random()?, format: to };
        Ok(self.case(name, goal, self.data.mib, entries, Some(output)))
    }

    fn https(&self) -> Result<Case> {
        let source = self.data.random()?;
        let vm = json!({"name": "bench", "power": "off", "disks": [{"file": source, "datastore": "ds1"}]});
        let sim = Sim::start(&Scene::new(78, vec![vm]).inventory, &self.path("vsphere"))?;
        let url =
            format!("https://127.0.0.1:{}/folder/bench/bench-flat.vmdk?dcPath=DC0&dsName=ds1", sim.port);
        let disk = format!("vsphere://127.0.0.1:{}/bench/0", sim.port);
        let out = self.path("out.raw");
        let to = text(&out);
        let login = [
            "-r".to_string(),
            "curl".into(),
            format!("url={url}"),
            format!("user={USER}"),
            format!("password={PASSWORD}"),
            "sslverify=false".into(),
        ];
        let socket = self.path("curl.sock");
        let server = Server::nbdkit(socket.clone(), &login.iter().map(String::as_str).collect::<Vec<_>>())?;
        let uri = uri(&socket);
        let basic = format!("{USER}:{PASSWORD}");
        let entries = vec![
            copier(
                "drover copy",
                &[&self.drover, "copy", "--quiet", "--thumbprint", &sim.thumbprint, &disk, &to],
            ),
            copier("nbdkit-curl + nbdcopy", &["nbdcopy", "--flush", &uri, &to]),
            copier(
                "nbdkit-curl + nbdcopy 4 MiB",
                &["nbdcopy", "--flush", "--request-size=4194304", &uri, &to],
            ),
            copier("curl, one GET", &["curl", "-sSfk", "-u", &basic, "-o", &to, &url]),
            limit("limit: curl to /dev/null", &["curl", "-sSfk", "-u", &basic, "-o", "/dev/null", &url]),
            self.disk_limit(&to, &source)?,
        ];
        let output = Output { path: out, equals: source, format: "raw" };
        let mut case =
            self.case("HTTPS ranges to disk", 1.2, self.data.mib, entries, Some(output)).keep(server);
        case.keep.push(Box::new(sim));
        Ok(case)
    }

    /// Copiers on one core, the server on another: what cannot run beside something else shows here.
    fn one_core(&self, name: &'static str, to_disk: bool) -> Result<Case> {
        let source = self.data.random()?;
        let server = self.serve(if to_disk { "core-disk" } else { "core-null" }, &source, &[])?;
        let moved = std::process::Command::new("taskset")
            .args(["-a", "-p", "-c", "1", &server.pid().to_string()])
            .stdout(std::process::Stdio::null())
            .status()?;
        if !moved.success() {
            bail!("the server cannot be moved to core 1");
        }
        let (uri, out) = (server.uri(), self.path("out.raw"));
        let to = if to_disk { text(&out) } else { "null:".into() };
        let on_one = |name, command: &[&str]| copier(name, &[&["taskset", "-c", "0"], command].concat());
        let mut entries = vec![on_one("drover copy", &[&self.drover, "copy", "--quiet", &uri, &to])];
        let flush: &[&str] = if to_disk { &["--flush"] } else { &[] };
        entries.push(on_one(
            "nbdcopy -C4 -R16 1 MiB",
            &[&["nbdcopy"], &TUNED[..], flush, &[&uri, &to]].concat(),
        ));
        if to_disk {
            let qemu =
                ["qemu-img", "convert", "-t", "none", "-W", "-m", "16", "-f", "raw", "-O", "raw", &uri, &to];
            entries.push(on_one("qemu-img -t none -W -m 16", &qemu));
        }
        let output = to_disk.then_some(Output { path: out, equals: source, format: "raw" });
        Ok(self.case(name, 0.9, self.data.mib, entries, output).keep(server))
    }

    fn case(
        &self,
        name: &'static str,
        goal: f64,
        mib: u64,
        entries: Vec<Entry>,
        output: Option<Output>,
    ) -> Case {
        Case { name, goal, bytes: mib << 20, entries, output, keep: Vec::new(), servers: Vec::new() }
    }

    /// What the disk takes when nobody reads, hashes or has to find space: four writes at a time, past the page cache, into
    /// space set aside, as many as there is data in `source`. A dd would have one at a time.
    fn disk_limit(&self, out: &str, source: &Path) -> Result<Entry> {
        let count = data_blocks(source)?;
        let bytes = count * LIMIT_BYTES as u64;
        let write = "qemu-img bench -w -t none -f raw -d 4 -s 512k";
        let script = format!("fallocate -l {bytes} '{out}' && {write} -c {count} '{out}'");
        Ok(limit("limit: the disk, 4 direct writes at a time", &["sh", "-c", &script]))
    }
}

/// Bytes of a write of the disk's limit.
const LIMIT_BYTES: usize = 512 << 10;

/// How many pieces of that size the data of a file would fill.
fn data_blocks(path: &Path) -> Result<u64> {
    let mut file = std::fs::File::open(path)?;
    let (mut block, mut data) = (vec![0; 64 << 10], 0);
    loop {
        let length = file.read(&mut block)?;
        if length == 0 {
            return Ok(u64::div_ceil(data, LIMIT_BYTES as u64));
        }
        data += if block[..length].iter().all(|byte| *byte == 0) { 0 } else { length as u64 };
    }
}

const QEMU_DIRECT: [&str; 9] = ["qemu-img", "convert", "-t", "none", "-T", "none", "-W", "-m", "16"];

fn qemu_img(args: &[&str]) -> Entry {
    let all = [&["qemu-img", "convert", "-t", "none", "-W", "-m", "16"][..], args].concat();
    copier("qemu-img -t none -W -m 16", &all)
}

fn nbdcopy_tuned(args: &[&str]) -> Entry {
    copier("nbdcopy -C4 -R16 1 MiB", &[&["nbdcopy"][..], &TUNED, args].concat())
}

pub fn program() -> Result<String> {
    let beside = std::env::current_exe()?.with_file_name("drover");
    if !beside.is_file() {
        bail!("{} is not built; run `make build`", beside.display());
    }
    Ok(text(&beside))
}

pub fn copier(name: &'static str, command: &[&str]) -> Entry {
    Entry {
        name,
        command: command.iter().map(|word| word.to_string()).collect(),
        role: Role::Peer,
        helper: None,
    }
}

pub fn limit(name: &'static str, command: &[&str]) -> Entry {
    Entry { role: Role::Limit, ..copier(name, command) }
}

pub fn text(path: &Path) -> String {
    path.display().to_string()
}
