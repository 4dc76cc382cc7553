//! Puts the rules into the kernel by `nft` and `ip`, and takes them out again.

use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

use super::script::{Catch, NUMBER_MAX, TABLE_PREFIX, mark, number_of, table_name};
use drover_child::Kind;

/// Numbers that are tried before giving up.
const TRIES_MAX: u32 = 64;
/// Lines of a listing that are looked at.
const LINES_MAX: usize = 100_000;

/// Why rules could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The program is not there, or does not start.
    #[error("running `{program}`")]
    Start {
        /// The command line.
        program: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The program refused.
    #[error("`{program}` failed: {said}")]
    Failed {
        /// The command line.
        program: String,
        /// What it said.
        said: String,
    },
    /// No number is free.
    #[error("finding a number for the relay")]
    Number(#[source] io::Error),
}

fn run(program: &str, args: &[&str], input: &str) -> Result<String, ApplyError> {
    let line = format!("{program} {}", args.join(" "));
    let started = |source| ApplyError::Start { program: line.clone(), source };
    let mut command = drover_child::command(program, Kind::Plain);
    // Ctrl-C is for the relay, not for what takes its rules away.
    command.args(args).env("LC_ALL", "C").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(started)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that did not want it says why by itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(started)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(ApplyError::Failed { program: line, said })
}

fn ip(args: &[String]) -> Result<String, ApplyError> {
    run("ip", &args.iter().map(String::as_str).collect::<Vec<_>>(), "")
}

fn name_text(number: u32) -> String {
    format!("drover-relay-{number}")
}

fn name(number: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name_text(number))
}

/// A number that no other living relay of this network namespace has.
#[derive(Debug)]
pub struct Lease {
    /// The number.
    pub number: u32,
    _held: UnixListener,
}

impl Lease {
    /// Takes the number of this process, or the next that is free.
    ///
    /// # Errors
    /// What the kernel says if none is free.
    pub fn take() -> Result<Lease, ApplyError> {
        let first = std::process::id() & NUMBER_MAX;
        let mut last = io::Error::from(ErrorKind::AddrInUse);
        for number in (0..TRIES_MAX).map(|step| (first + step) & NUMBER_MAX) {
            match name(number).and_then(|name| UnixListener::bind_addr(&name)) {
                Ok(held) => return Ok(Lease { number, _held: held }),
                Err(error) => last = error,
            }
        }
        Err(ApplyError::Number(last))
    }

    /// The mark of this number.
    pub fn mark(&self) -> u32 {
        mark(self.number)
    }
}

/// Whether a relay with this number lives in this network namespace.
fn is_alive(number: u32) -> bool {
    match connect_at_once(number) {
        // A name of this kind anybody can take: what root's relay left is not kept by another user's process.
        Ok(socket) => drover_tcp::peer_user(&socket).is_ok_and(is_trusted),
        // Whatever else fails, it is no proof that nobody is there: so many may have asked that no more fit in.
        Err(error) => error.kind() != ErrorKind::ConnectionRefused,
    }
}

/// Whether a relay of this user counts here.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Connects, and waits for nobody: a lease accepts none of those who ask.
fn connect_at_once(number: u32) -> io::Result<OwnedFd> {
    let name = SocketAddrUnix::new_abstract_name(name_text(number).as_bytes())?;
    drover_tcp::connect_unix(&name, Duration::ZERO)
}

/// Rules that are in the kernel. They go when this is dropped.
#[derive(Debug)]
pub struct Rules {
    catch: Catch,
    is_removed: bool,
}

impl Rules {
    /// Makes the rules; all or none of them.
    ///
    /// # Errors
    /// [`ApplyError`]: no `nft` or `ip`, no permission, a kernel without what is needed.
    pub fn make(catch: Catch) -> Result<Rules, ApplyError> {
        // From now on whatever was made goes again, also if the next step fails.
        let rules = Rules { catch, is_removed: false };
        for (add, undo) in rules.catch.ip_commands().iter().zip(rules.catch.ip_undo()) {
            // What a killed relay of the same number left. Mostly there is nothing.
            let _ = ip(&undo);
            ip(add)?;
        }
        run("nft", &["-f", "-"], &rules.catch.nft_script())?;
        Ok(rules)
    }

    /// Removes the rules.
    ///
    /// # Errors
    /// The first that failed; the others were tried.
    pub fn remove(mut self) -> Result<(), ApplyError> {
        self.undo()
    }

