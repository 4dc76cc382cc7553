//! Disks of the simulator, read through nbdkit's true vddk plugin and the stand-in library.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use drover_disk::{Buffer, Disk, DiskErrorKind, Lane, Request, Work, conformance};
use drover_lab::{PASSWORD, Scene, Sim, StandIn, USER};
use drover_types::{ByteSpan, ExtentKind, Secret};
use drover_vddk::{ApiSession, Buffers, Installation, Settings, VddkDisk, VddkErrorKind};
use serde_json::json;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

struct Stage {
    stand_in: StandIn,
    sim: Sim,
    content: Vec<u8>,
    vm: String,
    file: String,
    folder: TempDir,
}

/// One switched-off VM with one disk of this size; `None`, after a line, where something is not built.
fn stage(number: u8, size: u64) -> Option<Stage> {
    if !StandIn::is_there() || Sim::program().is_none() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = conformance::pattern(size);
    let path = sparse_file(folder.path(), &content);
    let vms = vec![json!({"name": "one", "host": "esx1.lab", "disks": [{"file": path, "datastore": "ds1"}]})];
    let sim = Sim::start(&Scene::new(number, vms).inventory, &folder.path().join("vsphere")).unwrap();
    let stand_in = StandIn::new(&folder.path().join("libdir"), &sim).unwrap();
    let told = sim.vm("one").unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
    Some(Stage { stand_in, vm: text(&told["moid"]), file: text(&told["disks"][0]), sim, content, folder })
}

fn sparse_file(folder: &Path, content: &[u8]) -> PathBuf {
    use std::os::unix::fs::FileExt;
    let path = folder.join("content");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(content.len() as u64).unwrap();
    for (index, block) in content.chunks(65536).enumerate().filter(|(_, block)| block.iter().any(|b| *b != 0))
    {
        file.write_all_at(block, index as u64 * 65536).unwrap();
    }
    path
}

impl Stage {
    fn settings(&self) -> Settings {
        Settings {
            name: "one/Hard disk 1".into(),
            identity: "one".into(),
            size: self.content.len() as u64,
            installation: Installation::find(self.stand_in.libdir(), Some(&StandIn::plugin())).unwrap(),
            server: "127.0.0.1".into(),
            port: Some(self.sim.port),
            user: USER.into(),
            password: Secret::new(PASSWORD),
            session: None,
            thumbprint: self.sim.thumbprint.clone(),
            vm: self.vm.clone(),
            snapshot: None,
            file: self.file.clone(),
            transports: "nbdssl:nbd".into(),
            compression: "none",
            nfc_port: None,
            buffers: None,
            log_level: 0,
            request_bytes: 2 << 20,
            timeout: Duration::from_secs(60),
            patience: Duration::ZERO,
            log: Some(self.log()),
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("vddk.log")
    }

    fn open(&self) -> VddkDisk {
        VddkDisk::open(self.settings()).unwrap_or_else(|error| panic!("{error:?}"))
    }

    /// Processes whose argument list names this stage's library.
    fn children(&self) -> Vec<u32> {
        let libdir = self.stand_in.libdir().display().to_string();
        processes().into_iter().filter(|(_, words)| words.contains(&libdir)).map(|(pid, _)| pid).collect()
    }
}

/// Id and argument list of every process.
fn processes() -> Vec<(u32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let words = |pid| {
        Some((pid, String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).ok()?).into()))
    };
    pids.filter_map(words).collect()
}

fn read(lane: &mut dyn Lane, span: ByteSpan) -> Result<Vec<u8>, DiskErrorKind> {
    lane.submit(Request { id: 1, span, work: Work::Read(Buffer::zeroed(span.length as usize)) });
    let done = lane.complete().unwrap();
    done.result.map_err(|error| error.kind)?;
    let Work::Read(buffer) = done.work else { panic!("a read") };
    Ok(buffer.to_vec())
}

