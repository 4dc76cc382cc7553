//! VMs of the simulator that land as domains of the lab's two daemons (`lab/libvirt/hosts`).

use crate::program;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use drover_lab::{Drover, Hosts, Output, lab_folder, run_by};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use tempfile::TempDir;

use crate::Stage;
use crate::certificates::certificates_for;
use crate::sites::{own_address, start_agent};

const PATIENCE: Duration = Duration::from_secs(300);

/// A source, and two daemons with a pool each.
pub struct Landing {
    pub stage: Stage,
    pub hosts: Hosts,
    pub folder: TempDir,
    /// Whether drover runs with the files of the first host.
    is_inside: bool,
}

impl Landing {
    pub fn new(number: u8, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Landing> {
        Landing::in_folder(tempfile::Builder::new().prefix("drover-land-").tempdir().unwrap(), number, vms)
    }

    pub(crate) fn in_folder(
        folder: TempDir,
        number: u8,
        vms: impl FnOnce(&Path) -> Vec<Value>,
    ) -> Option<Landing> {
        let hosts = Hosts::start(folder.path()).unwrap()?;
        let stage = Stage::new(number, vms)?;
        for host in ["a", "b"] {
            let pool = folder.path().join("shared").join(host);
            std::fs::create_dir(&pool).unwrap();
            hosts
                .virsh(host, &["pool-define-as", "images", "dir", "--target", pool.to_str().unwrap()])
                .unwrap();
            hosts.virsh(host, &["pool-start", "images"]).unwrap();
        }
        Some(Landing { stage, hosts, folder, is_inside: false })
    }

    /// As [`Landing::new`], with a pool `lvm` of the first daemon, of a volume group of so many bytes, and drover with the files of its host;
    /// nothing, after a printed line, where the daemon has no driver for it or there are no loop devices.
    pub fn with_lvm(number: u8, bytes: u64, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Landing> {
        Some(Landing { is_inside: true, ..Landing::with_lvm_of("a", number, bytes, vms)? })
    }

    /// The same with a pool of this daemon, and drover with the files of this machine.
    pub fn with_lvm_of(
        host: &str,
        number: u8,
        bytes: u64,
        vms: impl FnOnce(&Path) -> Vec<Value>,
    ) -> Option<Landing> {
        if !Path::new("/dev/loop-control").exists() {
            println!("skipped: no loop devices here");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("drover-land-").tempdir().unwrap();
        let group = folder.path().join("lvm").join(host).join("vg");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("size"), bytes.to_string()).unwrap();
        let landing = Landing::in_folder(folder, number, vms)?;
        let pool = ["pool-define-as", "lvm", "logical", "--source-name", "vg", "--target", "/dev/vg"];
        if let Err(error) = landing.hosts.virsh(host, &pool) {
            assert!(std::env::var_os("DROVER_NEEDS_LIBVIRT").is_none(), "{error}");
            println!("skipped: this libvirt has no driver for LVM ({error})");
            return None;
        }
        landing.hosts.virsh(host, &["pool-start", "lvm"]).unwrap();
        Some(landing)
    }

    /// As [`Landing::with_lvm`], with a pool `san` of the first daemon instead: LUN N of it is the file `N.img` of these [`Loops`], of so many bytes
    /// of this value.
    pub fn with_luns(
        number: u8,
        luns: &[(u64, u8)],
        vms: impl FnOnce(&Path) -> Vec<Value>,
    ) -> Option<(Landing, Loops)> {
        if !Path::new("/dev/loop-control").exists() {
            println!("skipped: no loop devices here");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("drover-land-").tempdir().unwrap();
        let scsi = folder.path().join("scsi");
        let mut loops = Loops { folder: folder.path().join("luns"), devices: Vec::new() };
        std::fs::create_dir(&scsi).unwrap();
        std::fs::create_dir(&loops.folder).unwrap();
        for (lun, (bytes, value)) in (1..).zip(luns) {
            let file = loops.file(lun);
            std::fs::write(&file, vec![*value; *bytes as usize]).unwrap();
            let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            let device = String::from_utf8_lossy(&made.stdout).trim().to_string();
            std::fs::write(scsi.join(lun.to_string()), device.trim_start_matches("/dev/")).unwrap();
            loops.devices.push(device);
        }
        let landing = Landing { is_inside: true, ..Landing::in_folder(folder, number, vms)? };
        let pool =
            ["pool-define-as", "san", "scsi", "--adapter-name", "host9", "--target", "/dev/disk/by-path"];
        if let Err(error) = landing.hosts.virsh("a", &pool) {
            assert!(std::env::var_os("DROVER_NEEDS_LIBVIRT").is_none(), "{error}");
            println!("skipped: this libvirt has no driver for SCSI hosts ({error})");
            return None;
        }
        landing.hosts.virsh("a", &["pool-start", "san"]).unwrap();
        Some((landing, loops))
    }

    /// As [`Landing::new`], with the address of the second daemon by TLS, and the folder of the certificates for it.
    pub fn by_tls(number: u8, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<(Landing, String, PathBuf)> {
        let folder = tempfile::Builder::new().prefix("drover-land-").tempdir().unwrap();
        let (address, certificates) = (own_address(), folder.path().join("pki"));
        certificates_for(&certificates, address.split(':').next().unwrap());
        let landing = Landing::in_folder(folder, number, vms)?;
        let network = landing.hosts.in_their_network().unwrap();
        let network = Path::new(network[1].trim_start_matches("--net="));
        let address = carry(&address, network, TLS_ADDRESS);
        Some((landing, format!("qemu+tls://{address}/system"), certificates))
    }

    pub fn image(&self, host: &str, volume: &str) -> PathBuf {
        self.folder.path().join("shared").join(host).join(volume)
    }

    /// A plan that moves all VMs to the first daemon, with texts replaced.
    pub fn plan(&self, name: &str, edits: &[(&str, &str)]) -> String {
        let folder = format!("type: qemu\n  folder: {}", self.stage.vms().display());
        let daemon = format!("type: libvirt\n  uri: {}\n  pool: images", self.hosts.uri("a"));
        self.stage.plan(name, &[&[(folder.as_str(), daemon.as_str())], edits].concat())
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.stage.drover.command(args);
        self.hosts.equip(&mut command);
        // A stand-in for ssh, if there is one.
        let path = command.get_envs().find_map(|(name, value)| (name == "PATH").then_some(value?));
        let path = std::env::join_paths(
            std::iter::once(self.stage.path("bin")).chain(std::env::split_paths(path.unwrap_or_default())),
        );
        command.env("PATH", path.unwrap());
        match self.is_inside {
            true => run_by(&self.hosts.inside("a").unwrap(), &command),
            false => command,
        }
    }

    /// The address of a host's daemon by ssh, and what has to live as long as it is used: an sshd with the files of that host, where
    /// there is one (`scripts/get-sshd`), else a stand-in for ssh that runs what it is told with them.
    pub fn by_ssh(&self, host: &str) -> (String, Option<Sshd>) {
        let bin = self.stage.path("bin");
        std::fs::create_dir_all(&bin).unwrap();
        let sshd = Sshd::start(self, host);
        let body = match &sshd {
            Some(sshd) => format!("exec /usr/bin/ssh -F '{}' \"$@\"", sshd.config.display()),
            None => {
                println!("note: no sshd, so a stand-in for ssh");
                let inside = self.hosts.inside(host).unwrap();
                let quoted: Vec<String> = inside.iter().map(|word| format!("'{word}'")).collect();
                let inside = quoted.join(" ");
                format!("while [ \"$1\" != -- ]; do shift; done\nshift 2\nexec {inside} sh -c \"$*\"")
            }
        };
        drover_lab::put_script(&bin.join("ssh"), &body).unwrap();
        (format!("qemu+ssh://root@host-{host}/system?no_tty=1"), sshd)
    }

    /// A plan that moves all VMs to the daemon of another host by its agent, with texts replaced.
    pub fn far_plan(&self, name: &str, uri: &str, edits: &[(&str, &str)]) -> String {
        let folder = format!("type: qemu\n  folder: {}", self.stage.vms().display());
        let daemon = format!("type: libvirt\n  uri: {uri}\n  via: site-b\n  pool: images");
        self.stage.plan(name, &[&[(folder.as_str(), daemon.as_str())], edits].concat())
    }

    /// Starts an agent with the files of a host, and pairs with it as this site. Pools are folders (`NAME=FOLDER`), or libvirt's by name.
    pub fn agent(&self, host: &str, site: &str, pools: &[&str]) -> Agent {
        self.agent_that_may_convert(host, site, pools, None)
    }

    /// The same, with the converter in this folder.
    pub fn agent_that_may_convert(
        &self,
        host: &str,
        site: &str,
        pools: &[&str],
        converter: Option<&Path>,
    ) -> Agent {
        let there = Drover::new(program(), self.stage.path(&format!("state-{site}")));
        let run_by = self.hosts.inside(host).unwrap();
        let mut equipped = Command::new("virsh");
        self.hosts.equip(&mut equipped);
        let path =
            equipped.get_envs().find_map(|(name, value)| (name == "PATH").then_some(value?.to_owned()));
        let mut agent = Agent {
            there,
            address: own_address(),
            child: None,
            run_by,
            pools: pools.iter().map(ToString::to_string).collect(),
            path: path.unwrap_or_default(),
            converter: converter.map(Path::to_path_buf),
            may_start: converter.is_some(),
        };
        agent.start();
        let token = agent.there.run(&["agent", "pair", "--new-token"]).unwrap();
        let file = self.stage.path("token");
        std::fs::write(&file, token.out.trim()).unwrap();
        let args = ["agent", "pair", &agent.address, "--name", site, "--as", "here", "--token-file"];
        self.arrives(&[&args[..], &[file.to_str().unwrap()]].concat());
        agent
    }

    pub fn run(&self, args: &[&str]) -> Output {
        crate::moves::run(self.command(args))
    }

    #[track_caller]
    pub fn arrives(&self, args: &[&str]) -> Output {
        let output = self.run(args);
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
        output
    }

    pub fn state(&self, host: &str, name: &str) -> String {
        self.hosts.virsh(host, &["domstate", name]).unwrap_or_default()
    }

    /// Why a domain is in its state, and what libvirt and its QEMU wrote of it.
    pub fn log_of(&self, host: &str, name: &str) -> String {
        let why = self.hosts.virsh(host, &["domstate", "--reason", name]).unwrap_or_default();
        let file = self.folder.path().join(host).join(format!("var/log/libvirt/qemu/{name}.log"));
        format!("{why}\n{}", std::fs::read_to_string(file).unwrap_or_default())
    }

    /// Whether their network has the bridge that `lab/libvirt/hosts` makes, and guests can be plugged into it.
    pub fn has_bridge(&self) -> bool {
        let has = Path::new("/dev/net/tun").exists() && self.ports_of_bridge().is_some();
        if !has {
            println!("note: this kernel has no bridges, or no /dev/net/tun");
        }
        has
    }

    /// What is plugged into that bridge.
    pub fn ports_of_bridge(&self) -> Option<String> {
        let there = self.hosts.in_their_network().unwrap();
        let mut command = Command::new(&there[0]);
        command.args(&there[1..]).args(["ip", "-o", "link", "show", "master", "br-lan"]);
        let output = crate::moves::run(command);
        (output.code == Some(0)).then_some(output.out)
    }

    /// A command of drover's that is in the network of the simulator, and sees the devices of that of the daemons.
    pub fn sees_their_devices(&self, command: &Command) -> Command {
        let own = format!("/proc/{}/ns/net", std::process::id());
        let sees = format!("mount -t sysfs sys /sys && exec nsenter --net={own} \"$@\"");
        let words = ["unshare", "--mount", "sh", "-c", &sees, "sh"].map(str::to_string);
        run_by(&[&self.hosts.in_their_network().unwrap()[..], &words].concat(), command)
    }

    /// From now on `virsh` keeps the definitions that it is given ([`Landing::asked`]), and starts no domain while there is a file `hold`
    /// beside it: it waits, and then fails.
    pub fn overhear(&self) -> PathBuf {
        let bin = self.stage.path("bin");
        std::fs::create_dir_all(&bin).unwrap();
        let script = "here=$(dirname \"$0\")\nPATH=${PATH#*:}\ncase \" $* \" in\n\
            *' define '*)\n  for file; do :; done\n  cp \"$file\" \"$here/$(sed -n 's|.*<name>\\(.*\\)</name>.*|\\1|p' \"$file\").xml\" ;;\n\
            *' start '*)\n  if [ -e \"$here/hold\" ]; then while [ -e \"$here/hold\" ]; do sleep 0.1; done; exit 1; fi ;;\n\
            esac\nexec virsh \"$@\"";
        drover_lab::put_script(&bin.join("virsh"), script).unwrap();
        bin.join("hold")
    }

    /// The XML by which drover defined a domain last.
    pub fn asked(&self, name: &str) -> String {
        std::fs::read_to_string(self.stage.path("bin").join(format!("{name}.xml"))).unwrap()
    }

    /// The domains and volumes of a host; journals of drover are among the files of its pool.
    pub fn all_of(&self, host: &str) -> Vec<String> {
        let pool = std::fs::read_dir(self.image(host, "")).unwrap();
        let files = pool.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let domains = self.hosts.virsh(host, &["list", "--all", "--name"]).unwrap();
        let mut all: Vec<String> =
            files.chain(domains.lines().map(|name| format!("domain {name}"))).collect();
        all.sort();
        all
    }

    pub fn xml(&self, host: &str, name: &str) -> String {
        self.hosts.virsh(host, &["dumpxml", "--inactive", name]).unwrap()
    }

    /// A domain that is none of drover's.
    pub fn somebodys(&self, host: &str, name: &str, uuid: Option<&str>) {
        let uuid = uuid.map(|uuid| format!("<uuid>{uuid}</uuid>")).unwrap_or_default();
        let xml = format!(
            "<domain type='qemu'><name>{name}</name>{uuid}<memory unit='MiB'>32</memory>\
             <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
        );
        let file = self.folder.path().join("somebodys.xml");
        std::fs::write(&file, xml).unwrap();
        self.hosts.virsh(host, &["define", file.to_str().unwrap()]).unwrap();
    }
}

/// Loop devices, as long as this lives.
pub struct Loops {
    folder: PathBuf,
    devices: Vec<String>,
}

impl Loops {
    pub fn file(&self, lun: usize) -> PathBuf {
        self.folder.join(format!("{lun}.img"))
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for device in &self.devices {
            let _ = Command::new("losetup").args(["--detach", device]).status();
        }
    }
}

/// Listens at an address here, and carries each connection to one of another network.
fn carry(here: &str, network: &Path, there: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(here).unwrap();
    let address = listener.local_addr().unwrap();
    let network = std::fs::File::open(network).unwrap();
    std::thread::spawn(move || {
        // This thread alone is in that network from now on; the socket stays in its own.
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        for here in listener.incoming().map_while(Result::ok) {
            let there = TcpStream::connect(there).unwrap();
            for (mut from, mut to) in [(here.try_clone().unwrap(), there.try_clone().unwrap()), (there, here)]
            {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    address
}

/// Where the second daemon answers to TLS (`lab/libvirt/hosts`).
const TLS_ADDRESS: &str = "127.0.0.1:16512";

/// An sshd with the files of a host.
pub struct Sshd {
    child: Child,
    /// Of the client.
    config: PathBuf,
}

impl Sshd {
    fn start(landing: &Landing, host: &str) -> Option<Sshd> {
        let program = lab_folder().join("sshd/sshd");
        if !program.exists() || !Path::new("/usr/bin/ssh").exists() {
            return None;
        }
        let folder = landing.stage.path("ssh");
        std::fs::create_dir(&folder).unwrap();
        let at = |name: &str| folder.join(name).display().to_string();
        for key in ["host", "user"] {
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]).status();
            assert!(made.unwrap().success());
        }
        std::fs::copy(at("user.pub"), at("authorized")).unwrap();
        let address = own_address();
        let address = address.split(':').next().unwrap();
        let config = format!(
            "ListenAddress {address}\nPort {SSH_PORT}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nPidFile none\n",
            at("host"),
            at("authorized")
        );
        std::fs::write(at("sshd_config"), config).unwrap();
        let host_key = std::fs::read_to_string(at("host.pub")).unwrap();
        std::fs::write(at("known"), format!("[{address}]:{SSH_PORT} {host_key}")).unwrap();
        let config = format!(
            "Host host-{host}\n  HostName {address}\n  Port {SSH_PORT}\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile {}\n  StrictHostKeyChecking yes\n",
            at("user"),
            at("known")
        );
        std::fs::write(at("config"), config).unwrap();
        let run = format!(
            "grep -q ^sshd: /etc/passwd || echo sshd:x:105:65534::/run/sshd:/usr/sbin/nologin >>/etc/passwd; mkdir -p /run/sshd; \
             exec '{}' -D -e -f '{}'",
            program.display(),
            at("sshd_config")
        );
        let words = landing.hosts.inside(host).unwrap();
        let log = std::fs::File::create(at("log")).unwrap();
        let mut child = Command::new(&words[0]);
        child.args(&words[1..]).args(["sh", "-c", &run]);
        let child = child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let sshd = Sshd { child, config: folder.join("config") };
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect((address, SSH_PORT)).is_err() {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(at("log")).unwrap());
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(sshd)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of an address that nobody else has.
const SSH_PORT: u16 = 2222;

/// The agent of a host.
pub struct Agent {
    there: Drover,
    pub address: String,
    child: Option<Child>,
    run_by: Vec<String>,
    pub pools: Vec<String>,
    /// Where it finds the `virsh` of these hosts.
    path: OsString,
    /// Folder of a converter that it finds.
    pub converter: Option<PathBuf>,
    /// Whether it may run one.
    pub may_start: bool,
}

impl Agent {
    /// Starts it at the address that it had before, once it has one.
    pub fn start(&mut self) {
        let mut args = vec!["agent", "run", "--json", "--listen", &self.address];
        let option = |pool: &str| if pool.contains('=') { "--pool" } else { "--libvirt-pool" };
        self.pools.iter().for_each(|pool| args.extend([option(pool), pool.as_str()]));
        args.extend(self.may_start.then_some("--allow-start"));
        let mut command = self.there.command(&args);
        if self.pools.iter().any(|pool| !pool.contains('=')) {
            command.env("PATH", &self.path);
        }
        if let Some(folder) = &self.converter {
            command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
        }
        let (child, address) = start_agent(run_by(&self.run_by, &command));
        self.address = address;
        self.child = Some(child);
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a domain writes to its serial port until it has said all of this.
pub fn hear(tty: std::fs::File, is_all: impl Fn(&str) -> bool) -> String {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut tty, mut buffer) = (tty, [0; 4096]);
        while let Ok(count @ 1..) = tty.read(&mut buffer) {
            if tell.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let (mut heard, until) = (Vec::new(), Instant::now() + PATIENCE);
    while !is_all(&String::from_utf8_lossy(&heard)) && Instant::now() < until {
        match told.recv_timeout(Duration::from_secs(1)) {
            Ok(bytes) => heard.extend(bytes),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    String::from_utf8_lossy(&heard).into_owned()
}

/// Where a cold plan is killed that is then given up: from its copy on, before its guest runs.
pub const EARLY_EDGES: [(&str, &str); 4] = [
    ("phase_started", "copy"),
    ("phase_ended", "copy"),
    ("phase_started", "define"),
    ("phase_ended", "define"),
];

/// Every edge of the phases, in the order in which a plan comes to them.
pub fn edges(is_warm: bool) -> Vec<(&'static str, &'static str)> {
    let first: &[&str] = if is_warm { &["check", "track", "passes"] } else { &["check"] };
    let then = ["power_off", "snapshot", "copy", "verify", "convert", "define", "start", "clean_up"];
    let phases = first.iter().chain(&then);
    phases.flat_map(|phase| [("phase_started", *phase), ("phase_ended", *phase)]).collect()
}

impl Landing {
    /// Runs drover and kills it at an edge; nothing if it ended before.
    pub fn killed_at(&self, args: &[&str], (kind, phase): (&str, &str)) -> Option<()> {
        let mut child =
            self.command(args).arg("--json").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_it = |line: &str| {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            event["event"] == kind && event["phase"] == phase
        };
        let came = lines.map_while(Result::ok).any(|line| is_it(&line));
        let _ = child.kill();
        child.wait().unwrap();
        came.then_some(())
    }

    /// A plan whose guest has arrived as `one` is not undone by a cancel.
    pub fn stays(&self, host: &str, plan: &str) {
        let cancelled = self.arrives(&["cancel", plan]);
        assert!(cancelled.err.contains("nothing to cancel"), "{}", cancelled.err);
        assert_eq!(self.state(host, "one"), "running", "what has arrived stays");
    }

    /// A guest never runs on two sides.
    pub fn runs_once(&self, host: &str, name: &str, edge: (&str, &str)) {
        let is_on = self.stage.sim.vm(name).unwrap()["power"] == "poweredOn";
        assert!(!(is_on && self.state(host, name) == "running"), "{name} runs twice after {edge:?}");
    }
}
