use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::error::PulseError;
use crate::voice::{PATIENCE, POLL, Voice};
use drover_child::Kind;

/// What a guest that beats does, and in which machine.
#[derive(Clone, Debug)]
pub struct PulseSpec {
    /// Its QEMU: a path, or a name to look for as a shell does.
    pub qemu: PathBuf,
    /// `-machine`, of a PC.
    pub machine: String,
    /// `-accel`: `tcg`, or `kvm` with what it takes.
    pub accel: String,
    /// `-cpu`.
    pub cpu: String,
    /// Memory of the machine, all of it there beforehand; [`crate::MEMORY_MIB_MIN`] and more.
    pub memory_mib: u64,
    /// Pages of 4 KiB that it fills; at most [`crate::pages_max`].
    pub pages: u32,
    /// Pages that it writes to at each beat.
    pub pages_per_beat: u32,
    /// Anywhere, or one after the other.
    pub at_random: bool,
    /// Its IDE disk, which it writes to; raw.
    pub disk: Option<PathBuf>,
    /// Arguments for QEMU besides.
    pub more: Vec<String>,
    /// Once it is set, whoever waits for the guest is told [`PulseError::Stopped`].
    pub stop: Arc<AtomicBool>,
}

impl Default for PulseSpec {
    /// 64 MiB, of which half are filled, under software emulation.
    fn default() -> Self {
        PulseSpec {
            qemu: "qemu-system-x86_64".into(),
            machine: "pc".into(),
            accel: "tcg".into(),
            cpu: "qemu64".into(),
            memory_mib: 64,
            pages: 8192,
            pages_per_beat: 0,
            at_random: true,
            disk: None,
            more: Vec::new(),
            stop: Arc::default(),
        }
    }
}

/// A QEMU with a guest that beats, or that waits for one. It ends when this is dropped.
#[derive(Debug)]
pub struct Pulse {
    process: Process,
    folder: PathBuf,
    voice: Voice,
}

/// Ends with its value.
#[derive(Debug)]
struct Process(Child);

/// What it says goes here, in its folder.
const LOG: &str = "qemu.log";
const MONITOR: &str = "qmp.sock";
const SERIAL: &str = "serial.sock";

impl Pulse {
    /// Starts a guest; its files lie in `folder`, which is made.
    ///
    /// # Errors
    /// If it cannot be built or started.
    pub fn start(folder: &Path, spec: &PulseSpec) -> Result<Pulse, PulseError> {
        Pulse::start_by(folder, spec, Command::spawn)
    }

    /// Starts a QEMU that waits for a guest.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn waiting(folder: &Path, spec: &PulseSpec) -> Result<Pulse, PulseError> {
        Pulse::waiting_by(folder, spec, Command::spawn)
    }

    /// [`Pulse::start`], where somebody else starts the program: in another network, say.
    ///
    /// # Errors
    /// If it cannot be built or started.
    pub fn start_by(
        folder: &Path,
        spec: &PulseSpec,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<Pulse, PulseError> {
        Pulse::run(folder, spec, &[], spawn)
    }

    /// [`Pulse::waiting`], where somebody else starts the program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn waiting_by(
        folder: &Path,
        spec: &PulseSpec,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<Pulse, PulseError> {
        Pulse::run(folder, spec, &["-incoming", "defer"], spawn)
    }

    fn run(
        folder: &Path,
        spec: &PulseSpec,
        more: &[&str],
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<Pulse, PulseError> {
        let mut command = spec.command(folder)?;
        command.args(more).args(&spec.more);
        let what = || format!("starting {}", spec.qemu.display());
        let mut process = Process(spawn(&mut command).map_err(PulseError::of(what()))?);
        let serial = process.connect(folder, &spec.stop)?;
        // The cast: memory is below 2^32 GiB.
        let voice = Voice::patient(serial, (spec.memory_mib >> 10) as u32, spec.stop.clone())?;
        Ok(Pulse { process, folder: folder.to_path_buf(), voice })
    }

    /// Its monitor's socket.
    pub fn monitor(&self) -> PathBuf {
        self.folder.join(MONITOR)
    }

    /// Its QEMU's process.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Whether its QEMU runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.0.try_wait(), Ok(None))
    }

    /// Ends its QEMU at once.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

impl Deref for Pulse {
    type Target = Voice;

    fn deref(&self) -> &Voice {
        &self.voice
    }
}

impl DerefMut for Pulse {
    fn deref_mut(&mut self) -> &mut Voice {
        &mut self.voice
    }
}

impl PulseSpec {
    /// Its QEMU, whose sockets and log lie in `folder`.
    fn command(&self, folder: &Path) -> Result<Command, PulseError> {
        let image = folder.join("pulse.bin");
        let made = std::fs::create_dir_all(folder);
        made.map_err(PulseError::of(format!("making {}", folder.display())))?;
        std::fs::write(&image, self.image()?)
            .map_err(PulseError::of(format!("writing {}", image.display())))?;
        let socket = |name: &str| format!("unix:{},server=on,wait=off", folder.join(name).display());
        let mut command = drover_child::command(&self.qemu, Kind::Plain);
        command
            .args(["-machine", &self.machine, "-accel", &self.accel, "-cpu", &self.cpu])
            .args(["-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-m", &self.memory_mib.to_string(), "-mem-prealloc"])
            .args(["-qmp", &socket(MONITOR), "-serial", &socket(SERIAL)])
            .arg("-kernel")
            .arg(&image);
        if let Some(disk) = &self.disk {
            let node =
                format!("driver=raw,node-name=disk0,file.driver=file,file.filename={}", disk.display());
            command.args(["-blockdev", &node, "-device", "ide-hd,id=hd0,bus=ide.0,drive=disk0"]);
        }
        let log = File::create(folder.join(LOG)).and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(PulseError::of(format!("writing {LOG} in {}", folder.display())))?;
        // So that a path below /proc/self/cwd is its own.
        command.current_dir(folder).stdin(Stdio::null()).stdout(out).stderr(err);
        Ok(command)
    }
}

impl Process {
    fn connect(&mut self, folder: &Path, stop: &AtomicBool) -> Result<UnixStream, PulseError> {
        let socket = folder.join(SERIAL);
        let until = Instant::now() + PATIENCE;
        loop {
            let error = match UnixStream::connect(&socket) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if !matches!(self.0.try_wait(), Ok(None)) {
                let log = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
                return Err(PulseError::Ended(log.trim().to_string()));
            }
            if stop.load(Ordering::Relaxed) {
                return Err(PulseError::Stopped);
            }
            if Instant::now() >= until {
                return Err(PulseError::of(format!("connecting to {}", socket.display()))(error));
            }
            thread::sleep(POLL);
        }
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