/// Reads the disk from end to end, opening a lane again where one is lost, as a mover does.
fn read_all(disk: &VddkDisk) -> (Vec<u8>, u32) {
    let (mut bytes, mut lost, mut lane) = (Vec::new(), 0, disk.open_lane().unwrap());
    while (bytes.len() as u64) < disk.size() {
        let at = bytes.len() as u64;
        match read(lane.as_mut(), ByteSpan::from_bounds(at, (at + MIB).min(disk.size()))) {
            Ok(part) => bytes.extend(part),
            Err(kind) => {
                assert_eq!(kind, DiskErrorKind::Transient);
                assert!(lane.is_broken() && lost < 20, "lost {lost} times");
                lost += 1;
                lane = disk.open_lane().unwrap();
            }
        }
    }
    (bytes, lost)
}

#[test]
fn a_disk_reads_as_it_is_and_its_holes_are_known() {
    let Some(stage) = stage(90, 8 * MIB) else { return };
    let disk = stage.open();
    conformance::check_reader(&disk, &stage.content);
    let extents = disk.extents(ByteSpan::new(0, disk.size())).unwrap();
    assert!(extents.iter().any(|extent| extent.kind == ExtentKind::Zero), "{extents:?}");
    assert_eq!(stage.stand_in.calls("open vm=").len(), 1, "one connection serves all lanes");
    drop(disk);
    assert_eq!(stage.children(), Vec::<u32>::new());
}

#[test]
fn buffers_compression_and_ports_reach_the_library() {
    let Some(stage) = stage(91, MIB) else { return };
    let buffers = Some(Buffers { size_in_64kb: 16, count: 4 });
    let settings =
        Settings { buffers, compression: "fastlz", nfc_port: Some(9902), log_level: 2, ..stage.settings() };
    let disk = VddkDisk::open(settings).unwrap();
    assert_eq!(stage.stand_in.calls("aio=16x4").len(), 1);
    assert_eq!(stage.stand_in.calls(&format!("port={} nfc_port=9902", stage.sim.port)).len(), 1);
    assert_eq!(stage.stand_in.calls("flags=36").len(), 1, "read-only and fastlz");
    drop(disk);
    let log = std::fs::read_to_string(stage.log()).unwrap();
    assert!(log.contains("VDDK call") && !log.contains(PASSWORD), "{log}");
}

#[test]
fn the_password_is_in_no_argument_list_and_no_environment() {
    let Some(stage) = stage(92, MIB) else { return };
    let disk = stage.open();
    let children = stage.children();
    assert!(children.len() >= 2, "the guard and nbdkit: {children:?}");
    let (_, words) = processes().into_iter().find(|(pid, _)| *pid == children[0]).unwrap();
    let socket = words.split('\0').skip_while(|word| *word != "--unix").nth(1).unwrap();
    let mode = Path::new(socket).parent().unwrap().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "others can get at {socket}");
    for pid in children {
        for file in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert!(!text.contains(PASSWORD), "{file} of {pid}: {text}");
            assert!(
                file == "cmdline" || !text.contains("CARGO_MANIFEST_DIR"),
                "our environment went along: {text}"
            );
        }
    }
    drop(disk);
}

