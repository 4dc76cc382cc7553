//! Machines beside the disks of an agent: whose they are, what late orders come to, and what is removed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drover_agent::machine::{
    Accelerator, Attach, Bus, CONVERT, CONVERT_WRITE, Conversion, Defined, FILES_BYTES_MAX, Firmware, Guest,
    GuestFile, Image, Lack, Machine, MachineDisk, MachineNic, Order, Told, What,
};
use drover_agent::opening::How;
use drover_agent::{Agent, FirstBootFiles, Home, Hypervisor, Machines, Places, Refusal, Site, Store};
use drover_disk::{Disk, DiskErrorKind, FileDisk, OpenTarget, conformance};
use drover_link::Session;
use drover_types::NicModel;

use crate::stage::{Stage, target, write_all};

/// Machines that are files: `domain.xml` defines one, `running` lies there while it runs.
struct Files;

impl Hypervisor for Files {
    fn check(&self, home: &Home<'_>) -> Result<(), Refusal> {
        match home.machine.cpus {
            0 => Err(Refusal::new(DiskErrorKind::Misuse, "it has no CPU")),
            _ => Ok(()),
        }
    }

    /// No host has a bridge of this name.
    fn lacks(&self, machine: &Machine, _: &dyn Fn() -> bool) -> Vec<Lack> {
        let is_lacking = |nic: &&MachineNic| nic.attach == Attach::Bridge("none".to_string());
        let lack = |_| Lack { what: "there is no bridge none".to_string(), advice: "make it".to_string() };
        let converter = Lack { what: "its converter does not work".into(), advice: "mend it".into() };
        let bridges = machine.nics.iter().filter(is_lacking).map(lack);
        bridges.chain(machine.is_converted.then_some(converter)).collect()
    }

    fn define(&self, home: &Home<'_>) -> Result<(String, Option<String>), Refusal> {
        let images: Vec<String> = home.images.iter().map(|path| path.display().to_string()).collect();
        std::fs::write(home.folder.join("domain.xml"), images.join("\n")).unwrap();
        Ok(("defined".to_string(), Some("start it".to_string())))
    }

    fn is_defined(&self, folder: &Path) -> bool {
        folder.join("domain.xml").exists()
    }

    fn undefine(&self, folder: &Path) -> Result<(), Refusal> {
        let _ = std::fs::remove_file(folder.join("domain.xml"));
        Ok(())
    }

    fn start(&self, home: &Home<'_>) -> Result<(String, Duration), Refusal> {
        std::fs::write(home.folder.join("running"), "").unwrap();
        Ok(("started".to_string(), Duration::from_secs(8)))
    }

    fn runs(&self, folder: &Path) -> Result<bool, Refusal> {
        Ok(folder.join("running").exists())
    }

    fn stop(&self, folder: &Path) -> Result<(), Refusal> {
        std::fs::remove_file(folder.join("running")).unwrap();
        Ok(())
    }

    fn converts(&self) -> Vec<&'static str> {
        vec![CONVERT, CONVERT_WRITE]
    }

    /// A guest of Windows is never done with.
    fn convert(
        &self,
        home: &Home<'_>,
        guest: &Guest,
        files: &FirstBootFiles,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<Conversion, Refusal> {
        let mark = home.folder.join("converted");
        let before = mark.exists();
        if guest.is_windows {
            std::fs::write(home.folder.join("converting"), "").unwrap();
            wait_until("somebody ends it", is_unwanted);
            std::fs::remove_file(home.folder.join("converting")).unwrap();
            return Err(Refusal::new(DiskErrorKind::Failed, "nobody waits"));
        }
        let texts = files.scripts.iter().chain(&files.package).map(|file| std::fs::read(file).unwrap());
        std::fs::write(mark, texts.collect::<Vec<_>>().concat()).unwrap();
        Ok(Conversion { before, log: "log\u{1b}[31m".to_string(), ..Conversion::default() })
    }

    fn is_converted(&self, folder: &Path) -> bool {
        folder.join("converted").exists()
    }

    fn forget_conversion(&self, folder: &Path) -> Result<(), Refusal> {
        let _ = std::fs::remove_file(folder.join("converted"));
        Ok(())
    }
}

