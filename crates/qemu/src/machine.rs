use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::accel::Detected;
use crate::child;
use crate::command::{RunOptions, Serial, qemu_command};
use crate::error::{QemuError, QemuErrorKind};
use crate::folder::VmFolder;
use crate::process::{check_shown, find_pid, is_alive, is_running, wait_gone};
use crate::qmp::Qmp;
use crate::serial::wait_for_line;
use crate::spec::{Accelerator, MachineSpec};
use drover_child::Kind;

/// A machine that runs. It goes on running when this value, or drover, is gone.
#[derive(Debug)]
pub struct Running {
    /// Process id of QEMU.
    pub pid: u32,
    /// What executes it, where that is known: `Auto` for a machine that was found running.
    pub accelerator: Accelerator,
    /// What the user should know, such as why it is not KVM.
    pub notes: Vec<String>,
    /// How long its guest was seen to run by [`start`].
    pub watched: Duration,
    folder: VmFolder,
}

/// Starts a machine, detached from our terminal, and sees that its guest goes on running.
///
/// With [`Accelerator::Auto`] KVM is tried where `/dev/kvm` opens; a QEMU that dies within eight seconds, or whose guest
/// KVM stops, is started again under TCG, and the notes say so. The environment variable `DROVER_ACCEL` forces one.
///
/// # Errors
/// [`QemuErrorKind::AlreadyRunning`]; [`QemuErrorKind::Missing`] without QEMU or firmware; QEMU's own words otherwise.
pub fn start(spec: &MachineSpec, options: &RunOptions) -> Result<Running, QemuError> {
    spec.check()?;
    check_shown(Path::new("/proc"))?;
    if is_running(&spec.folder)? {
        return Err(QemuError::new(QemuErrorKind::AlreadyRunning, format!("{} runs already", spec.name)));
    }
    let detected = match spec.accelerator {
        Accelerator::Auto => Accelerator::detect(),
        accelerator => Detected { accelerator, forced: true, reason: "asked for".into() },
    };
    let first = start_with(spec, options, detected.accelerator);
    match first {
        Err(error) if may_fall_back(&detected, &error) => {
            let mut running = start_with(spec, options, Accelerator::Tcg)?;
            running.notes.push(format!("runs without KVM, and slowly: {}", error.chain()));
            Ok(running)
        }
        Ok(mut running) if !detected.forced && detected.accelerator == Accelerator::Tcg => {
            running.notes.push(format!("runs without KVM, and slowly: {}", detected.reason));
            Ok(running)
        }
        done => done,
    }
}

/// The machine of this folder, if it runs.
///
/// # Errors
/// If that cannot be told.
pub fn find_running(folder: &VmFolder) -> Result<Option<Running>, QemuError> {
    Ok(find_pid(folder)?.map(|pid| Running::new(pid, Accelerator::Auto, folder)))
}

impl Running {
    fn new(pid: u32, accelerator: Accelerator, folder: &VmFolder) -> Running {
        Running { pid, accelerator, notes: Vec::new(), watched: Duration::ZERO, folder: folder.clone() }
    }

    /// What the guest writes to its first serial port.
    pub fn serial_log(&self) -> PathBuf {
        self.folder.serial_log()
    }

    /// A connection to QEMU's monitor.
    ///
    /// # Errors
    /// If QEMU is gone, or another client is connected.
    pub fn qmp(&self) -> Result<Qmp, QemuError> {
        Qmp::connect(&self.folder.qmp_socket(), ANSWER_TIME_MAX)
    }

