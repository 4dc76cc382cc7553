//! Guests of VMware that become domains of a libvirt daemon and are converted on their way: in the volumes of a pool, by a stand-in for
//! virt-v2v-in-place that writes a mark. What the true one makes of a guest is `conversion.rs`.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use drover_lab::v2v::V2v;
use drover_stage::debian::{
    HAS_DRIVERS, debian, guest_of_vmware, marked, put_converter, put_marking_converter, put_windows_tools,
};
use drover_stage::landing::{Agent, Landing, hear};
use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, disk_file, vm, with};
use serde_json::json;

/// The source's disk, and the converter's folder.
struct Scene {
    landing: Landing,
    /// Where the volume is.
    host: &'static str,
    agent: RefCell<Option<Agent>>,
    tools: PathBuf,
    before: Vec<u8>,
}

const STARTED: [(&str, &str); 2] =
    [("mode: cold", "mode: cold\nstart: true"), ("convert: never", "convert: auto")];

impl Scene {
    /// A guest that runs, and that would not find its disk on virtio.
    fn new(number: u8) -> Option<Scene> {
        Scene::on(number, "a", false)
    }

    /// The same on another host, by its agent.
    fn far(number: u8) -> Option<Scene> {
        Scene::on(number, "b", false)
    }

    /// The same, whose agent has the converter, too.
    fn by_agent(number: u8) -> Option<Scene> {
        Scene::on(number, "b", true)
    }

    fn on(number: u8, host: &'static str, by_agent: bool) -> Option<Scene> {
        let landing = Landing::new(number, |folder| {
            vec![with(vm("vmware", &[&debian(folder, "vmware", &[])]), json!({"power": "on", "nics": []}))]
        })?;
        let (tools, disk) = (landing.stage.path("bin"), landing.stage.path("vmware"));
        let pool = format!("images={}", landing.image("b", "").display());
        put_marking_converter(&tools, "");
        let converter = by_agent.then_some(tools.as_path());
        let agent = (host == "b").then(|| landing.agent_that_may_convert("b", "site-b", &[&pool], converter));
        let agent = RefCell::new(agent);
        Some(Scene { landing, host, agent, tools, before: std::fs::read(disk).unwrap() })
    }

    fn plan(&self, name: &str) -> String {
        match self.host {
            "a" => self.landing.plan(name, &STARTED),
            host => self.landing.far_plan(name, &self.landing.hosts.uri(host), &STARTED),
        }
    }

    /// From now on the converter writes its mark, and then does this.
    fn convert(&self, then: &str) {
        put_marking_converter(&self.tools, then);
    }

    /// Ids of the converter's processes so far.
    fn runs(&self) -> Vec<String> {
        let runs = std::fs::read_to_string(self.tools.join("runs")).unwrap_or_default();
        runs.lines().map(str::to_string).collect()
    }

    fn volume(&self) -> Vec<u8> {
        std::fs::read(self.landing.image(self.host, "vmware-0.raw")).unwrap()
    }

    fn is_converted(&self) -> bool {
        self.volume() == marked(self.before.clone())
    }

    #[track_caller]
    fn has_arrived(&self) {
        assert!(self.is_converted(), "the volume is the source's, but for the mark");
        let images = self.landing.all_of(self.host).into_iter().filter(|name| !name.contains(".drover-"));
        assert_eq!(images.collect::<Vec<_>>(), ["domain vmware", "vmware-0.raw"]);
        let state = self.landing.state(self.host, "vmware");
        assert_eq!(state, "running", "{}", self.landing.log_of(self.host, "vmware"));
        assert_eq!(self.source_power(), "poweredOff");
    }

    fn agent_converts(&self) -> bool {
        self.agent.borrow().as_ref().is_some_and(|agent| agent.converter.is_some())
    }

    /// From now on the agent converts, or does so no more.
    fn another_converts(&self) {
        if let Some(agent) = &mut *self.agent.borrow_mut() {
            agent.kill();
            agent.converter = agent.converter.is_none().then(|| self.tools.clone());
            agent.may_start = true;
            agent.start();
        }
    }

    fn source_power(&self) -> String {
        self.landing.stage.sim.vm("vmware").unwrap()["power"].as_str().unwrap().to_string()
    }