struct Scene {
    folder: tempfile::TempDir,
    site: Arc<Site>,
    number: Mutex<u64>,
}

fn machine() -> Machine {
    Machine {
        name: "web01".to_string(),
        uuid: None,
        title: None,
        description: None,
        firmware: Firmware::Bios,
        cpus: 1,
        cores_per_socket: 1,
        memory_mib: 64,
        local_time: false,
        disks: vec![MachineDisk {
            disk: "vms/web01/web01-0.raw".to_string(),
            bus: Bus::Virtio,
            capacity_bytes: 1 << 20,
        }],
        nics: vec![MachineNic {
            mac: "00:50:56:aa:00:01".to_string(),
            attach: Attach::User,
            model: NicModel::Virtio,
        }],
        accelerator: Accelerator::Tcg,
        is_started: true,
        is_converted: false,
    }
}

impl Scene {
    fn new(may_start: bool) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("pool")).unwrap();
        let pools = [("vms".to_string(), folder.path().join("pool"))].into();
        let state = folder.path().join("state");
        let places = Arc::new(Places { pools, state, keep_leaves: true, ..Places::default() });
        let machines = Machines::new(places.clone(), Box::new(Files), may_start);
        let agent = Arc::new(Agent::new(places as Arc<dyn Store>).with_machines(machines));
        let site = Site::new("b", move || {
            let (here, there) = Session::pair();
            let agent = agent.clone();
            std::thread::spawn(move || agent.serve(&there));
            Ok(here)
        });
        Scene { folder, site, number: Mutex::new(100) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("pool").join(name)
    }

    fn next(&self) -> u64 {
        let mut number = self.number.lock().unwrap();
        *number += 1;
        *number
    }

    fn order(&self, what: What) -> Result<Told, Refusal> {
        self.order_at(self.next(), "plan p", what)
    }

    fn order_at(&self, number: u64, owner: &str, what: What) -> Result<Told, Refusal> {
        let owner = owner.to_string();
        self.site.order(&Order { folder: "vms/web01".to_string(), owner, number, what })
    }

    fn defined(&self) {
        self.order(What::Prepare(machine())).unwrap();
        let told = self.order(What::Define(machine())).unwrap();
        assert_eq!((told.defined, told.start_with.as_deref()), (Defined::Ours, Some("start it")));
    }

    /// Asks for leave, and gives the number of that.
    fn ready(&self) -> u64 {
        let number = self.next();
        self.order_at(number, "plan p", What::Ready).unwrap();
        number
    }

    fn start(&self, number: u64, after: u64) -> Result<Told, Refusal> {
        self.order_at(number, "plan p", What::Start { machine: machine(), after })
    }
}

#[test]
fn a_machine_is_made_started_stopped_and_removed_without_a_trace() {
    let scene = Scene::new(true);
    assert_eq!(
        scene.site.info().unwrap().takes,
        ["machine", "check", "start", "convert", "convert-write", "convert-files", "measure", "host"]
    );
    assert_eq!(scene.order(What::Look).unwrap(), Told::default(), "nothing is there yet");
    scene.defined();
    let image = std::fs::canonicalize(scene.path("web01")).unwrap().join("web01-0.raw");
    assert_eq!(std::fs::read_to_string(scene.path("web01/domain.xml")).unwrap(), image.display().to_string());
    let ready = scene.ready();
    assert!(scene.start(scene.next(), ready).unwrap().runs);
    assert!(scene.order(What::Clear { images: Vec::new() }).is_err(), "it runs");
    assert!(!scene.order(What::Stop).unwrap().runs);
    assert_eq!(scene.order(What::Undefine).unwrap().defined, Defined::No);
    scene.order(What::Clear { images: Vec::new() }).unwrap();
    assert!(!scene.path("web01").exists() && scene.path("").exists());
}

