//! nbdkit as a child: its password by a descriptor, its files in a private folder, its life bound to ours.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use drover_child::Kind;
use drover_types::Secret;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::{VddkError, VddkErrorKind};
use crate::log::Log;
use crate::settings::{READY, SOCKET};

/// Time for VDDK to close a disk in order, which gives its memory at the host back at once.
const CLOSE_PAUSE: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(10);
/// The guard kills nbdkit six seconds after asking it to end: nbdkit waits five for its connections.
const STOP_TIME_MAX: Duration = Duration::from_secs(15);
const ASK_TIME_MAX: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A running nbdkit under its guard. Dropped, it is ended.
pub(crate) struct Server {
    guard: Child,
    lifeline: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
    folder: PathBuf,
}

impl Server {
    /// Starts nbdkit, with files in `folder`. The folder is removed when this process ends, however it ends.
    pub(crate) fn start(
        arguments: impl IntoIterator<Item = std::ffi::OsString>,
        folder: &Path,
        files: &[(PathBuf, String)],
        password: &Secret,
        log: &Arc<Log>,
    ) -> io::Result<Server> {
        files.iter().try_for_each(|(path, text)| fs::write(path, text))?;
        let mut command = drover_child::command("/bin/sh", Kind::Plain);
        command.args(["-c", GUARD, "drover-guard"]).arg(folder).arg("nbdkit").args(arguments);
        command.env("TMPDIR", folder);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C on the terminal is ours to handle.
        let mut guard = command.process_group(0).spawn()?;
        let mut lifeline = guard.stdin.take();
        let (reader, unread) = match guard.stderr.take().map(|stream| log.follow(stream)).transpose() {
            Ok(reader) => (reader, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let told = match &mut lifeline {
            Some(lifeline) => writeln!(lifeline, "{}", password.reveal()),
            None => Ok(()),
        };
        let mut server = Server { guard, lifeline, reader, folder: folder.to_path_buf() };
        if let Err(error) = unread.and(told) {
            server.stop();
            return Err(error);
        }
        Ok(server)
    }

    /// Waits until `ready` is there; false if nbdkit ended instead, or time is up.
    pub(crate) fn wait_for(&mut self, ready: &Path, time_max: Duration) -> bool {
        let until = Instant::now() + time_max;
        while Instant::now() < until {
            if ready.exists() {
                return true;
            }
            if self.has_ended() {
                return false;
            }
            thread::sleep(POLL);
        }
        false
    }

    /// Whether nbdkit ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.folder.join(ENDED).exists() || self.is_gone()
    }

    fn is_gone(&mut self) -> bool {
        !matches!(self.guard.try_wait(), Ok(None))
    }

    /// Ends nbdkit, waits until it is gone and until all it said is in the log. The folder stays, emptied.
    pub(crate) fn stop(&mut self) {
        self.end("keep");
    }

    /// The same for one that is ill and may hang.
    pub(crate) fn stop_soon(&mut self) {
        self.end("soon");
    }

    fn end(&mut self, word: &str) {
        // Once only: another nbdkit may use the folder by now.
        let Some(mut lifeline) = self.lifeline.take() else { return };
        // If the guard is gone, nobody removes the folder behind our back either.
        let _ = writeln!(lifeline, "{word}");
        drop(lifeline);
        let until = Instant::now() + STOP_TIME_MAX;
        while !self.is_gone() {
            if Instant::now() >= until {
                kill_group(&self.guard);
                // It was killed just now.
                let _ = self.guard.wait();
                break;
            }
            thread::sleep(POLL);
        }
        if let Some(reader) = self.reader.take() {
            // A panic there is a line that was not kept.
            let _ = reader.join();
        }
        for name in [ENDED, SOCKET, READY] {
            // Most are gone already.
            let _ = fs::remove_file(self.folder.join(name));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // nbdkit closes a disk when its connection ends, but not any more once it was asked to end itself.
        if self.lifeline.is_some() && !self.has_ended() {
            thread::sleep(CLOSE_PAUSE);
        }
        self.stop();
    }
}

// The first line of standard input is the password, which goes on through a here-document: it is in no argument
// and no environment. The kernel closes our end of the pipe even after SIGKILL, so the second `read` returns then.
// It says `keep` or `soon` where the folder stays and nbdkit has six seconds to end, or one.
// nbdkit may hang in VDDK's threads, so it is killed if it does not end. Most end at once: the first looks are close
// together, since a pass of a warm migration waits for this. If the guard itself is killed,
// --exit-with-parent ends nbdkit.
const GUARD: &str = r#"
folder=$1; shift
IFS= read -r secret
exec 3<&0 </dev/null
"$@" 3<&- 4<<SECRET &
$secret
SECRET
child=$!
unset secret
(
    keep=
    read -r keep <&3
    if ! [ -e "$folder/ended" ]; then
        kill "$child"
        tries=60 short=10
        [ "$keep" != soon ] || tries=10
        while kill -0 "$child"; do
            if [ "$short" -gt 0 ]; then short=$((short - 1)); sleep 0.01; continue; fi
            tries=$((tries - 1))
            [ "$tries" -gt 0 ] || { kill -9 "$child"; break; }
            sleep 0.1
        done
    fi
    [ -n "$keep" ] || rm -rf -- "$folder"
) >/dev/null 2>&1 & reader=$!
wait "$child"
echo "$?" 2>/dev/null >"$folder/ended"
wait "$reader"
"#;
const ENDED: &str = "ended";

fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It fails only if all of the group is gone.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Runs a command that answers and ends; gives its standard output.
pub(crate) fn ask(command: &mut Command) -> Result<String, VddkError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            VddkError::new(VddkErrorKind::Missing, format!("{program} is not installed"))
                .advise("install the package nbdkit")
        }
        _ => VddkError::new(VddkErrorKind::Failed, format!("run of {program}")).because(error),
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let stdout = child.stdout.take();
    let read = move || {
        let mut text = Vec::new();
        stdout.map(|stream| stream.take(ANSWER_BYTES_MAX).read_to_end(&mut text)).transpose()?;
        Ok::<_, io::Error>(text)
    };
    let reader = thread::Builder::new().spawn(read).map_err(|error| {
        kill_group(&child);
        let _ = child.wait();
        failed(error)
    })?;
    let until = Instant::now() + ASK_TIME_MAX;
    while child.try_wait().map_err(failed)?.is_none() {
        if Instant::now() >= until {
            kill_group(&child);
            let _ = child.wait();
            let text = format!("{program} does not answer within {} s", ASK_TIME_MAX.as_secs());
            return Err(VddkError::new(VddkErrorKind::Failed, text));
        }
        thread::sleep(POLL);
    }
    let text = reader.join().unwrap_or_else(|_| Ok(Vec::new())).map_err(failed)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
