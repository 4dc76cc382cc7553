//! Finding the QEMU process that runs a machine's folder.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::error::{QemuError, QemuErrorKind};
use crate::folder::VmFolder;
use crate::qmp::connect_unix;

/// Whether a QEMU runs the machine of this folder, whoever started it: drover, an earlier drover that was
/// killed, or a person with `run.sh`.
///
/// A monitor that takes connections says so, and so does a process whose command line names the folder's
/// pid file. Processes on other hosts that share the folder are not seen; QEMU's own image locks are the fence there.
///
/// # Errors
/// If neither can be told; then better take it as running.
pub fn is_running(folder: &VmFolder) -> Result<bool, QemuError> {
    Ok(find_pid(folder)?.is_some() || has_monitor(folder)?)
}

fn has_monitor(folder: &VmFolder) -> Result<bool, QemuError> {
    use io::ErrorKind as E;
    match connect_unix(&folder.qmp_socket(), Duration::ZERO) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), E::NotFound | E::ConnectionRefused | E::NotADirectory) => {
            Ok(false)
        }
        // The queue of the listener is full: someone is there.
        Err(error) if error.kind() == E::WouldBlock => Ok(true),
        Err(error) => {
            Err(QemuError::io(format!("look for a running machine in {}", folder.path().display()), error))
        }
    }
}

/// The process that was started with this folder's pid file. The number in that file is not trusted: it may
/// be stale and belong to someone else by now.
pub(crate) fn find_pid(folder: &VmFolder) -> Result<Option<u32>, QemuError> {
    let processes =
        fs::read_dir("/proc").map_err(|error| QemuError::io("look for running machines in /proc", error))?;
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(numbers.filter(|pid| names_pid_file(*pid, &folder.pid_file())).max())
}

/// Refuses to start a machine where processes are not shown, as in a chroot without /proc: it would seem to have ended at once.
pub(crate) fn check_shown(proc: &Path) -> Result<(), QemuError> {
    fs::metadata(proc.join("self/cmdline")).map(drop).map_err(|error| {
        let what = format!("look for running machines in {}", proc.display());
        QemuError::new(QemuErrorKind::Failed, what).because(format!("{error}; is it mounted?"))
    })
}

fn names_pid_file(pid: u32, pid_file: &Path) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    words.windows(2).any(|pair| pair[0] == b"-pidfile" && pair[1] == pid_file.as_os_str().as_bytes())
}

/// Whether a process still holds its files, and so its locks and sockets. A process that is being killed loses its
/// memory (and command line) first, so only its end as a zombie counts, and only when no thread is left.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // `pid (name) state ...`; the name may hold anything.
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !matches!(state, Some('Z' | 'X') | None) || threads > 1
}

/// Waits until a process is gone.
pub(crate) fn wait_gone(pid: u32, time_max: Duration) -> bool {
    let until = std::time::Instant::now() + time_max;
    while is_alive(pid) {
        if std::time::Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_proc_no_machine_is_started() {
        let empty = tempfile::tempdir().unwrap();
        let error = check_shown(empty.path()).unwrap_err().chain();
        assert!(error.contains("is it mounted?"), "{error}");
        check_shown(Path::new("/proc")).unwrap();
    }
}