    /// Whether QEMU still runs; it ends when the guest switches off.
    pub fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }

    /// Waits until the guest has written a line with this text in it, and gives the line.
    ///
    /// # Errors
    /// [`QemuErrorKind::Timeout`], or [`QemuErrorKind::Failed`] if the machine ends before, with the last line seen.
    pub fn wait_serial(&self, text: &str, time_max: Duration) -> Result<String, QemuError> {
        wait_for_line(&self.folder.serial_log(), text, time_max, || self.is_alive())
    }

    /// Waits until the machine is off.
    pub fn wait_off(&self, time_max: Duration) -> bool {
        wait_gone(self.pid, time_max)
    }

    /// Presses the power button and waits so long for the guest, then pulls the plug. With no time at all
    /// the plug is pulled at once. A machine that is off already is fine.
    ///
    /// # Errors
    /// If QEMU does not end even when it is killed.
    pub fn stop(&self, time_for_guest: Duration) -> Result<(), QemuError> {
        if !time_for_guest.is_zero() && self.qmp().and_then(|mut qmp| qmp.power_down()).is_ok() {
            wait_gone(self.pid, time_for_guest);
        }
        if self.is_alive() {
            // Errors only mean that the next, harder way has to do.
            let _ = self.qmp().and_then(|mut qmp| qmp.quit());
            wait_gone(self.pid, QUIT_TIME_MAX);
        }
        self.kill()
    }

    fn kill(&self) -> Result<(), QemuError> {
        // Looked up again: the number may belong to another process by now.
        let Some(pid) = find_pid(&self.folder)? else { return Ok(()) };
        kill_machine(pid);
        if wait_gone(pid, QUIT_TIME_MAX) {
            return Ok(());
        }
        Err(QemuError::new(QemuErrorKind::Timeout, format!("QEMU process {pid} does not end")))
    }
}

fn may_fall_back(detected: &Detected, error: &QemuError) -> bool {
    detected.accelerator == Accelerator::Kvm
        && !detected.forced
        && matches!(error.kind, QemuErrorKind::Kvm | QemuErrorKind::Failed | QemuErrorKind::Timeout)
}

fn start_with(
    spec: &MachineSpec,
    options: &RunOptions,
    accelerator: Accelerator,
) -> Result<Running, QemuError> {
    let spec = MachineSpec { accelerator, ..spec.clone() };
    let options = RunOptions { serial: Serial::File, ..options.clone() };
    let what = format!("start of {} under {}", spec.name, accelerator.as_str());
    remove_traces(&spec.folder).map_err(|error| QemuError::io(&what, error))?;
    let outcome = launch(&spec, &options, &what).and_then(|()| watch(&spec, accelerator, &what));
    if outcome.is_err() {
        // A QEMU that hangs at its start holds the images.
        if let Some(pid) = find_pid(&spec.folder)? {
            kill_machine(pid);
            wait_gone(pid, QUIT_TIME_MAX);
        }
    }
    outcome
}

