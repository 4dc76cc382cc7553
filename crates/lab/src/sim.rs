use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use drover_http::{Client, Request, Timeouts, Trust, Url};
use drover_types::drives_terminal;
use serde_json::{Value, json};

use crate::program::lab_folder;

/// User of the simulated vCenter.
pub const USER: &str = "administrator@vsphere.local";
/// Its password.
pub const PASSWORD: &str = "s3cret";

/// A running vSphere simulator; ends when dropped, and when this process ends however it ends.
pub struct Sim {
    child: Child,
    control: Client,
    /// Port of the vCenter on 127.0.0.1, and of the hosts on their own addresses.
    pub port: u16,
    /// SHA-1 thumbprint of its certificate.
    pub thumbprint: String,
    /// Its certificate as a PEM file.
    pub ca_file: PathBuf,
    /// URL of the control API.
    pub control_url: String,
}

impl Sim {
    /// Where the simulator's program is, if it is built.
    pub fn program() -> Option<PathBuf> {
        let path =
            std::env::var_os("DROVER_VSPHERE_SIM").map_or(lab_folder().join("vsphere-sim"), PathBuf::from);
        path.is_file().then_some(path)
    }

    /// Starts a simulated vCenter with an inventory (see `lab/vsphere-sim/README.md`), its files below `work`.
    ///
    /// # Errors
    /// If it is not built or does not start.
    pub fn start(inventory: &Value, work: &Path) -> Result<Sim> {
        Sim::start_as("vcenter", inventory, work)
    }

    /// Starts it as `vcenter` or `esxi`.
    ///
    /// # Errors
    /// As [`Sim::start`].
    pub fn start_as(mode: &str, inventory: &Value, work: &Path) -> Result<Sim> {
        let program = Sim::program().context("the vSphere simulator is not built; run `make lab`")?;
        std::fs::create_dir_all(work)?;
        // JSON is YAML.
        let file = work.join("inventory.yaml");
        // YAML takes some characters of JSON's strings only where they are escaped.
        let escaped = |c: char| match c {
            c if drives_terminal(c) => format!("\\u{:04x}", u32::from(c)),
            c => c.to_string(),
        };
        std::fs::write(&file, inventory.to_string().chars().map(escaped).collect::<String>())?;
        let mut child = Command::new(program)
            .args(["--mode", mode, "--exit-with-parent", "--work"])
            .arg(work)
            .arg("--inventory")
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(work.join("vsphere-sim.log"))?)
            .spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().context("standard output is piped")?;
        BufReader::new(out).read_line(&mut line)?;
        if line.is_empty() {
            let log = std::fs::read_to_string(work.join("vsphere-sim.log")).unwrap_or_default();
            bail!("the simulator did not start: {log}");
        }
        let ready: Value = serde_json::from_str(&line)?;
        let text = |key: &str| {
            ready[key].as_str().map(str::to_string).with_context(|| format!("no {key} in {line}"))
        };
        let control_url = text("control")?;
        let control: Url = control_url.parse()?;
        Ok(Sim {
            child,
            control: Client::new(control.endpoint, &Trust::System, Timeouts::default())?,
            port: ready["port"].as_u64().context("a port")? as u16,
            thumbprint: text("thumbprint_sha1")?,
            ca_file: PathBuf::from(text("ca_file")?),
            control_url,
        })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A call of the control API.
    ///
    /// # Errors
    /// If it is refused.
    pub fn post(&self, path: &str, body: Value) -> Result<Value> {
        self.answer(&Request::post(path, body.to_string()))
    }

    /// A question to the control API.
    ///
    /// # Errors
    /// If it is refused.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.answer(&Request::get(path))
    }

    /// Spoils data requests; see the simulator's README for the keys.
    ///
    /// # Errors
    /// If the fault is refused.
    pub fn spoil_data(&self, mut fault: Value) -> Result<()> {
        fault["path"] = json!("/folder");
        self.post("/fault/http", fault)?;
        Ok(())
    }

    /// What the simulator says of a VM: power, snapshots, disks.
    ///
    /// # Errors
    /// If there is no such VM.
    pub fn vm(&self, name: &str) -> Result<Value> {
        let all = self.get("/vms")?;
        let list = all.as_array().or_else(|| all["vms"].as_array()).context("a list of VMs")?;
        list.iter().find(|vm| vm["name"] == name).cloned().with_context(|| format!("VM {name}"))
    }

    /// Stops the writers in a VM's guest and gives the bytes they wrote.
    ///
    /// # Errors
    /// If there is no such VM.
    pub fn stop_writer(&self, vm: &str) -> Result<u64> {
        let request = Request { method: "DELETE", ..Request::get(format!("/writer?vm={vm}")) };
        self.answer(&request)?["bytes"].as_u64().context("bytes written")
    }

    /// SHA-256 of each disk of a VM as its guest has it now.
    ///
    /// # Errors
    /// If there is no such VM.
    pub fn disk_hashes(&self, vm: &str) -> Result<Vec<String>> {
        let found = self.get(&format!("/disks?hash=1&vm={vm}"))?;
        let disks = found[0]["disks"].as_array().with_context(|| format!("disks of {vm}"))?;
        let hash = |disk: &Value| disk["sha256"].as_str().map(str::to_string).context("a hash");
        disks.iter().map(hash).collect()
    }

    fn answer(&self, request: &Request) -> Result<Value> {
        let response = self.control.send(request)?;
        let text = String::from_utf8(response.body)?;
        if response.head.status != 200 {
            bail!("{}: {} {text}", request.path, response.head.status);
        }
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // It removes its files at SIGTERM; if it is gone already there is nothing to end.
        let _ = Command::new("kill").arg(self.child.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}