    fn undo(&mut self) -> Result<(), ApplyError> {
        if std::mem::replace(&mut self.is_removed, true) {
            return Ok(());
        }
        let table = table_name(self.catch.number);
        let nft = run("nft", &["delete", "table", "inet", &table], "").map(drop);
        // By what is removed last `clean` finds the rest of it.
        let routes = self.catch.ip_undo().into_iter().rev().map(|args| ip(&args).map(drop));
        std::iter::once(nft).chain(routes.collect::<Vec<_>>()).fold(Ok(()), Result::and)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        // Whoever wants to know calls `remove`.
        let _ = self.undo();
    }
}

/// Removes what relays left in this network namespace that live no more: tables of the packet filter,
/// routing rules and routing tables. Gives one line for each thing removed.
///
/// # Errors
/// [`ApplyError`] of the first thing that could not be listed or removed.
pub fn clean() -> Result<Vec<String>, ApplyError> {
    let mut removed = Vec::new();
    for number in tables(&run("nft", &["list", "tables"], "")?).filter(|number| !is_alive(*number)) {
        let table = table_name(number);
        run("nft", &["delete", "table", "inet", &table], "")?;
        removed.push(format!("nftables table inet {table}"));
    }
    for family in ["-4", "-6"] {
        // Without IPv6 in the kernel there is nothing to list.
        let Ok(listed) = run("ip", &[family, "rule", "show"], "") else { continue };
        for number in rules(&listed).filter(|number| !is_alive(*number)) {
            let (fwmark, table) = (format!("{:#x}", mark(number)), mark(number).to_string());
            // Empty if the relay was killed between its steps.
            let _ = run("ip", &[family, "route", "flush", "table", &table], "");
            run("ip", &[family, "rule", "del", "fwmark", &fwmark, "lookup", &table], "")?;
            removed.push(format!("ip {family} rule fwmark {fwmark} and routing table {table}"));
        }
    }
    Ok(removed)
}

/// Numbers of relays in a listing of tables: lines such as `table inet drover_relay_7`.
fn tables(listing: &str) -> impl Iterator<Item = u32> + '_ {
    let number = |line: &str| {
        let digits = line.trim().strip_prefix("table inet ")?.strip_prefix(TABLE_PREFIX)?;
        digits.parse().ok().filter(|number| *number <= NUMBER_MAX)
    };
    listing.lines().take(LINES_MAX).filter_map(number)
}

/// Numbers of relays in a listing of routing rules: lines such as
/// `32765: from all fwmark 0xd800007 lookup 226492423`.
fn rules(listing: &str) -> impl Iterator<Item = u32> + '_ {
    let number = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "fwmark").skip(1);
        let mark = u32::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        let table: u32 = words.nth(1)?.parse().ok()?;
        number_of(mark).filter(|_| table == mark)
    };
    listing.lines().take(LINES_MAX).filter_map(number)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn listings_tell_the_relays_and_nothing_else() {
        let listing = "table inet drover_relay_7\ntable ip nat\ntable inet drover_relay_x\ntable ip drover_relay_8\n\
                       table inet drover_relay_99999999\n";
        assert_eq!(tables(listing).collect::<Vec<_>>(), [7]);
        let listing = "0:\tfrom all lookup local\n32764:\tfrom all fwmark 0xd800007 lookup 226492423\n\
                       32765:\tfrom all fwmark 0xd800008 lookup 5\n32766:\tfrom all fwmark 0x1 lookup 1\n";
        assert_eq!(rules(listing).collect::<Vec<_>>(), [7]);
    }

    /// The tests of one process count from the same number, and one would take what another gave back.
    static NUMBERS: Mutex<()> = Mutex::new(());

    #[test]
    fn a_number_is_one_relays_for_as_long_as_it_lives() {
        let _numbers = NUMBERS.lock();
        let (a, b) = (Lease::take().unwrap(), Lease::take().unwrap());
        assert_ne!(a.number, b.number);
        let number = a.number;
        assert!(is_alive(number) && is_alive(b.number));
        drop(a);
        assert!(!is_alive(number));
    }

    #[test]
    fn a_relay_that_was_asked_too_often_is_alive_and_holds_up_nobody() {
        let _numbers = NUMBERS.lock();
        let lease = Lease::take().unwrap();
        rustix::net::listen(&lease._held, 0).unwrap();
        let mut asked = Vec::new();
        let full = loop {
            match connect_at_once(lease.number) {
                Ok(socket) => asked.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert!(is_alive(lease.number));
    }
}