    /// Runs until the converter is at work, and is killed.
    fn killed_while_it_converts(&self, args: &[&str]) {
        self.convert(": >begun\nexec sleep 600");
        let begun = self.tools.join("begun");
        let mut command = self.landing.command(args);
        let mut drover = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the conversion", PATIENCE, || begun.exists());
        drover.kill().unwrap();
        drover.wait().unwrap();
        std::fs::remove_file(begun).unwrap();
        let process = Path::new("/proc").join(self.runs().last().unwrap());
        // One of an agent ends when somebody else comes.
        if !self.agent_converts() {
            wait_until("the converter ends with drover", PATIENCE, || !process.exists());
        }
        self.convert("");
        assert!(self.volume() == self.before, "the volume is not converted in part");
    }
}

#[test]
fn a_guest_is_converted_in_its_volume_once_and_runs() {
    let Some(scene) = Scene::new(137) else { return };
    let plan = scene.landing.plan("convert", &STARTED);
    scene.landing.arrives(&["plan", "check", &plan]);
    assert_eq!(scene.runs(), Vec::<String>::new(), "a check converts nothing");
    scene.landing.arrives(&["migrate", &plan]);
    scene.has_arrived();
    let report = scene.landing.stage.report(&plan).to_string();
    assert!(report.contains("converted; log in"), "{report}");
    let xml = scene.landing.xml("a", "vmware");
    assert!(xml.contains("<target dev='vda' bus='virtio'/>"), "{xml}");
    scene.landing.arrives(&["migrate", &plan]);
    assert_eq!(scene.runs().len(), 1);
}

#[test]
fn killed_around_its_conversion_a_guest_is_given_up_whole_or_converted_once() {
    let Some(scene) = Scene::new(144) else { return };
    scene.is_given_up_whole_or_converted_once();
}

#[test]
fn the_same_holds_for_a_volume_of_another_host() {
    let Some(scene) = Scene::far(182) else { return };
    let told = scene.checked();
    let warned = "VM (vmware) is converted on this machine, over the link to site-b: the agent of site-b converts no guests.";
    assert!(told.contains(warned), "{told}");
    scene.is_given_up_whole_or_converted_once();
    let report = scene.landing.stage.report("killed").to_string();
    assert!(report.contains("converted; log in /"), "{report}");
}

#[test]
fn an_agent_that_has_a_converter_converts_the_volumes_of_its_host() {
    let Some(scene) = Scene::by_agent(201) else { return };
    let told = scene.checked();
    let line = "converted by the agent of site-b, beside their volumes: vmware\n";
    assert!(told.contains(line) && !told.contains("over the link"), "{told}");
    scene.is_given_up_whole_or_converted_once();
    let report = scene.landing.stage.report("killed").to_string();
    assert!(report.contains("converted; log in site-b:/"), "{report}");
}

#[test]
fn a_merge_into_a_volume_of_another_host_that_was_cut_off_is_done_again() {
    let Some(scene) = Scene::far(183) else { return };
    let plan = scene.plan("merge");
    // What is merged is there, and nobody knows.
    let stops = "case \"$1\" in commit) stops=1;; *) stops=;; esac\nPATH=${PATH#*:} qemu-img \"$@\" || exit 1\n\
                 [ ! \"$stops\" ] || { : >\"$(dirname \"$0\")/merged\"; sleep 30; }";
    let image_tool = scene.tools.join("qemu-img");
    drover_lab::put_script(&image_tool, stops).unwrap();
    let mut command = scene.landing.command(&["migrate", &plan]);
    let mut drover = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the merge", PATIENCE, || scene.tools.join("merged").exists());
    drover.kill().unwrap();
    drover.wait().unwrap();
    std::fs::remove_file(image_tool).unwrap();
    scene.landing.arrives(&["resume", "merge"]);
    scene.has_arrived();
    assert_eq!(scene.runs().len(), 1, "what is converted is not converted again");
}

impl Scene {
    /// What a check says of a plan that has it converted in any case.
    fn checked(&self) -> String {
        let always = ("convert: never", "convert: always");
        let plan = self.landing.far_plan("always", &self.landing.hosts.uri(self.host), &[always]);
        let checked = self.landing.arrives(&["plan", "check", &plan]);
        checked.out + &checked.err
    }

