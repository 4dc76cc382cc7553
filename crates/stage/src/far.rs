//! A source on this host, and the agent of another site on it, for whole plans.

use crate::program;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use drover_lab::Drover;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Stage;
use crate::process::{recorded_in, wait_until};
use crate::sites::{own_address, start_agent};

const PATIENCE: Duration = Duration::from_secs(120);

/// A source here, and an agent of another site, `site-b`, that this host is paired with.
pub struct Far {
    pub stage: Stage,
    pub there: Drover,
    pub agent: Option<Child>,
    address: String,
    pub options: Vec<&'static str>,
    /// Where the agent looks for programs; absent: where this test does.
    pub path: Option<String>,
}

impl Far {
    pub fn new(number: u8, options: &[&'static str], vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Far> {
        let stage = Stage::new(number, vms)?;
        std::fs::create_dir(stage.path("pool")).unwrap();
        let there = Drover::new(program(), stage.path("there"));
        let (address, options) = (own_address(), options.to_vec());
        let mut far = Far { stage, there, agent: None, address, options, path: None };
        far.start_agent();
        far.pair();
        Some(far)
    }

    /// Starts the agent at the address it had before, once it has one.
    pub fn start_agent(&mut self) {
        let pool = format!("vms={}", self.stage.path("pool").display());
        let args = ["agent", "run", "--json", "--listen", &self.address, "--pool", &pool];
        let mut command = self.there.command(&[&args[..], &self.options].concat());
        command.envs(self.path.iter().map(|path| ("PATH", path)));
        let (child, address) = start_agent(command);
        self.address = address;
        self.agent = Some(child);
    }

    pub fn kill_agent(&mut self) {
        if let Some(mut child) = self.agent.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn pair(&self) {
        let token = self.there.run(&["agent", "pair", "--new-token"]).unwrap();
        let file = self.stage.path("token");
        std::fs::write(&file, token.out.trim()).unwrap();
        let args = ["agent", "pair", &self.address, "--name", "site-b", "--as", "site-a", "--token-file"];
        let paired = self.stage.run(&[&args[..], &[file.to_str().unwrap()]].concat());
        assert_eq!(paired.code, Some(0), "{}", paired.err);
    }

    /// A plan that takes all VMs to the pool, with texts replaced.
    pub fn plan(&self, name: &str, edits: &[(&str, &str)]) -> String {
        let folder = format!("folder: {}", self.stage.vms().display());
        let via = [(folder.as_str(), "via: site-b\n  folder: vms")];
        self.stage.plan(name, &[&via[..], edits].concat())
    }

    pub fn in_pool(&self, name: &str) -> PathBuf {
        self.stage.path("pool").join(name)
    }

    pub fn image(&self, vm: &str) -> PathBuf {
        self.in_pool(&format!("{vm}/{vm}-0.raw"))
    }

    pub fn start(&self, args: &[&str]) -> Running {
        Running(self.stage.drover.start(args).unwrap().child)
    }

    /// Blocks that the journals on this side say are on the other.
    pub fn recorded(&self) -> u64 {
        recorded_in(&self.stage.path("state/journals"))
    }

    pub fn wait_for_records(&self, child: &mut Child) {
        wait_until("the copy records blocks", PATIENCE, || {
            assert!(child.try_wait().unwrap().is_none(), "it ended before: {:#}", self.stage.report("far"));
            self.recorded() > 0
        });
    }

    /// Events of a kind, by their texts.
    pub fn notes(&self, plan: &str) -> String {
        let report = self.stage.report(plan);
        let events = report["events"].as_array().unwrap().clone();
        events.iter().filter_map(|event| event["text"].as_str()).collect::<Vec<_>>().join("\n")
    }
}

/// A drover that ends with the test.
pub struct Running(pub Child);

impl Running {
    /// As a power cut of the process would.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.kill_agent();
        // Machines that the agent started outlive it.
        let Ok(folders) = std::fs::read_dir(self.stage.path("pool")) else { return };
        for folder in folders.flatten() {
            let pid = std::fs::read_to_string(folder.path().join("qemu.pid")).ok();
            let pid = pid.and_then(|text| Pid::from_raw(text.trim().parse().ok()?));
            let is_ours = |pid: &Pid| {
                let line =
                    std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
                String::from_utf8_lossy(&line).contains(&folder.path().display().to_string())
            };
            if let Some(pid) = pid.filter(is_ours) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