/// What an earlier run left. The logs are started anew, so that nobody waits for a line and finds an old one.
fn remove_traces(folder: &VmFolder) -> std::io::Result<()> {
    for file in
        [folder.qmp_socket(), folder.vnc_socket(), folder.pid_file(), folder.serial_log(), folder.qemu_log()]
    {
        match fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Runs QEMU until it has gone to the background, which it does only when the machine is set up.
fn launch(spec: &MachineSpec, options: &RunOptions, what: &str) -> Result<(), QemuError> {
    let words = qemu_command(spec, options)?;
    let mut command = drover_child::command(&words[0], Kind::Plain);
    command.args(&words[1..]).current_dir(spec.folder.path());
    // With `-daemonize` and `-D` all that QEMU says goes there, from its start on.
    command.args(["-msg", "timestamp=on", "-daemonize", "-D"]).arg(spec.folder.qemu_log());
    let ended = child::run_of("qemu-system-x86", &mut command, START_TIME_MAX)?;
    if ended.success { Ok(()) } else { Err(failure(&spec.folder, what, ended.words())) }
}

/// QEMU's last words from its log, or what else is known.
fn failure(folder: &VmFolder, what: &str, otherwise: String) -> QemuError {
    let log = fs::read(folder.qemu_log()).unwrap_or_default();
    if let Some(words) = kvm_words(&log) {
        return QemuError::new(QemuErrorKind::Kvm, what).because(words);
    }
    let words = child::tail(&log);
    let why = if words.is_empty() { otherwise } else { words };
    QemuError::new(QemuErrorKind::of_words(&why), what).because(why)
}

/// The line of a log in which QEMU says that KVM gave the guest up. Dozens of lines with its registers follow.
pub(crate) fn kvm_words(log: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(log);
    let line = text.lines().rfind(|line| KVM_SIGNS.iter().any(|sign| line.contains(sign)))?;
    Some(line.trim().to_string())
}

/// Sees that the guest runs, and goes on running for a while.
fn watch(spec: &MachineSpec, accelerator: Accelerator, what: &str) -> Result<Running, QemuError> {
    let folder = &spec.folder;
    let time = if accelerator == Accelerator::Kvm { WATCH_KVM } else { WATCH_TCG };
    let died = || failure(folder, what, "QEMU ended without a word".into());
    let running = Running::new(find_pid(folder)?.ok_or_else(died)?, accelerator, folder);
    let began = Instant::now();
    let seen = running.qmp().and_then(|mut qmp| follow(&mut qmp, began + time));
    if matches!(&seen, Err(error) if error.kind != QemuErrorKind::Timeout) {
        wait_gone(running.pid, QUIT_TIME_MAX);
    }
    let (is_alive, watched) = (running.is_alive(), began.elapsed());
    match seen {
        // A guest that has nothing to do may switch off within the time we watch.
        Ok(Seen::SwitchedOff) => {
            wait_gone(running.pid, QUIT_TIME_MAX);
            Ok(Running { watched, ..running })
        }
        Ok(Seen::Stopped(status)) => {
            let what = format!("{what}: the guest stopped after {} s ({status})", watched.as_secs());
            Err(failure(folder, &what, "QEMU does not say why".into()))
        }
        Ok(Seen::Runs) if is_alive => Ok(Running { watched, ..running }),
        Err(error) if is_alive => Err(error),
        _ => Err(died()),
    }
}

/// What became of a guest.
enum Seen {
    Runs,
    /// It switched itself off.
    SwitchedOff,
    /// Its state, in QEMU's word.
    Stopped(String),
}

/// Watches a guest until then, or until it does not run any more. QEMU tells of all that stops a guest by an event.
fn follow(qmp: &mut Qmp, until: Instant) -> Result<Seen, QemuError> {
    loop {
        let status = qmp.status();
        // What a QEMU said before it ended may not be read yet.
        let patience = if status.is_err() { LAST_WORDS_TIME } else { Duration::ZERO };
        while let Ok(Some(event)) = qmp.next_event(patience) {
            match event["event"].as_str() {
                Some("GUEST_PANICKED") => return Ok(Seen::Stopped("guest-panicked".into())),
                Some("SHUTDOWN") if event["data"]["guest"] == true => return Ok(Seen::SwitchedOff),
                _ => {}
            }
        }
        let status = status?;
        if !LIVING.contains(&status.as_str()) {
            return Ok(Seen::Stopped(status));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Seen::Runs);
        }
        qmp.wait_event(left)?;
    }
}

pub(crate) fn kill_machine(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It fails only if the process is gone.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// States of a machine that was started and is meant to run.
const LIVING: [&str; 5] = ["running", "prelaunch", "paused", "inmigrate", "suspended"];
/// What QEMU says of a KVM that does not run the guest.
///
/// Source: QEMU `accel/kvm/kvm-all.c`, `target/i386/kvm/kvm.c`.
const KVM_SIGNS: [&str; 5] =
    ["KVM: entry failed", "KVM internal error", "KVM: unknown exit", "KVM: exception", "kvm run failed"];
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
const QUIT_TIME_MAX: Duration = Duration::from_secs(10);
const LAST_WORDS_TIME: Duration = Duration::from_millis(100);
/// Memory of hundreds of GiB may be set up before QEMU goes to the background.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// A KVM that cannot run the guest shows it when firmware, boot loader and kernel first switch the processor's modes.
pub(crate) const WATCH_KVM: Duration = Duration::from_secs(8);
const WATCH_TCG: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn only_a_kvm_that_nobody_asked_for_is_given_up() {
        let detected = |accelerator, forced| Detected { accelerator, forced, reason: String::new() };
        let died = QemuError::new(QemuErrorKind::Failed, "start");
        let locked = QemuError::new(QemuErrorKind::Busy, "start");
        assert!(may_fall_back(&detected(Accelerator::Kvm, false), &died));
        assert!(!may_fall_back(&detected(Accelerator::Kvm, true), &died));
        assert!(!may_fall_back(&detected(Accelerator::Tcg, false), &died));
        assert!(!may_fall_back(&detected(Accelerator::Kvm, false), &locked));
    }

    /// A process that names the pid file, and its monitor: it says that the guest runs, and a moment later this.
    struct Played {
        _folder: tempfile::TempDir,
        spec: MachineSpec,
        process: std::process::Child,
    }

    impl Played {
        /// `then` ends the connection where it is empty; `status` is what is answered after it was said.
        fn new(log: &str, then: &'static str, status: &'static str) -> Played {
            let folder = tempfile::tempdir().unwrap();
            let spec = crate::spec::tests::machine(folder.path());
            fs::write(spec.folder.qemu_log(), log).unwrap();
            let listener = UnixListener::bind(spec.folder.qmp_socket()).unwrap();
            // It ends with its input, and with that what it is for.
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "read line; exit 0", "sh", "-pidfile"]).arg(spec.folder.pid_file());
            let mut process = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
            let mut input = process.stdin.take();
            // A process that was made just now shows its command line a moment later.
            while find_pid(&spec.folder).unwrap().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(b"{\"QMP\": {}}\n").unwrap();
                let mut now = "running";
                for (number, line) in BufReader::new(stream.try_clone().unwrap()).lines().enumerate() {
                    let Ok(line) = line else { return };
                    let id = line.rsplit("\"id\":").next().unwrap().trim_end_matches('}').to_string();
                    let answer = format!("{{\"return\": {{\"status\": \"{now}\"}}, \"id\": {id}}}\n");
                    stream.write_all(answer.as_bytes()).unwrap();
                    if number == 1 {
                        thread::sleep(Duration::from_millis(50));
                        now = status;
                        stream.write_all(then.as_bytes()).unwrap();
                        if status.is_empty() {
                            input.take();
                            return;
                        }
                    }
                }
            });
            Played { _folder: folder, spec, process }
        }

        fn watched(&self) -> Result<Running, QemuError> {
            watch(&self.spec, Accelerator::Kvm, "start of web01 under kvm")
        }
    }

    impl Drop for Played {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    fn a_guest_that_kvm_stops_after_a_while_has_not_started() {
        let log = "KVM: entry failed, hardware error 0x80000021\nEAX=00000000 EBX=00000000\nESI=0\nEIP=0\nCS=0\nSS=0\n";
        let error = Played::new(log, "{\"event\": \"STOP\"}\n", "internal-error").watched().unwrap_err();
        assert_eq!(error.kind, QemuErrorKind::Kvm);
        let words = error.chain();
        assert!(words.contains("(internal-error): KVM: entry failed, hardware error 0x80000021"), "{words}");
        assert!(error.advice().unwrap().contains("accelerator: tcg"));
        assert!(may_fall_back(
            &Detected { accelerator: Accelerator::Kvm, forced: false, reason: String::new() },
            &error
        ));
    }

    #[test]
    fn a_guest_that_panics_or_whose_qemu_ends_has_not_started() {
        let panicked = Played::new("", "{\"event\": \"GUEST_PANICKED\"}\n", "guest-panicked").watched();
        let words = panicked.unwrap_err().chain();
        assert!(words.contains("(guest-panicked): QEMU does not say why"), "{words}");
        let words = Played::new("error: kvm run failed Bad address\n", "", "").watched().unwrap_err().chain();
        assert!(words.contains("kvm run failed Bad address"), "{words}");
    }

    #[test]
    fn a_guest_that_switches_itself_off_has_run() {
        let off = "{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, \"reason\": \"guest-shutdown\"}}\n";
        Played::new("", off, "").watched().unwrap();
    }
}
