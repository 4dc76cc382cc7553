//! Two sites on this host: one that copies, and one with an agent.

use crate::program;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use drover_lab::{Drover, Output, run_by};
use serde_json::Value;

/// Two hosts on one: each has its own state; the second one has a pool.
pub struct Sites {
    pub folder: tempfile::TempDir,
    pub here: Drover,
    pub there: Drover,
    pub agent: Option<Child>,
    /// Where the agent listens, once it was started.
    pub address: String,
    /// What the agent is told beside its pool.
    pub more: Vec<String>,
    /// What is set before it to run it.
    pub run_by: Vec<String>,
    /// Variables that it sees.
    pub env: Vec<(String, String)>,
}

impl Sites {
    pub fn new() -> Sites {
        let mut sites = Sites::not_started();
        sites.start();
        sites
    }

    /// Without an agent yet.
    pub fn not_started() -> Sites {
        let folder = tempfile::tempdir().unwrap();
        let host = |name: &str| Drover::new(program(), folder.path().join(name));
        let (here, there) = (host("here"), host("there"));
        std::fs::create_dir(folder.path().join("pool")).unwrap();
        let address = own_address();
        Sites {
            folder,
            here,
            there,
            agent: None,
            address,
            more: Vec::new(),
            run_by: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Two sites that are paired: the other one is `site-b` here.
    pub fn paired() -> Sites {
        let sites = Sites::new();
        sites.pair_at(&sites.address);
        sites
    }

    /// Starts the agent with more to serve, and pairs.
    pub fn paired_with(more: &[&str]) -> Sites {
        let mut sites = Sites::not_started();
        sites.more = more.iter().map(|it| (*it).to_string()).collect();
        sites.start();
        sites.pair_at(&sites.address);
        sites
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn in_pool(&self, name: &str) -> PathBuf {
        self.path("pool").join(name)
    }

    /// Starts the agent at the place it had before, once it has one.
    pub fn start(&mut self) {
        let pool = format!("vms={}", self.path("pool").display());
        let control = self.path("agent-1.sock").display().to_string();
        let args = ["agent", "run", "--json", "--listen", &self.address, "--pool", &pool, "--name", "west"];
        let args = [&args[..], &["--control", &control]].concat();
        let mut command = run_by(&self.run_by, &self.there.command(&args));
        command.args(&self.more).envs(self.env.iter().map(|(name, value)| (name, value)));
        let (child, address) = start_agent(command);
        self.address = address;
        self.agent = Some(child);
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.agent.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn token(&self, args: &[&str]) -> String {
        let output = self.there.run(&[&["agent", "pair", "--new-token"], args].concat()).unwrap();
        assert_eq!(output.code, Some(0), "{}", output.err);
        output.out.trim().to_string()
    }

    /// Pairs with the agent; from now on it is dialled at that address.
    pub fn pair_at(&self, address: &str) {
        self.pair_over(address, &[]);
    }

    /// The same, and is dialled as these options say.
    #[track_caller]
    pub fn pair_over(&self, address: &str, more: &[&str]) {
        let output = self.pair_by(&self.token(&[]), address, more);
        assert_eq!(output.code, Some(0), "{}", output.err);
    }

    pub fn pair(&self, token: &str) -> Output {
        self.pair_by(token, &self.address, &[])
    }

    fn pair_by(&self, token: &str, address: &str, more: &[&str]) -> Output {
        let file = self.path("token");
        std::fs::write(&file, token).unwrap();
        let args = ["agent", "pair", address, "--name", "site-b", "--as", "site-a"];
        self.here.run(&[&args[..], &["--token-file", file.to_str().unwrap()], more].concat()).unwrap()
    }

    pub fn copy(&self, source: &Path, more: &[&str]) -> Output {
        let args = ["copy", "--json", source.to_str().unwrap(), "agent://site-b/vms/disk.raw"];
        self.here.run(&[&args[..], more].concat()).unwrap()
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts `agent run --json`, and tells where it listens.
pub fn start_agent(mut command: Command) -> (Child, String) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let listening: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("'{line}'"));
    // What it says later is of no interest, but must be taken.
    std::thread::spawn(move || out.lines().for_each(drop));
    (child, listening["addresses"][0].as_str().unwrap().to_string())
}

/// Any port of an address of this host that nobody else uses: nobody takes the port that an agent was ended at before it
/// is there again, and nobody who dials it meanwhile is connected to himself, as on 127.0.0.1, where ports are lent to all.
pub fn own_address() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{high}.{low}:0", 128 + MADE.fetch_add(1, Ordering::Relaxed) % 100)
}

/// The report of a copy that is done.
pub fn done(output: &Output) -> Value {
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    let lines = output.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.rev().find(|line| line["event"] == "done").unwrap_or_else(|| panic!("{}", output.out))
}
