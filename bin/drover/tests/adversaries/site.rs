//! A simulated vCenter, a drover that moves its VMs, and eyes on both sides while it does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use drover_lab::{Drover, PASSWORD, Scene, Sim, USER};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::dice::Dice;
use crate::run::{Ended, Injection, Run, program};
use crate::secrets::{look_at, look_below, watch_children};
use crate::tally::{Kind, Violation};
use drover_stage::{vm, with};

/// Simulators that run at the same time have addresses of their own.
static SITES: AtomicU64 = AtomicU64::new(0);

/// QEMU starts from no disk that ends within one of the 4 KiB that direct I/O wants here.
const DISK_BYTES: u64 = (256 << 10) + 4096;

/// A VM at the source, as it was when the round began.
#[derive(Clone, Debug)]
pub struct Guest {
    pub name: String,
    pub moid: String,
    pub power: String,
}

pub struct Site {
    pub sim: Arc<Sim>,
    pub drover: Drover,
    pub guests: Vec<Guest>,
    /// What must be in no file: the password, and what the round adds.
    pub needles: Mutex<Vec<String>>,
    /// When somebody else switched a VM on, by moid.
    pub switched_on: Arc<Mutex<BTreeMap<String, Instant>>>,
    /// A secret that a child of drover's was seen with: told at the end, so that it hides nothing worse.
    seen: Mutex<Option<Violation>>,
    pub is_warm: bool,
    folder: TempDir,
}

impl Site {
    pub fn is_possible() -> bool {
        let is_built = Sim::program().is_some();
        if !is_built {
            println!("skipped: the vSphere simulator is not built (`make lab`)");
        }
        is_built
    }

    /// VMs of these names, on or off by chance, with one or two disks each.
    pub fn new(names: &[&str], dice: &mut Dice) -> Site {
        let folder = tempfile::Builder::new().prefix("drover-site-").tempdir().unwrap();
        let guest = |name: &&str| {
            let disks: Vec<PathBuf> =
                (0..1 + dice.roll(2)).map(|at| disk(folder.path(), name, at, dice)).collect();
            let disks: Vec<&Path> = disks.iter().map(PathBuf::as_path).collect();
            let power = if dice.percent(60) { "on" } else { "off" };
            with(vm(name, &disks), json!({"power": power, "memory_mib": 32}))
        };
        let vms = names.iter().map(guest).collect();
        let number = 130 + (SITES.fetch_add(1, Ordering::Relaxed) % 100) as u8;
        let scene = Scene::new(number, vms);
        let sim = Sim::start(&scene.inventory, &folder.path().join("vsphere")).unwrap();
        let drover = Drover::new(program(), folder.path().join("work/state"));
        std::fs::create_dir_all(folder.path().join("work")).unwrap();
        let mut site = Site {
            sim: Arc::new(sim),
            drover,
            guests: Vec::new(),
            needles: Mutex::new(vec![PASSWORD.to_string()]),
            switched_on: Arc::default(),
            seen: Mutex::default(),
            is_warm: false,
            folder,
        };
        site.guests = site.vms().iter().map(guest_of).collect();
        site
    }

