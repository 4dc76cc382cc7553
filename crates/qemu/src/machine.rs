use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
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
    folder: VmFolder,
}

/// Starts a machine, detached from our terminal, and sees that it runs.
///
/// With [`Accelerator::Auto`] KVM is tried where `/dev/kvm` opens; a QEMU that dies within two seconds is
/// started again under TCG, and the notes say so. The environment variable `DROVER_ACCEL` forces one.
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
    let running =
        |pid| Running { pid, accelerator: Accelerator::Auto, notes: Vec::new(), folder: folder.clone() };
    Ok(find_pid(folder)?.map(running))
}

impl Running {
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
        && matches!(error.kind, QemuErrorKind::Failed | QemuErrorKind::Timeout)
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
    let words = child::tail(&fs::read(folder.qemu_log()).unwrap_or_default());
    let why = if words.is_empty() { otherwise } else { words };
    QemuError::new(QemuErrorKind::of_words(&why), what).because(why)
}

/// Sees that the machine runs, and goes on running for a while.
fn watch(spec: &MachineSpec, accelerator: Accelerator, what: &str) -> Result<Running, QemuError> {
    let folder = spec.folder.clone();
    let died = || failure(&folder, what, "QEMU ended without a word".into());
    let pid = find_pid(&folder)?.ok_or_else(died)?;
    let running = Running { pid, accelerator, notes: Vec::new(), folder: folder.clone() };
    let until = Instant::now() + if accelerator == Accelerator::Kvm { WATCH_KVM } else { WATCH_TCG };
    let status = running.qmp().and_then(|mut qmp| qmp.status());
    while Instant::now() < until && running.is_alive() {
        thread::sleep(Duration::from_millis(20));
    }
    match status {
        Ok(status) if running.is_alive() && LIVING.contains(&status.as_str()) => Ok(running),
        // A guest that has nothing to do may switch off within the time we watch.
        Ok(status) if status == "running" && ended_well(&folder) => Ok(running),
        Ok(status) if running.is_alive() => {
            Err(QemuError::new(QemuErrorKind::Failed, what).because(format!("the machine is '{status}'")))
        }
        Err(error) if running.is_alive() => Err(error),
        _ => Err(died()),
    }
}

/// QEMU removes its pid file when it ends in order, and cannot when it is aborted.
fn ended_well(folder: &VmFolder) -> bool {
    !folder.pid_file().exists()
}

pub(crate) fn kill_machine(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It fails only if the process is gone.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// States of a machine that was started and is meant to run.
const LIVING: [&str; 4] = ["running", "prelaunch", "paused", "inmigrate"];
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
const QUIT_TIME_MAX: Duration = Duration::from_secs(10);
/// Memory of hundreds of GiB may be set up before QEMU goes to the background.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// A KVM that cannot run the guest shows it in this time, mostly.
const WATCH_KVM: Duration = Duration::from_secs(2);
const WATCH_TCG: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
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
}
