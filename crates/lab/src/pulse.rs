//! Guests that beat: QEMUs under software emulation for live migration, watched from outside.
//!
//! `lab/guests/pulse.rs` says what such a guest does and prints.

use std::io::{BufRead, BufReader, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::program::{lab_folder, workspace};

/// What a guest that beats does.
#[derive(Clone, Debug)]
pub struct PulseOptions {
    /// Memory of the machine.
    pub memory_mib: u64,
    /// Pages of 4 KiB that it fills.
    pub pages: u32,
    /// Pages that it writes to at each beat, of which there are 100 in a second.
    pub pages_per_beat: u32,
    /// Anywhere, or one after the other.
    pub at_random: bool,
    /// Its IDE disk, which it writes to; raw.
    pub disk: Option<PathBuf>,
    /// Its QEMU: `7.2`, `11.1`; empty: the one that tests judge by.
    pub version: &'static str,
    /// `pc-q35-10.0`; what every version has the same of.
    pub machine: &'static str,
    /// `tcg`, or `kvm` with what it takes.
    pub accel: &'static str,
    /// Arguments for QEMU besides.
    pub more: Vec<String>,
}

impl Default for PulseOptions {
    fn default() -> Self {
        let (pages, pages_per_beat) = (8192, 0);
        let (version, machine, accel) = ("", "pc", "tcg");
        let (disk, more) = (None, Vec::new());
        PulseOptions {
            memory_mib: 64,
            pages,
            pages_per_beat,
            at_random: true,
            disk,
            version,
            machine,
            accel,
            more,
        }
    }
}

/// A QEMU with a guest that beats, or that waits for one. It ends when this is dropped.
#[derive(Debug)]
pub struct Pulse {
    child: Child,
    folder: PathBuf,
    voice: Voice,
}

/// What a guest says on its serial line.
#[derive(Debug)]
pub struct Voice {
    serial: UnixStream,
    lines: Arc<Mutex<Vec<Line>>>,
}

/// Something that a guest said, and when it was heard.
#[derive(Clone, Debug)]
pub struct Line {
    /// When the host had the whole line.
    pub at: Instant,
    /// Without the end of line.
    pub text: String,
}

/// What a guest found in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Pages that are not what was written there.
    pub bad_pages: u32,
    /// Writes that the pages remember.
    pub writes_found: u32,
    /// Writes that the guest counted.
    pub writes_counted: u32,
}

impl Verdict {
    /// Every page is as the guest left it.
    pub fn is_sound(&self) -> bool {
        self.bad_pages == 0 && self.writes_found == self.writes_counted
    }
}

/// A guest fills 1 GiB in a few seconds; a busy machine may take twenty times as long.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

impl Pulse {
    /// The QEMU that `scripts/get-qemu` found; nothing, after a printed line, where there is none.
    pub fn qemu() -> Option<PathBuf> {
        Pulse::qemu_of("")
    }

    /// The same for a version that it was told to find ([`PulseOptions::version`]).
    pub fn qemu_of(version: &str) -> Option<PathBuf> {
        let name = if version.is_empty() { "qemu".to_string() } else { format!("qemu-{version}") };
        let program = lab_folder().join(name).join("qemu-system-x86_64");
        if !program.is_file() {
            println!("skipped: no QEMU {version} for live migration (`make lab`)");
            return None;
        }
        Some(program)
    }

    /// Starts a guest; its files lie in `folder`, which is made.
    ///
    /// # Errors
    /// If it cannot be built or started.
    pub fn start(folder: &Path, options: &PulseOptions) -> Result<Pulse> {
        Pulse::run(folder, options, &[])
    }

    /// Starts a QEMU that waits for a guest.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn waiting(folder: &Path, options: &PulseOptions) -> Result<Pulse> {
        Pulse::run(folder, options, &["-incoming", "defer"])
    }

    fn run(folder: &Path, options: &PulseOptions, more: &[&str]) -> Result<Pulse> {
        std::fs::create_dir_all(folder)?;
        let image = folder.join("pulse.bin");
        std::fs::write(&image, options.image()?)?;
        let program = Pulse::qemu_of(options.version).context("no QEMU")?;
        let (monitor, serial) = (folder.join("qmp.sock"), folder.join("serial.sock"));
        let socket = |path: &Path| format!("unix:{},server=on,wait=off", path.display());
        let mut command = Command::new(program);
        command
            .args([
                "-machine",
                options.machine,
                "-accel",
                options.accel,
                "-cpu",
                "qemu64",
                "-nodefaults",
                "-display",
                "none",
            ])
            .args(["-m", &options.memory_mib.to_string(), "-mem-prealloc", "-no-reboot"])
            .args(["-qmp", &socket(&monitor), "-serial", &socket(&serial)])
            .arg("-kernel")
            .arg(&image)
            .args(more)
            .args(&options.more);
        if let Some(disk) = &options.disk {
            let node =
                format!("driver=raw,node-name=disk0,file.driver=file,file.filename={}", disk.display());
            command.args(["-blockdev", &node, "-device", "ide-hd,id=hd0,bus=ide.0,drive=disk0"]);
        }
        // So that a path below /proc/self/cwd is its own.
        command.current_dir(folder);
        let log = std::fs::File::create(folder.join("qemu.log"))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut child = child;
        let serial = match connect(&serial, &mut child) {
            Ok(serial) => serial,
            Err(error) => {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                let log = std::fs::read_to_string(folder.join("qemu.log")).unwrap_or_default();
                return Err(error.context(log));
            }
        };
        let voice = Voice::of(serial)?;
        Ok(Pulse { child, folder: folder.to_path_buf(), voice })
    }

    /// Its monitor's socket.
    pub fn monitor(&self) -> PathBuf {
        self.folder.join("qmp.sock")
    }

    /// Its QEMU's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether its QEMU runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends its QEMU at once.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
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