/// Machines that cannot be prepared, each with a word of the refusal.
fn unfit(scene: &Scene) -> Vec<(Machine, &'static str)> {
    std::fs::write(scene.path("file"), "x").unwrap();
    std::os::unix::fs::symlink(scene.folder.path(), scene.path("link")).unwrap();
    let with_disk = |disk: &str| {
        let mut machine = machine();
        machine.disks.push(MachineDisk { disk: disk.to_string(), bus: Bus::Virtio, capacity_bytes: 1 << 20 });
        machine
    };
    let mut none = machine();
    none.cpus = 0;
    vec![
        (with_disk("nvme/web01/data.raw"), "no pool"),
        (with_disk("vms/file/data.raw"), "is no folder"),
        (with_disk("vms/link/data.raw"), "is no folder"),
        (with_disk("vms/link"), "is no regular file"),
        (with_disk("vms/web01/../data.raw"), "is no name"),
        (none, "it has no CPU"),
    ]
}

fn in_pool(scene: &Scene) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        std::fs::read_dir(scene.path("")).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn a_machine_that_cannot_be_prepared_leaves_no_folder() {
    let scene = Scene::new(false);
    let unfit = unfit(&scene);
    let mut unplugged = machine();
    unplugged.nics[0].attach = Attach::Bridge("none".to_string());
    for (machine, word) in unfit.into_iter().chain([(unplugged, "there is no bridge none (make it)")]) {
        let refused = scene.order(What::Prepare(machine)).unwrap_err();
        assert!(refused.why.contains(word), "{word}: {refused}");
        assert_eq!(in_pool(&scene), ["file", "link"], "{word}");
    }
    scene.order(What::Prepare(machine())).unwrap();
    assert_eq!(in_pool(&scene), ["file", "link", "web01"]);
}

#[test]
fn a_check_tells_what_preparing_would_come_to_and_stands_in_nobodys_way() {
    let scene = Scene::new(true);
    let check = |machine| scene.order_at(0, "plan p", What::Check(machine));
    let unfit = unfit(&scene);
    for (machine, word) in unfit {
        let refused = check(machine).unwrap_err();
        assert!(refused.why.contains(word), "{word}: {refused}");
    }
    let mut unplugged = machine();
    unplugged.nics =
        vec![MachineNic { attach: Attach::Bridge("none".into()), ..machine().nics.remove(0) }; 2];
    let lacks = check(unplugged).unwrap().lacks;
    assert!(lacks.len() == 2 && lacks[0].to_string() == "there is no bridge none (make it)", "{lacks:?}");
    let converted = || Machine { is_converted: true, ..machine() };
    assert_eq!(check(converted()).unwrap().lacks[0].what, "its converter does not work");
    let without_leave = Scene::new(false);
    let asked = without_leave.order_at(0, "plan p", What::Check(converted())).unwrap();
    assert_eq!(asked.lacks, [], "no converter is run for whom none may be run");
    assert_eq!(check(machine()).unwrap(), Told::default());
    assert_eq!(in_pool(&scene), ["file", "link"], "a check makes nothing");
    scene.defined();
    let ready = scene.ready();
    let number = scene.next();
    let told = check(machine()).unwrap();
    assert!(!told.runs && told.defined == Defined::Ours && told.lacks.is_empty(), "{told:?}");
    assert!(scene.start(number, ready).unwrap().runs);
    let other = scene.order_at(0, "plan q", What::Check(machine())).unwrap();
    assert_eq!((other.defined, other.runs), (Defined::Others, true));
}

#[test]
fn a_start_that_comes_late_comes_to_nothing() {
    let scene = Scene::new(true);
    scene.defined();
    // The order to start is held up; whoever gave it looks, finds nothing running, and switches the source on.
    let ready = scene.ready();
    let held_up = scene.next();
    assert!(!scene.order(What::Look).unwrap().runs);
    let late = scene.start(held_up, ready).unwrap_err();
    assert!(late.why.contains("too late"), "{late}");
    assert!(!scene.path("web01/running").exists());
    // A glance, which is no order, stands in nobody's way.
    let ready = scene.ready();
    let number = scene.next();
    assert!(!scene.order_at(0, "plan p", What::Look).unwrap().runs);
    assert!(scene.start(number, ready).unwrap().runs);
}

