//! Network namespaces without names.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::sys;

/// How long what was left in a namespace has to end by itself after SIGTERM.
const LEAVE_TIME: Duration = Duration::from_secs(2);

const LOOK: Duration = Duration::from_millis(20);
/// Who is left after that is killed so often.
const KILLS_MAX: u32 = 100;

/// A network namespace. It lasts as long as this handle or a process in it, whichever is longer.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    /// The thread that starts programs, once there was one to start.
    starter: Mutex<Option<Sender<Order>>>,
}

/// A program to start, and where it is to be told what came of it.
struct Order {
    command: Command,
    answer: Sender<(Command, io::Result<Child>)>,
}

impl Namespace {
    /// A new one, with nothing in it but a loopback device that is down.
    ///
    /// # Errors
    /// If this user may make none.
    pub fn new() -> io::Result<Namespace> {
        let make = || {
            sys::leave_network()?;
            File::open("/proc/thread-self/ns/net").map(|file| Namespace { file, starter: Mutex::default() })
        };
        apart(make)?
    }

    /// Does some work in the namespace, in a thread of its own. Sockets and devices that it opens belong to the
    /// namespace wherever they are used later; programs that it starts are in it.
    ///
    /// # Errors
    /// If the namespace cannot be entered; what the work returns is in the value.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        apart(|| self.enter().map(|()| work()))?
    }

    fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Starts a program in the namespace.
    ///
    /// The thread that starts it lasts as long as this handle: a program that wants to end with its parent (`PR_SET_PDEATHSIG`, as
    /// nbdkit does) ends when that thread does.
    ///
    /// # Errors
    /// If the namespace cannot be entered or the program not started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let (answer, told) = channel();
        let order = Order { command: std::mem::replace(command, Command::new("")), answer };
        self.starter()?.send(order).map_err(|_| gone())?;
        let (back, started) = told.recv().map_err(|_| gone())?;
        *command = back;
        started
    }

    fn starter(&self) -> io::Result<Sender<Order>> {
        let mut starter = self.starter.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = &*starter {
            return Ok(there.clone());
        }
        let namespace = Namespace { file: self.file.try_clone()?, starter: Mutex::default() };
        let (orders, taken) = channel();
        let (entered, ready) = channel();
        let work = move || {
            let is_in = namespace.enter();
            // Nobody else may hold the namespace for longer than it is wanted.
            drop(namespace);
            if entered.send(is_in).is_ok() {
                start_all(&taken);
            }
        };
        std::thread::Builder::new().name("starter".into()).spawn(work)?;
        ready.recv().map_err(|_| gone())??;
        Ok(starter.insert(orders).clone())
    }

    /// A handle of it that can be given to a program.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// A path by which other programs of this user can enter it (`nsenter --net=PATH`) as long as this process lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// Ends the programs that are still in the namespace: asks them first, then kills them.
    ///
    /// # Errors
    /// If the namespace cannot be looked at.
    pub fn clear(&self) -> io::Result<()> {
        let mut left = self.processes()?;
        send(&left, Signal::TERM);
        let mut waited = Duration::ZERO;
        while !left.is_empty() && waited < LEAVE_TIME {
            std::thread::sleep(LOOK);
            waited += LOOK;
            left = self.processes()?;
        }
        // Who is killed may have started another one since it was seen.
        let mut looks = 0;
        while !left.is_empty() && looks < KILLS_MAX {
            send(&left, Signal::KILL);
            std::thread::sleep(LOOK);
            looks += 1;
            left = self.processes()?;
        }
        Ok(())
    }

    /// Programs in the namespace, this one aside. Those that have ended and wait for their parents do not count.
    fn processes(&self) -> io::Result<Vec<Pid>> {
        let own = self.file.metadata()?;
        let is_here = |pid: i32| {
            let found = std::fs::metadata(format!("/proc/{pid}/ns/net"));
            found.is_ok_and(|it| it.ino() == own.ino() && it.dev() == own.dev())
        };
        let this = std::process::id() as i32;
        let entries = std::fs::read_dir("/proc")?.flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        Ok(pids.filter(|pid| *pid != this && is_here(*pid)).filter_map(Pid::from_raw).collect())
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts programs has ended")
}

/// Starts what is asked for until nobody can ask any more.
fn start_all(orders: &Receiver<Order>) {
    for Order { mut command, answer } in orders {
        let started = command.spawn();
        // Whoever asked waits for it.
        let _ = answer.send((command, started));
    }
}

fn send(processes: &[Pid], signal: Signal) {
    for process in processes {
        // It may have ended since it was seen.
        let _ = kill_process(*process, signal);
    }
}

/// Works in a thread that ends with the work, because the thread's namespace is not this program's any more.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".into()).spawn_scoped(scope, work)?;
        thread.join().map_or_else(|panic| std::panic::resume_unwind(panic), Ok)
    })
}