    /// Where drover works, and all that it writes lies.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub fn vms(&self) -> Vec<Value> {
        self.sim.get("/vms").unwrap().as_array().unwrap().clone()
    }

    pub fn vm(&self, moid: &str) -> Option<Value> {
        self.vms().into_iter().find(|vm| vm["moid"] == moid)
    }

    /// Guests that write, moved warm.
    pub fn be_warm(&mut self, is_warm: bool) {
        self.is_warm = is_warm;
        for guest in self.guests.iter().filter(|_| is_warm) {
            let writer = json!({"vm": guest.name, "disk": 0, "bytes_per_s": 20_000});
            self.sim.post("/writer", writer).unwrap();
        }
    }

    /// A plan that moves `vms` (YAML), from `endpoint`.
    pub fn plan(&self, endpoint: &str, thumbprint: &str, vms: &str, more: &str) -> String {
        let text = format!(
            "version: 1\nname: moved\nsource:\n  type: vsphere\n  endpoint: {endpoint}\n  user: {USER}\n  \
             password_env: DROVER_PASSWORD\n  thumbprint: \"{thumbprint}\"\n  data: {{from: provider}}\n\
             target:\n  type: qemu\n  folder: {}\n  accelerator: tcg\n  overcommit: true\n\
             limits: {{retry_for: 1s}}\nmode: cold\npower_off: shutdown\nshutdown_timeout: 20s\nconvert: never\n\
             networks:\n  \"*\": user\n{more}vms: {vms}\n",
            self.work().join("vms").display()
        );
        let warm = "mode: warm\nwarm: {interval: 1s, audit: full}\n";
        let text = if self.is_warm { text.replace("mode: cold\n", warm) } else { text };
        let path = self.work().join("moved.yaml");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The simulator itself as the endpoint.
    pub fn direct(&self) -> (String, String) {
        (format!("127.0.0.1:{}", self.sim.port), self.sim.thumbprint.clone())
    }

    /// Runs drover with eyes on both sides and on its children.
    pub fn run(&self, name: &str, args: &[&str], injections: &[Injection]) -> Result<Ended, Violation> {
        self.run_for(Duration::MAX, name, args, injections)
    }

    /// The same, and kill -9 after a time.
    pub fn run_for(
        &self,
        time: Duration,
        name: &str,
        args: &[&str],
        injections: &[Injection],
    ) -> Result<Ended, Violation> {
        let mut run = Run::start(&self.drover, &self.work(), name, args, injections);
        let began = Instant::now();
        let (process, is_over) = (run.child.id(), AtomicBool::new(false));
        let needles = self.needles.lock().unwrap().clone();
        std::thread::scope(|scope| {
            let children = scope.spawn(|| watch_children(process, &needles, &is_over));
            let sides = scope.spawn(|| self.watch_sides(&is_over));
            let _cutover =
                (self.is_warm && args[0] != "cancel").then(|| scope.spawn(|| self.cut_over(&is_over)));
            while time < Duration::MAX && !run.has_ended() && began.elapsed() < time {
                std::thread::sleep(Duration::from_millis(3));
            }
            if time < Duration::MAX && !run.has_ended() {
                run.kill();
            }
            let ended = run.end();
            is_over.store(true, Ordering::SeqCst);
            if let Some(found) = children.join().unwrap() {
                *self.seen.lock().unwrap() = Some(found);
            }
            sides.join().unwrap().map_or(ended, Err)
        })
    }

    /// Asks for the cutover until the run has ended: one that failed wants to be asked again.
    fn cut_over(&self, is_over: &AtomicBool) {
        for turn in 1.. {
            std::thread::sleep(Duration::from_millis(50));
            if is_over.load(Ordering::SeqCst) {
                return;
            }
            if turn % 20 == 0 {
                // It may not know the plan yet.
                let _ = self.drover.run(&["cutover", "moved"]);
            }
        }
    }

    fn watch_sides(&self, is_over: &AtomicBool) -> Option<Violation> {
        loop {
            let is_last = is_over.load(Ordering::SeqCst);
            let found = self.guests.iter().find_map(|guest| self.on_two_sides(guest));
            if found.is_some() || is_last {
                return found;
            }
            std::thread::sleep(Duration::from_millis(15));
        }
    }

    fn on_two_sides(&self, guest: &Guest) -> Option<Violation> {
        let (process, began) = self.at_target(&guest.name)?;
        let source = self.vm(&guest.moid)?;
        // It may have ended between the two looks.
        let is_there = self.at_target(&guest.name).is_some_and(|(again, _)| again == process);
        if source["power"] != "poweredOn" || !is_there {
            return None;
        }
        // Nobody can help it if somebody switches the source on when the target runs, or just before.
        let by_somebody = self.switched_on.lock().unwrap().get(&guest.moid).copied();
        let age = SystemTime::now().duration_since(began).unwrap_or_default();
        if by_somebody.is_some_and(|at| at.elapsed() < age + Duration::from_secs(2)) {
            return None;
        }
        let what = format!("{} runs at the source and as process {process} at the target", guest.name);
        Some(Violation::new(Kind::TwoSides, what))
    }

    /// The process of a guest at the target, and when it began.
    pub fn at_target(&self, name: &str) -> Option<(u32, SystemTime)> {
        let folder = self.work().join("vms").join(name);
        let process: u32 = std::fs::read_to_string(folder.join("qemu.pid")).ok()?.trim().parse().ok()?;
        let arguments = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
        let is_ours = String::from_utf8_lossy(&arguments).contains(folder.to_str().unwrap());
        let began = std::fs::metadata(folder.join("qemu.pid")).ok()?.modified().ok()?;
        is_ours.then_some((process, began))
    }

    /// Holds each image of a VM against its disk.
    pub fn is_equal(&self, guest: &Guest) -> Result<(), String> {
        let found = self.sim.get(&format!("/disks?vm={}", guest.moid)).map_err(|error| error.to_string())?;
        let disks = found[0]["disks"].as_array().ok_or("no disks")?;
        for (number, disk) in disks.iter().enumerate() {
            let image = self.work().join(format!("vms/{0}/{0}-{number}.raw", guest.name));
            let (live, image) = (std::fs::read(disk["live"].as_str().unwrap()), std::fs::read(&image));
            let live = live.map_err(|error| format!("disk {number}: {error}"))?;
            let image = image.map_err(|error| format!("image {number}: {error}"))?;
            if live != image {
                return Err(format!("{}/{number} differs", guest.name));
            }
        }
        Ok(())
    }

    /// Snapshots at the source, of anybody.
    pub fn snapshots(&self) -> Vec<String> {
        let of = |vm: &Value| format!("{}: {}", vm["name"], vm["snapshots"]);
        let has = |vm: &&Value| vm["snapshots"].as_array().is_some_and(|all| !all.is_empty());
        self.vms().iter().filter(has).map(of).collect()
    }

    pub fn report(&self) -> Value {
        let output = self.drover.run(&["report", "moved", "--json"]).unwrap();
        output.json().unwrap_or(Value::Null)
    }

    /// State of a VM by its name in the plan's report.
    pub fn state(&self, name: &str) -> Option<String> {
        let report = self.report();
        let vm = report["vms"].as_array()?.iter().find(|vm| vm["name"] == name)?;
        vm["state"].as_str().map(str::to_string)
    }

    /// Secrets in what drover wrote, and in what started guests inherited.
    pub fn look_for_secrets(&self) -> Result<(), Violation> {
        if let Some(seen) = self.seen.lock().unwrap().take() {
            return Err(seen);
        }
        let needles = self.needles.lock().unwrap().clone();
        for guest in &self.guests {
            let process = self.at_target(&guest.name).map(|(process, _)| process);
            let found = process.and_then(|process| look_at(process, &["environ", "cmdline"], &needles));
            found.map_or(Ok(()), Err)?;
        }
        // What the report says is in a file of its own, too.
        std::fs::write(self.work().join("report.json"), self.report().to_string()).unwrap();
        look_below(&self.work(), &needles, &["trace"])
    }

    pub fn stop_guests(&self) {
        for guest in &self.guests {
            if let Some((process, _)) = self.at_target(&guest.name) {
                // It may end by itself just now.
                let _ = kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL);
            }
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop_guests();
    }
}

fn guest_of(vm: &Value) -> Guest {
    let text = |key: &str| vm[key].as_str().unwrap().to_string();
    Guest { name: text("name"), moid: text("moid"), power: text("power") }
}

fn disk(folder: &Path, vm: &str, number: u64, dice: &mut Dice) -> PathBuf {
    let path = folder.join(format!("{vm}-{number}"));
    let mut content = vec![0; (DISK_BYTES + dice.roll(3) * (64 << 10)) as usize];
    for block in content.chunks_mut(64 << 10) {
        if !dice.percent(20) {
            block.iter_mut().for_each(|byte| *byte = dice.roll(256) as u8);
        }
    }
    std::fs::write(&path, content).unwrap();
    path
}