    fn is_given_up_whole_or_converted_once(&self) {
        let (scene, landing, host) = (self, &self.landing, self.host);
        let plan = scene.plan("killed");
        scene.killed_while_it_converts(&["migrate", &plan]);
        let cancelled = landing.arrives(&["cancel", "killed"]);
        assert!(cancelled.err.contains("what it had begun is undone"), "{}", cancelled.err);
        assert_eq!(
            (landing.all_of(host), scene.source_power()),
            (Vec::<String>::new(), "poweredOn".to_string())
        );

        scene.killed_while_it_converts(&["migrate", &plan]);
        assert!(landing.killed_at(&["resume", "killed"], ("phase_started", "convert")).is_some());
        assert!(landing.killed_at(&["resume", "killed"], ("phase_ended", "convert")).is_some());
        let runs = scene.runs();
        assert!(scene.is_converted() && landing.state(host, "vmware") != "running");
        scene.another_converts();
        landing.arrives(&["resume", "killed"]);
        scene.has_arrived();
        assert_eq!(scene.runs(), runs, "what is converted is not converted again");
    }
}

#[test]
fn a_conversion_that_fails_leaves_the_guest_to_its_source() {
    let Some(scene) = Scene::new(158) else { return };
    let landing = &scene.landing;
    let plan = landing.plan("fails", &STARTED);
    scene.convert("echo 'virt-v2v-in-place: error: no boot loader was found' >&2\nexit 1");
    let failed = landing.run(&["migrate", &plan]);
    assert_eq!(failed.code, Some(7), "{failed:?}");
    assert!(failed.err.contains("no boot loader was found"), "{}", failed.err);
    assert_eq!(scene.source_power(), "poweredOn");
    assert!(!landing.all_of("a").contains(&"domain vmware".to_string()), "{:?}", landing.all_of("a"));
    assert!(scene.volume() == scene.before, "the volume is not converted in part");
    scene.convert("");
    landing.arrives(&["resume", "fails"]);
    scene.has_arrived();
    assert_eq!(scene.runs().len(), 2);
}

#[test]
fn what_windows_needs_is_named_before_anything_moves() {
    let Some(landing) = Landing::new(160, |folder| {
        vec![with(
            vm("win", &[&disk_file(folder, "win", 2 * MIB)]),
            json!({"guest_id": "windows2019srv_64Guest"}),
        )]
    }) else {
        return;
    };
    let tools = landing.stage.path("bin");
    put_converter(&tools, HAS_DRIVERS);
    let plan = landing.plan("windows", &[("convert: never", "convert: always")]);
    let mut check = landing.command(&["plan", "check", &plan]);
    check.envs(put_windows_tools(&tools)).env("VIRTIO_WIN", "/none");
    let checked = drover_stage::moves::run(check);
    assert_eq!(checked.code, Some(7), "{checked:?}");
    assert!(
        checked.err.contains("virtio-win, which has the drivers for Windows, is not installed"),
        "{}",
        checked.err
    );
    assert_eq!(landing.all_of("a"), Vec::<String>::new());
}

#[test]
fn a_debian_that_knows_only_vmware_is_converted_on_another_host_by_the_true_converter_and_boots() {
    let Some(v2v) = V2v::find().unwrap() else { return };
    let Some((guest, expect)) = guest_of_vmware() else { return };
    let landing = Landing::new(185, |_| {
        let disks = [guest.join("root.img"), guest.join("data.img")];
        vec![with(vm("vmware", &[&disks[0], &disks[1]]), json!({"memory_mib": 512}))]
    });
    let Some(landing) = landing else { return };
    let _agent = landing.agent("b", "site-b", &[&format!("images={}", landing.image("b", "").display())]);
    let uri = landing.hosts.uri("b");
    let plan = landing.far_plan("true", &uri, &[("convert: never", "convert: auto")]);
    let mut command = landing.command(&["migrate", &plan]);
    let path = command.get_envs().find_map(|(name, value)| (name == "PATH").then_some(value?)).unwrap();
    let path = format!("{}:{}", v2v.bin().display(), path.display());
    let moved = command.env("PATH", path).output().unwrap();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    let report = landing.stage.report("true").to_string();
    assert!(report.contains("converted; log in"), "{report}");
    let tty = landing.hosts.start_heard("b", "vmware").unwrap();
    let said = hear(tty, |said| said.contains("DROVER-DONE"));
    for line in expect.lines() {
        assert!(said.lines().any(|it| it.trim().starts_with(line)), "'{line}' in {said}");
    }
}