#[test]
fn a_disk_is_opened_in_a_session_that_is_there_and_each_child_gets_the_cookie_of_now() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let Some(stage) = stage(89, 4 * MIB) else { return };
    stage.stand_in.set("cookie=cookie-1\npassword=not-the-users").unwrap();
    let asked = std::sync::Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let session =
        ApiSession::new(move || Ok(Secret::new(format!("cookie-{}", count.fetch_add(1, SeqCst) + 1))));
    let settings = || Settings { session: Some(session.clone()), log_level: 1, ..stage.settings() };
    let disk = VddkDisk::open(settings()).unwrap();
    assert!(stage.stand_in.calls("by=cookie").len() == 1 && stage.stand_in.calls("by=password").is_empty());
    stage.stand_in.set("cookie=cookie-2").unwrap();
    stage.stand_in.order("a", &format!("read die at={MIB}")).unwrap();
    assert!(read_all(&disk).0 == stage.content);
    assert_eq!((stage.stand_in.calls("by=cookie").len(), asked.load(SeqCst)), (2, 2));
    drop(disk);
    let log = std::fs::read_to_string(stage.log()).unwrap();
    assert!(log.contains("key=cookie") && !log.contains("cookie-1") && !log.contains("cookie-2"), "{log}");

    // The third one is no session that is known there.
    let error = VddkDisk::open(settings()).err().unwrap();
    assert_eq!(error.kind, VddkErrorKind::Access, "{error}");
    assert!(!format!("{error:?}").contains("cookie-3"), "a secret is shown: {error:?}");
    let logged_out = ApiSession::new(|| Err(std::io::Error::other("nobody lets us in")));
    let error = VddkDisk::open(Settings { session: Some(logged_out), ..stage.settings() }).err().unwrap();
    assert!(format!("{error:?}").contains("nobody lets us in"), "{error:?}");
    assert_eq!(stage.children(), Vec::<u32>::new());
}

#[test]
fn a_child_that_dies_is_replaced_and_the_copy_goes_on() {
    let Some(stage) = stage(93, 8 * MIB) else { return };
    let disk = stage.open();
    stage.stand_in.order("a", &format!("read die at={}", 3 * MIB)).unwrap();
    stage.stand_in.order("b", &format!("read error=14011 at={}", 6 * MIB)).unwrap();
    let (bytes, lost) = read_all(&disk);
    assert!(bytes == stage.content, "other bytes came");
    assert!(lost >= 2 && disk.restarts() == 2, "lost {lost}, restarts {}", disk.restarts());
    assert_eq!(stage.stand_in.calls("open vm=").len(), 3);
}

#[test]
fn a_read_that_shows_no_sign_of_life_is_given_up_with_its_child() {
    let Some(stage) = stage(94, 4 * MIB) else { return };
    let disk = VddkDisk::open(Settings { timeout: Duration::from_secs(10), ..stage.settings() }).unwrap();
    stage.stand_in.order("a", &format!("read stall at={MIB}")).unwrap();
    let (bytes, lost) = read_all(&disk);
    assert!(bytes == stage.content && lost == 1, "lost {lost}");
    drop(disk);
    assert_eq!(stage.children(), Vec::<u32>::new(), "a child that hangs is killed");
}

