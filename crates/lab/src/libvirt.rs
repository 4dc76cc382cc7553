//! Two hosts with a libvirt daemon each, for domains that move between them. `lab/libvirt/hosts` says what they are.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drover_pulse::Voice;

use crate::program::{lab_folder, workspace};
use crate::pulse::{Pulse, PulseOptions};

/// Two hosts, `a` and `b`. They end with their guests when this is dropped.
#[derive(Debug)]
pub struct Hosts {
    child: Child,
    folder: PathBuf,
}

/// A daemon looks at QEMU before it answers for the first time.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
/// `O_NOCTTY` of Linux: the terminal is not to become that of the test.
const NOCTTY: i32 = 0o400;
/// One that takes a connection and does not answer for so long, in seconds, hangs.
const SILENCE_S: &str = "60";
/// What `timeout` ends with then.
const TIMED_OUT: i32 = 124;
const STARTS: usize = 3;
/// What a daemon has found out of its QEMUs, which takes it seconds. It looks anew if they, or libvirt, are others.
const FOUND: &str = "var/cache/libvirt/qemu/capabilities";

/// A daemon that does not answer.
#[derive(Debug, thiserror::Error)]
#[error("libvirt's daemon of host {0} does not answer")]
struct Silent(String);

impl Hosts {
    /// Starts them in a folder; nothing, after a printed line, where that cannot be done.
    ///
    /// # Errors
    /// If they do not start although they could, or where `DROVER_NEEDS_LIBVIRT` is set and they could not.
    pub fn start(folder: &Path) -> Result<Option<Hosts>> {
        let why = if !virsh_folder().join("virsh").is_file() || Pulse::qemu().is_none() {
            "no libvirt (`make lab`)"
        } else if std::fs::metadata("/proc/self")?.uid() != 0 {
            "libvirt's hosts want root"
        } else {
            return Hosts::begin(folder).map(Some);
        };
        ensure!(std::env::var_os("DROVER_NEEDS_LIBVIRT").is_none(), "{why}");
        println!("skipped: {why}");
        Ok(None)
    }

    /// Has the daemons begin with what others have found.
    fn begin(folder: &Path) -> Result<Hosts> {
        let kept = lab_folder().join("libvirt/capabilities");
        // With Ceph a QEMU has modules that it has not without.
        let is_usual = !folder.join("ceph").exists();
        if is_usual {
            for host in ["a", "b"] {
                hand_on(&kept, &folder.join(host).join(FOUND))?;
            }
        }
        let hosts = Hosts::begin_patiently(folder)?;
        if is_usual {
            hand_on(&folder.join("a").join(FOUND), &kept)?;
        }
        Ok(hosts)
    }

    /// Begins anew where a daemon does not come to answer: the QEMU that it looks at may hang before it says a word, seen once on
    /// a busy machine, and the daemon waits for that without end.
    fn begin_patiently(folder: &Path) -> Result<Hosts> {
        for _ in 1..STARTS {
            match Hosts::begin_once(folder) {
                Err(error) if error.is::<Silent>() => println!("{error}: once more"),
                begun => return begun,
            }
            for host in ["a", "b"] {
                std::fs::remove_dir_all(folder.join(host))?;
            }
        }
        Hosts::begin_once(folder)
    }

    fn begin_once(folder: &Path) -> Result<Hosts> {
        std::fs::create_dir_all(folder.join("shared"))?;
        let lab = lab_folder();
        let log = std::fs::File::create(folder.join("hosts.log"))?;
        let child = Command::new(workspace().join("lab/libvirt/hosts"))
            .arg(folder)
            .args([lab.join("libvirt/root"), lab.join("qemu/root"), folder.join("shared")])
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut hosts = Hosts { child, folder: folder.to_path_buf() };
        for host in ["a", "b"] {
            hosts.wait_for(host)?;
        }
        Ok(hosts)
    }

