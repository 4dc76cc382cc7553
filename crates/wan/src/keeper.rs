//! Sees to it that what runs at the ends does not outlive the line.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::namespace::Namespace;

/// A shell that waits until the program that laid the line has ended, however that was (the kernel closes its end of the pipe also after
/// SIGKILL), and then ends what is left at both ends as [`Namespace::clear`] does.
///
/// `PR_SET_PDEATHSIG` would reach what the program started itself, but none of its children, and set-uid programs forget it. It stands in a
/// group of its own: neither Ctrl-C nor a signal to the group of the program that laid the line reaches it.
#[derive(Debug)]
pub struct Keeper {
    shell: Child,
}

// Descriptors 1 and 2 are the namespaces, which so keep their numbers until nobody is in them. Both are told apart from all others by `-ef`, without a
// program for each process of the machine; those that have ended are in none any more. It is SIGTERM first, and SIGKILL until nobody is left who could have forked.
const KEEP: &str = r#"
read -r _
signal() {
    left=
    for it in /proc/[0-9]*; do
        if [ "$it/ns/net" -ef "/proc/$$/fd/1" ] || [ "$it/ns/net" -ef "/proc/$$/fd/2" ]; then
            left=1; kill -s "$1" "${it#/proc/}"
        fi
    done
    [ "$left" ]
}
signal TERM
looks=0
while [ "$looks" -lt 20 ] && signal 0; do sleep 0.1; looks=$((looks + 1)); done
looks=0
while [ "$looks" -lt 100 ] && signal KILL; do sleep 0.1; looks=$((looks + 1)); done
"#;

impl Keeper {
    /// Looks after both ends from now on.
    pub fn start(near: &Namespace, far: &Namespace) -> io::Result<Keeper> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", KEEP, "drover-wan-keeper"]).stdin(Stdio::piped());
        shell.stdout(near.file()?).stderr(far.file()?).process_group(0);
        Ok(Keeper { shell: shell.spawn()? })
    }
}

impl Keeper {
    /// Ends what is left now, because nobody else could.
    pub fn take_over(&mut self) {
        self.shell.stdin = None;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.shell.stdin.is_none() {
            return;
        }
        // Whoever drops it has cleared the ends. It may have ended; its status has to be taken then, too.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