#[test]
fn without_leave_nothing_is_started_or_stopped() {
    let scene = Scene::new(false);
    assert_eq!(scene.site.info().unwrap().takes, ["machine", "check", "measure", "host"]);
    scene.defined();
    let refused = scene.order(What::Ready).unwrap_err();
    assert!(refused.why.contains("--allow-start"), "{refused}");
    assert!(scene.start(scene.next(), 0).is_err());
    assert!(scene.order(What::Stop).is_ok(), "one that is off is fine");
    std::fs::write(scene.path("web01/running"), "by hand").unwrap();
    assert!(scene.order(What::Look).unwrap().runs);
    assert!(scene.order(What::Stop).is_err());
}

#[test]
fn what_others_made_is_not_touched() {
    let scene = Scene::new(true);
    std::fs::create_dir(scene.path("web01")).unwrap();
    std::fs::write(scene.path("web01/domain.xml"), "by hand").unwrap();
    assert_eq!(scene.order(What::Look).unwrap().defined, Defined::Others);
    for what in [What::Prepare(machine()), What::Define(machine()), What::Ready] {
        let refused = scene.order(what).unwrap_err();
        assert!(refused.why.contains("did not make"), "{refused}");
    }
    scene.order(What::Undefine).unwrap();
    assert_eq!(std::fs::read_to_string(scene.path("web01/domain.xml")).unwrap(), "by hand");
    std::fs::remove_file(scene.path("web01/domain.xml")).unwrap();
    scene.defined();
    let other = |what| scene.order_at(scene.next(), "plan q", what);
    assert_eq!(other(What::Look).unwrap().defined, Defined::Others);
    assert!(other(What::Define(machine())).is_err());
    other(What::Undefine).unwrap();
    assert!(scene.path("web01/domain.xml").exists());
}

#[test]
fn a_claim_that_was_cut_off_by_a_full_disk_locks_nobody_out() {
    let scene = Scene::new(true);
    scene.order(What::Prepare(machine())).unwrap();
    std::fs::write(scene.path("web01/machine.drover-owner"), "").unwrap();
    scene.defined();
    let other = scene.order_at(scene.next(), "plan q", What::Look).unwrap();
    assert_eq!((other.defined, other.number), (Defined::Others, scene.next() - 1));
}

#[test]
fn images_are_removed_if_they_still_are_what_they_were() {
    let scene = Scene::new(false);
    scene.order(What::Prepare(machine())).unwrap();
    let name = "vms/web01/web01-0.raw";
    let content = conformance::pattern(300_000);
    let disk = target(&scene.site, name, content.len() as u64, How::New).unwrap();
    write_all(&disk, &content);
    disk.flush().unwrap();
    let tag = scene.site.stat(name).unwrap().tag;
    let clear = |tag: &str| {
        let images = vec![Image { disk: name.to_string(), tag: tag.to_string() }];
        scene.order(What::Clear { images })
    };
    assert_eq!(clear(&tag).unwrap_err().kind, DiskErrorKind::Transient, "somebody writes it");
    drop(disk);
    let held = OpenTarget { size: content.len() as u64, create: false, resume: true };
    let guest = FileDisk::open_target(scene.path("web01/web01-0.raw"), held).unwrap();
    assert!(clear(&tag).is_err(), "a guest runs from it that somebody else started");
    drop(guest);
    clear("another").unwrap();
    assert!(scene.path("web01/web01-0.raw").exists(), "another file has its name");
    std::fs::write(scene.path("web01/notes"), "by hand").unwrap();
    clear(&tag).unwrap();
    let left: Vec<_> =
        std::fs::read_dir(scene.path("web01")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["notes"], "the image and all that belongs to it, and no more");
    clear(&tag).unwrap();
}