    fn wait_for(&mut self, host: &str) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while let Err(error) = self.virsh(host, &["version"]) {
            if error.is::<Silent>() {
                return Err(error);
            }
            let has_ended = self.child.try_wait()?.is_some();
            if has_ended || Instant::now() >= until {
                let log = |name: &str| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
                bail!("{error}; {} {} {}", log("hosts.log"), log("a.log"), log("b.log"));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// The address of a host's daemon, from here.
    pub fn uri(&self, host: &str) -> String {
        format!("qemu+unix:///system?socket={}", self.run_folder(host).join("libvirt/libvirt-sock").display())
    }

    /// What that host has as `/run`, which the other has not.
    pub fn run_folder(&self, host: &str) -> PathBuf {
        self.folder.join(host).join("run")
    }

    /// A folder that both take for storage of several hosts.
    pub fn shared(&self) -> PathBuf {
        self.folder.join("shared")
    }

    /// What is set before a command so that it has the files and the name of a host, in the network of who runs it.
    ///
    /// # Errors
    /// If its daemon is not found.
    pub fn inside(&self, host: &str) -> Result<Vec<String>> {
        let spaces = self.daemon(host)?.join("ns");
        let space = |option: &str, name: &str| format!("{option}={}", spaces.join(name).display());
        let mut words = vec!["nsenter".to_string(), space("--mount", "mnt"), space("--uts", "uts")];
        // That host's /proc knows of its own processes only.
        let own_proc = "mount -t proc proc /proc && exec \"$@\"";
        words.extend(["unshare", "--mount", "sh", "-c", own_proc, "sh"].map(str::to_string));
        Ok(words)
    }

    /// The words that run a command in the network of both hosts, with the files of this machine.
    ///
    /// # Errors
    /// If their daemons are gone.
    pub fn in_their_network(&self) -> Result<Vec<String>> {
        let space = self.daemon("a")?.join("ns/net");
        Ok(vec!["nsenter".to_string(), format!("--net={}", space.display())])
    }

    /// Starts a domain and listens to what it writes to its first serial port, from its first byte on.
    ///
    /// # Errors
    /// If it runs, or does not start.
    pub fn start_heard(&self, host: &str, name: &str) -> Result<File> {
        self.virsh(host, &["start", "--paused", name])?;
        let tty = self.virsh(host, &["ttyconsole", name])?;
        let tty = self.daemon(host)?.join("root").join(tty.trim_start_matches('/'));
        let open = || File::options().read(true).write(true).custom_flags(NOCTTY).open(&tty);
        let heard = open().with_context(|| tty.display().to_string())?;
        self.virsh(host, &["resume", name])?;
        Ok(heard)
    }

    /// The daemon's process, in `/proc`.
    fn daemon(&self, host: &str) -> Result<PathBuf> {
        let socket = std::fs::metadata(self.run_folder(host).join("libvirt/libvirt-sock"))?;
        let is_daemon = |process: &Path| {
            let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
            let its = std::fs::metadata(process.join("root/run/libvirt/libvirt-sock"));
            name.trim() == "libvirtd"
                && its.is_ok_and(|its| its.ino() == socket.ino() && its.dev() == socket.dev())
        };
        let processes = std::fs::read_dir("/proc")?.filter_map(|entry| Some(entry.ok()?.path()));
        let daemon = processes.into_iter().find(|process| is_daemon(process));
        daemon.context("no libvirtd has that host's files")
    }

    /// Asks a host's daemon.
    ///
    /// # Errors
    /// If it refuses, in its words, or does not answer.
    pub fn virsh(&self, host: &str, words: &[&str]) -> Result<String> {
        let output = Command::new("timeout")
            .arg(SILENCE_S)
            .arg(virsh_folder().join("virsh"))
            .env("LC_ALL", "C")
            .args(["-q", "-c", &self.uri(host)])
            .args(words)
            .stdin(Stdio::null())
            .output()?;
        if output.status.code() == Some(TIMED_OUT) {
            return Err(Silent(host.to_string()).into());
        }
        ensure!(output.status.success(), "virsh {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    }

    /// Sets the program `virsh` of these hosts before any other.
    pub fn equip(&self, command: &mut Command) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(virsh_folder()).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(folders) {
            command.env("PATH", path);
        }
    }

    /// Defines a guest that beats at a host.
    ///
    /// # Errors
    /// If it cannot be built, or the daemon refuses it.
    pub fn define(&self, host: &str, name: &str, options: &PulseOptions) -> Result<()> {
        let xml = self.folder.join(format!("{name}-{host}.xml"));
        std::fs::write(&xml, self.xml(name, options)?)?;
        self.virsh(host, &["define", &xml.to_string_lossy()]).map(drop)
    }

    /// The definition of a guest that beats. Its disk is raw, unless its name says qcow2.
    fn xml(&self, name: &str, options: &PulseOptions) -> Result<String> {
        let image = self.folder.join(format!("{name}.bin"));
        std::fs::write(&image, options.image()?)?;
        let (image, memory) = (image.display(), options.memory_mib);
        let disk = match &options.disk {
            None => String::new(),
            Some(file) => {
                let format = if file.extension().is_some_and(|it| it == "qcow2") { "qcow2" } else { "raw" };
                format!(
                    "<disk type='file' device='disk'><driver name='qemu' type='{format}' cache='none'/>\
                     <source file='{}'/><target dev='hda' bus='ide'/></disk>",
                    file.display()
                )
            }
        };
        Ok(format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>{memory}</memory><vcpu>1</vcpu>\
             <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{image}</kernel></os><features><acpi/></features>\
             <cpu mode='custom' match='exact'><model fallback='forbid'>qemu64</model></cpu>\
             <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>{disk}\
             <serial type='unix'><source mode='bind' path='/run/{name}.sock'/></serial>\
             <memballoon model='none'/></devices></domain>"
        ))
    }

    /// Listens to a guest of [`Hosts::define`] that a host has.
    ///
    /// # Errors
    /// If it has none.
    pub fn voice(&self, host: &str, name: &str) -> Result<Voice> {
        let socket = self.run_folder(host).join(format!("{name}.sock"));
        let until = Instant::now() + PATIENCE;
        loop {
            match UnixStream::connect(&socket) {
                Ok(serial) => return Ok(Voice::of(serial)?),
                Err(error) if Instant::now() >= until => {
                    return Err(error).with_context(|| socket.display().to_string());
                }
                Err(_) => thread::sleep(POLL),
            }
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Its end is what they wait for; they may have ended by themselves.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Copies that were made by [`hand_on`].
static COPIES: AtomicU32 = AtomicU32::new(0);

/// Copies what daemons have found to another folder, where it is not the same already.
fn hand_on(from: &Path, to: &Path) -> Result<()> {
    // Where there is none, nobody has found anything yet.
    let Ok(entries) = std::fs::read_dir(from) else { return Ok(()) };
    std::fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        let (file, there) = (entry.path(), to.join(entry.file_name()));
        if file.extension().is_none_or(|it| it != "xml") {
            continue;
        }
        let found = std::fs::read(&file)?;
        if std::fs::read(&there).is_ok_and(|has| has == found) {
            continue;
        }
        // Whole at once: others read it meanwhile, and write it.
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let fresh = to.join(format!("{}-{number}.new", std::process::id()));
        std::fs::write(&fresh, &found)?;
        std::fs::rename(&fresh, &there)?;
    }
    Ok(())
}

fn virsh_folder() -> PathBuf {
    lab_folder().join("libvirt/bin")
}