#[test]
fn a_disk_that_fails_again_and_again_ends_with_what_the_log_says() {
    let Some(stage) = stage(95, 2 * MIB) else { return };
    let disk = stage.open();
    stage.stand_in.order("always", "read error=14011").unwrap();
    let error = loop {
        match disk.open_lane() {
            Ok(mut lane) => {
                assert_eq!(read(lane.as_mut(), ByteSpan::new(0, 4096)), Err(DiskErrorKind::Transient))
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, DiskErrorKind::Failed);
    let text = error.source.to_string();
    assert!(text.contains("replaced 5 times") && text.contains("read fails as ordered with 14011"), "{text}");
    assert_eq!(stage.stand_in.calls("open vm=").len(), 6, "bounded");
}

#[test]
fn a_host_without_memory_refuses_and_is_asked_again_while_there_is_patience() {
    let Some(stage) = stage(96, MIB) else { return };
    stage.stand_in.set(&format!("nfc_bytes_max={}", 300 << 10)).unwrap();
    let first = stage.open();
    let error = VddkDisk::open(stage.settings()).err().unwrap();
    assert_eq!(error.kind, VddkErrorKind::Busy);
    assert!(error.what.contains("out of memory") && error.what.contains("NFC error 5"), "{error}");
    assert!(error.advice.unwrap().contains("limits.disks"));
    let waiting = Settings { patience: Duration::from_secs(60), ..stage.settings() };
    let second = std::thread::spawn(move || VddkDisk::open(waiting));
    std::thread::sleep(Duration::from_millis(200));
    drop(first);
    assert!(second.join().unwrap().is_ok());
}

#[test]
fn memory_of_a_killed_child_comes_back() {
    let Some(stage) = stage(97, MIB) else { return };
    stage.stand_in.set(&format!("nfc_bytes_max={}", 300 << 10)).unwrap();
    let disk = stage.open();
    stage.stand_in.order("a", "read die").unwrap();
    assert!(read_all(&disk).0 == stage.content, "the child that replaces it finds room");
}

#[test]
fn wrong_credentials_thumbprints_files_and_transports_have_kinds_and_advice() {
    let Some(stage) = stage(98, MIB) else { return };
    let fails = |settings: Settings, kind: VddkErrorKind, words: &str| {
        let error = VddkDisk::open(settings).err().unwrap();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.what.contains(words) && error.advice.is_some(), "{error}: {:?}", error.advice);
        assert!(!format!("{error:?}").contains("hunter2"), "a secret is shown");
    };
    let right = || stage.settings();
    fails(
        Settings { password: Secret::new("hunter2"), ..right() },
        VddkErrorKind::Access,
        "user or password is wrong",
    );
    fails(
        Settings { thumbprint: "AA:BB".into(), ..right() },
        VddkErrorKind::Connection,
        "not the expected one",
    );
    fails(
        Settings { file: "[ds1] no/no.vmdk".into(), ..right() },
        VddkErrorKind::Failed,
        "not in that snapshot",
    );
    fails(
        Settings { snapshot: Some("snapshot-1".into()), ..right() },
        VddkErrorKind::Failed,
        "not in that snapshot",
    );
    fails(Settings { transports: "san".into(), ..right() }, VddkErrorKind::Failed, "no transport mode");
    let error = VddkDisk::open(Settings { size: MIB + 512, ..right() }).err().unwrap();
    assert!(error.what.contains("the disk has 1049088"), "{error}");
    assert_eq!(stage.children(), Vec::<u32>::new());
}

#[test]
fn a_guard_that_is_killed_takes_nbdkit_along() {
    let Some(stage) = stage(99, MIB) else { return };
    let disk = stage.open();
    let libdir = stage.stand_in.libdir().display().to_string();
    let is_guard = |words: &str| words.contains("drover-guard") && words.contains(&libdir);
    let guard = processes().into_iter().find(|(_, words)| is_guard(words)).unwrap().0;
    let killed = Command::new("kill").args(["-9", &guard.to_string()]).status().unwrap();
    assert_eq!(killed.into_raw(), 0);
    // Asked to end, it waits for its connections, so for us.
    drop(disk);
    let until = Instant::now() + Duration::from_secs(60);
    let is_server = |(_, words): &(u32, String)| words.starts_with("nbdkit") && words.contains(&libdir);
    while processes().iter().any(is_server) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!processes().iter().any(is_server), "nbdkit outlived its guard");
}

#[test]
fn versions_are_told_by_the_plugin_that_loads_the_library() {
    let Some(stage) = stage(100, MIB) else { return };
    let versions = stage.settings().installation.versions().unwrap();
    assert_eq!((versions.library.as_str(), versions.transports.as_str()), ("8.0.2", "file:nbdssl:nbd"));
    assert!(versions.plugin.starts_with("1."), "{versions:?}");
    let broken = stage.folder.path().join("broken");
    std::fs::create_dir_all(broken.join("lib64")).unwrap();
    std::fs::write(broken.join("lib64/libvixDiskLib.so.8"), "no library").unwrap();
    let error = Installation::find(&broken, Some(&StandIn::plugin())).unwrap().versions().unwrap_err();
    assert_eq!(error.kind, VddkErrorKind::Missing);
}