#[test]
fn orders_lead_nowhere_but_into_pools_and_no_disk_is_a_machines_file() {
    let scene = Scene::new(true);
    let order = |folder: &str, what| {
        let (folder, owner) = (folder.to_string(), "plan p".to_string());
        scene.site.order(&Order { folder, owner, number: scene.next(), what })
    };
    for folder in ["other/web01", "vms/../web01", "/etc", "", "vms/.web01"] {
        assert!(order(folder, What::Prepare(machine())).is_err(), "{folder}");
    }
    let mut outside = machine();
    outside.disks[0].disk = "vms/../../secret".to_string();
    assert!(order("vms/web01", What::Define(outside)).is_err());
    std::os::unix::fs::symlink(scene.folder.path(), scene.path("link")).unwrap();
    assert!(order("vms/link/web01", What::Prepare(machine())).is_err());
    let mut none = machine();
    none.cpus = 0;
    assert!(order("vms/web02", What::Define(none)).is_err());
    scene.defined();
    for name in ["run.sh", "domain.xml", "nvram.fd", "machine.drover-owner"] {
        assert!(target(&scene.site, &format!("vms/web01/{name}"), 4096, How::Force).is_err(), "{name}");
    }
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(std::time::Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn convert(is_windows: bool) -> What {
    What::Convert { machine: machine(), guest: Guest { is_windows, ..Guest::default() } }
}

#[test]
fn a_guest_is_converted_by_leave_and_that_is_forgotten_with_its_images() {
    let scene = Scene::new(true);
    assert!(scene.site.info().unwrap().takes.contains(&CONVERT.to_string()));
    scene.defined();
    let told = scene.order(convert(false)).unwrap();
    assert!(told.converted && !told.conversion.unwrap().before);
    let order = Order {
        folder: "vms/web01".into(),
        owner: "plan p".into(),
        number: scene.next(),
        what: convert(false),
    };
    let told = scene.site.order_while(&order, &[], &|| false).unwrap().conversion.unwrap();
    assert_eq!(told.log, "log?[31m", "what an agent says drives no terminal");
    assert!(scene.order(convert(false)).unwrap().conversion.unwrap().before);
    assert!(scene.order(What::Look).unwrap().converted);
    let ready = scene.ready();
    scene.start(scene.next(), ready).unwrap();
    assert!(scene.order(convert(false)).is_err(), "its machine runs");
    assert!(scene.order(What::ForgetConversion).is_err(), "its machine runs");
    scene.order(What::Stop).unwrap();
    let others = scene.order_at(scene.next(), "plan q", convert(false));
    assert_eq!(others.unwrap_err().kind, DiskErrorKind::Denied, "somebody else's");
    assert!(!scene.order(What::ForgetConversion).unwrap().converted);
    assert!(scene.order(convert(false)).unwrap().converted);
    scene.order(What::Undefine).unwrap();
    scene.order(What::Clear { images: Vec::new() }).unwrap();
    assert!(!scene.path("web01/converted").exists());

    let careful = Scene::new(false);
    assert!(!careful.site.info().unwrap().takes.contains(&CONVERT.to_string()));
    careful.order(What::Prepare(machine())).unwrap();
    assert_eq!(careful.order(convert(false)).unwrap_err().kind, DiskErrorKind::Denied);
}

#[test]
fn a_conversion_ends_with_whoever_waits_for_it() {
    let scene = Scene::new(true);
    scene.defined();
    let converting = || scene.path("web01/converting").exists();
    let order = |number| Order {
        folder: "vms/web01".to_string(),
        owner: "plan p".to_string(),
        number,
        what: convert(true),
    };
    // It has begun, and then is not wanted any more.
    let refusal = scene.site.order_while(&order(scene.next()), &[], &converting).unwrap_err();
    assert_eq!(refusal.kind, DiskErrorKind::Transient, "{refusal}");
    wait_until("the agent ends it", || !converting());
    // The same with the session.
    std::thread::scope(|scope| {
        let site = &scene.site;
        let waits = scope.spawn(|| site.order_while(&order(scene.next()), &[], &|| false));
        wait_until("it has begun", converting);
        site.hang_up();
        assert_eq!(waits.join().unwrap().unwrap_err().kind, DiskErrorKind::Transient);
    });
    wait_until("the agent ends it", || !converting());
    assert!(!scene.order(What::Look).unwrap().converted);
}

#[test]
fn an_agent_without_machines_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let pools = [("vms".to_string(), folder.path().to_path_buf())].into();
    let stage = Stage::new(Places { pools, state: folder.path().join("state"), ..Places::default() });
    let site = stage.site();
    assert_eq!(site.info().unwrap().takes, ["measure", "host"]);
    let order = Order { folder: "vms/a".into(), owner: "p".into(), number: 1, what: What::Look };
    assert!(site.order(&order).is_err());
    let old = r#"{"version":"0.1","pools":[{"name":"vms","free_bytes":7}],"devices":[]}"#;
    let old: drover_agent::opening::Announced = serde_json::from_str(old).unwrap();
    assert!(old.takes.is_empty(), "agents before announced nothing of the kind");
}

/// An order to convert the guest, with a script and a package of these lengths.
fn with_files(scene: &Scene, lengths: [u64; 2]) -> Order {
    let file = |name: &str, bytes| GuestFile { name: name.to_string(), bytes };
    let scripts = vec![file("../first one.sh", lengths[0])];
    let guest = Guest { scripts, package: Some(file("agent.deb", lengths[1])), ..Guest::default() };
    let what = What::Convert { machine: machine(), guest };
    Order { folder: "vms/web01".to_string(), owner: "plan p".to_string(), number: scene.next(), what }
}

#[test]
fn files_for_the_first_boot_come_with_the_order_and_go_with_it() {
    let scene = Scene::new(true);
    scene.defined();
    // Several pieces, of which none is like another: they arrive in any order.
    let package: Vec<u8> = (0..(6u32 << 20) + 7).map(|at| (at / 9973) as u8).collect();
    let script = vec![1; 5];
    let files = [script.clone(), package.clone()];
    let order =
        |lengths, files: &[Vec<u8>]| scene.site.order_while(&with_files(&scene, lengths), files, &|| false);
    let lengths = [script.len() as u64, package.len() as u64];
    // Of an agent that was killed.
    std::fs::create_dir(scene.path("web01/.drover-first-boot")).unwrap();
    std::fs::write(scene.path("web01/.drover-first-boot/old"), "").unwrap();
    order(lengths, &files).unwrap();
    assert_eq!(std::fs::read(scene.path("web01/converted")).unwrap(), files.concat());
    assert!(!scene.path("web01/.drover-first-boot").exists());

    scene.order(What::ForgetConversion).unwrap();
    let more = order([lengths[0], lengths[1] - 1], &files).unwrap_err();
    assert_eq!(more.kind, DiskErrorKind::Corrupt, "{more}");
    let much = order([1, FILES_BYTES_MAX], &files).unwrap_err();
    assert_eq!(much.kind, DiskErrorKind::Misuse, "{much}");
    // Fewer bytes than told: nobody waits for ever for the rest.
    let given_up = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_unwanted = || given_up.load(std::sync::atomic::Ordering::SeqCst);
        let order = with_files(&scene, [lengths[0], lengths[1] + 1]);
        let (site, files) = (&scene.site, &files);
        let waits = scope.spawn(move || site.order_while(&order, files, &is_unwanted));
        wait_until("files arrive", || {
            waits.is_finished() || scene.path("web01/.drover-first-boot/1/agent.deb").exists()
        });
        if waits.is_finished() {
            panic!("it waits for no more bytes: {:?}", waits.join().unwrap());
        }
        given_up.store(true, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(waits.join().unwrap().unwrap_err().kind, DiskErrorKind::Transient);
    });
    wait_until("what came is removed", || !scene.path("web01/.drover-first-boot").exists());
    assert!(!scene.order(What::Look).unwrap().converted);
}