impl Voice {
    /// Listens to a guest whose serial line is this socket.
    ///
    /// # Errors
    /// If the socket cannot be had twice.
    pub fn of(serial: UnixStream) -> Result<Voice> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        listen(serial.try_clone()?, lines.clone());
        Ok(Voice { serial, lines })
    }

    /// Everything it has said.
    pub fn lines(&self) -> Vec<Line> {
        lock(&self.lines).clone()
    }

    /// Its beats, with their numbers.
    pub fn beats(&self) -> Vec<(Instant, u32)> {
        let beat = |line: &Line| Some((line.at, numbers(&line.text, 'H')?[0]));
        lock(&self.lines).iter().filter_map(beat).collect()
    }

    /// Waits until it has beaten so many times more.
    ///
    /// # Errors
    /// If it does not.
    pub fn beat(&self, more: usize) -> Result<()> {
        let had = self.beats().len();
        let until = Instant::now() + PATIENCE;
        while self.beats().len() < had + more {
            ensure!(Instant::now() < until, "no beat; said: {:?}", self.lines().last());
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Whether it beats: looks for so long.
    pub fn beats_within(&self, time: Duration) -> bool {
        let had = self.beats().len();
        let until = Instant::now() + time;
        while Instant::now() < until {
            if self.beats().len() > had {
                return true;
            }
            thread::sleep(POLL);
        }
        false
    }

    /// Has it look at all of its memory.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn verify(&mut self) -> Result<Verdict> {
        let answers =
            |lines: &[Line]| lines.iter().filter_map(|line| numbers(&line.text, 'V')).collect::<Vec<_>>();
        let had = answers(&lock(&self.lines)).len();
        self.serial.write_all(b"v")?;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = answers(&lock(&self.lines)).get(had) {
                let [bad_pages, writes_found, writes_counted] = found[..] else { bail!("{found:?}") };
                return Ok(Verdict { bad_pages, writes_found, writes_counted });
            }
            ensure!(Instant::now() < until, "no verdict; said: {:?}", self.lines().last());
            thread::sleep(POLL);
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.kill();
    }
}

impl PulseOptions {
    /// The same, whose QEMU writes into its log what its monitor is told.
    #[must_use]
    pub fn traced(mut self) -> PulseOptions {
        self.more.extend(["-trace", "handle_qmp_command"].map(String::from));
        self
    }

    /// The guest as a file that QEMU loads, with its settings in it.
    ///
    /// # Errors
    /// If it cannot be built, or its pages do not fit its memory.
    pub fn image(&self) -> Result<Vec<u8>> {
        let mut image = built()?;
        let settings =
            [self.pages, self.pages_per_beat, u32::from(self.at_random), u32::from(self.disk.is_some())];
        let room_mib = self.memory_mib.saturating_sub(PAGES_FROM_MIB);
        ensure!(u64::from(self.pages) << 12 <= room_mib << 20, "{} pages in {room_mib} MiB", self.pages);
        for (number, setting) in settings.iter().enumerate() {
            let at = SETTINGS_AT + number * 4;
            image.get_mut(at..at + 4).context("a guest of 4 KiB")?.copy_from_slice(&setting.to_le_bytes());
        }
        Ok(image)
    }
}

const SETTINGS_AT: usize = 0x20;
const PAGES_FROM_MIB: u64 = 4;

/// Builds the guest: an object by the compiler that is here anyway, of which one section is the guest.
fn built() -> Result<Vec<u8>> {
    let source = workspace().join("lab/guests/pulse.rs");
    let folder = std::env::temp_dir().join(format!(
        "drover-pulse-{}-{:?}",
        std::process::id(),
        thread::current().id()
    ));
    std::fs::create_dir_all(&folder)?;
    let (object, image) = (folder.join("pulse.o"), folder.join("pulse.bin"));
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let made = run(Command::new(compiler)
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "obj", "-C", "panic=abort", "-o"])
        .arg(&object)
        .arg(&source))
    .and_then(|()| {
        run(Command::new("objcopy").args(["-O", "binary", "-j", ".pulse"]).arg(&object).arg(&image))
    })
    .and_then(|()| Ok(std::fs::read(&image)?));
    // What is left of it is in a folder for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    made
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn connect(socket: &Path, child: &mut Child) -> Result<UnixStream> {
    let until = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                ensure!(child.try_wait()?.is_none(), "QEMU ended by itself");
                ensure!(Instant::now() < until, "{}: {error}", socket.display());
            }
        }
        thread::sleep(POLL);
    }
}

/// Takes down what is said, until the line ends.
fn listen(serial: UnixStream, lines: Arc<Mutex<Vec<Line>>>) {
    thread::spawn(move || {
        let mut reader = BufReader::new(serial);
        let mut bytes = Vec::new();
        while matches!(reader.read_until(b'\n', &mut bytes), Ok(count) if count > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_string();
            lock(&lines).push(Line { at: Instant::now(), text });
            bytes.clear();
        }
    });
}

/// The numbers of a line that begins with this letter.
fn numbers(text: &str, letter: char) -> Option<Vec<u32>> {
    let rest = text.strip_prefix(letter)?;
    let numbers: Option<Vec<u32>> =
        rest.split_whitespace().map(|word| u32::from_str_radix(word, 16).ok()).collect();
    numbers.filter(|numbers| !numbers.is_empty())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
