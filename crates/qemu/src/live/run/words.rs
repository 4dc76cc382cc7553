//! What a move is told, what it tells on its way, and how it ends.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use drover_live::{
    Allowed, Choice, Deed, DomainUnclear, Forecast, Loads, Obstacle, Promise, Route, SettingsError, Unclear,
    Why,
};
use drover_types::Estimate;

use super::ahead::Mending;
use super::beforehand::Looked;
use super::memory::MemoryOptions;
use crate::error::QemuError;
use crate::live::carried::Carried;
use crate::live::disks::{MirrorState, NbdAt};
use crate::live::guest::Told;
use crate::live::share::Share;
use crate::live::turn::Turn;

/// How a move is wanted, whoever moves the guest.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What is promised.
    pub promise: Promise,
    /// What may be done to keep it.
    pub allowed: Allowed,
    /// Connections for memory, where it was said how many.
    pub channels: Option<u8>,
    /// Bytes a second that the line carries, where that is known; else it is measured by sending.
    pub line: Option<Estimate>,
    /// Most bytes a second that may be sent; libvirt takes whole MiB of it.
    pub rate_max: Option<u64>,
    /// What it may send of a budget that it shares with other moves, instead of `rate_max`; it may change on the way.
    pub share: Option<Share>,
    /// What carries it, and where that begins, if the source does not reach the target itself.
    pub carried: Option<Carried>,
    /// How busy both hosts are.
    pub loads: Loads,
    /// When it begins, where others move, too.
    pub turn: Option<Turn>,
}

/// How a move by QEMU's monitors is wanted.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// As any move.
    pub wanted: Wanted,
    /// Where the target waits for memory: `tcp:HOST:0`, `unix:/path`.
    pub uri: String,
    /// How disks go.
    pub disks: DisksBy,
    /// How memory goes.
    pub memory: MemoryOptions,
    /// What [`look_beforehand`](super::look_beforehand) found.
    pub looked: Option<Looked>,
}

/// How the guest's disks go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisksBy {
    /// Both sides have the same storage.
    Shared {
        /// It may have another path at the target.
        assume_shared: bool,
    },
    /// They are mirrored into the target's own, which it offers here.
    Mirror(NbdAt),
}

/// What happens, as it happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// In words.
    Note(String),
    /// Which way memory and disks go to another site. Told by who chooses one, before the move.
    Route(Box<Route>),
    /// How busy both hosts are, and by how many seconds a downtime is longer for it. Told where it is, or is not known.
    Busy {
        /// As far as it is known.
        loads: Loads,
        /// Of that which is known.
        longer: Estimate,
    },
    /// How it will go, and what else was looked at.
    Chosen(Box<Choice>),
    /// A disk, on its way.
    Disk {
        /// What it is plugged into.
        name: String,
        /// How far it is.
        state: MirrorState,
    },
    /// Memory, on its way.
    Memory(Told),
    /// All of its memory is sent, or as good as that: the line is for others.
    Sent,
    /// Something was done, and why.
    Did(Deed, Why),
    /// It sends so many bytes a second at most from now on, its share of what several moves may.
    Share(u64),
    /// The line broke in post-copy, or is made anew.
    Mending(Mending),
    /// What carries the move went away, or came back.
    Link {
        /// The other site.
        site: String,
        /// Whether it carries.
        is_up: bool,
    },
}

/// A guest that runs at the target.
#[derive(Clone, Debug)]
pub struct Moved {
    /// What was foreseen when it began.
    pub foreseen: Forecast,
    /// Seconds below which it was foreseen to stay: nobody said what its line carries, and it was over before that was measured.
    pub foreseen_below_s: Option<f64>,
    /// From the begin of memory's way to the guest running at the target.
    pub total: Duration,
    /// For which it stood still, by QEMU's count.
    pub downtime_by_qemu: Option<Duration>,
    /// From its stop at the source to its start at the target, by the clocks of both monitors' hosts.
    pub stood_still: Option<Duration>,
    /// The last that QEMU told.
    pub last: Told,
    /// What was done on the way.
    pub deeds: Vec<(Deed, Why)>,
}

/// Where the guest is after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// Where it was, as it was.
    Source,
    /// Nowhere: the source's QEMU ended before anything of its memory was sent.
    Ended,
    /// At the target, with all of its memory.
    Target,
    /// At both: each side says that it runs it.
    Both,
    /// At the target, but part of its memory is not: the line broke in post-copy.
    Between,
    /// Nowhere: in post-copy one side's QEMU ended, and with it what only it had.
    Lost {
        /// It was, or may have been, started at the target: then its disks are as it left them there.
        had_leave: bool,
    },
    /// All of it is at the target, and the source runs it no more; whether the target got the order to start it is not
    /// known, as its monitor is away.
    Waiting,
    /// At the target, with all of its memory, where it does not run: QEMU stopped it, or it stopped itself.
    Halted,
    /// At the source, standing still, and not at the target: a libvirt domain whose move ended halfway.
    Held,
    /// It cannot be told; nothing was started anywhere.
    Unknown,
}

/// Why a guest did not move, and where it is now.
#[derive(Debug)]
pub struct LiveError {
    /// What went wrong.
    pub cause: Ending,
    /// Where the guest is.
    pub guest_at: Where,
}

/// What ended a move.
#[derive(Debug)]
pub enum Ending {
    /// It was not begun, or called back: all that stands in the way.
    Obstacles(Vec<Obstacle>),
    /// It was not begun: what one side's QEMU does not know.
    Settings(SettingsError),
    /// It was not begun, or given up at once: no way that is allowed keeps the promise.
    Promise(Box<Choice>),
    /// It was not begun: an earlier move is not over, and what is to be done somebody must decide.
    Unclear(Unclear),
    /// It was given up on the way.
    GivenUp(Why),
    /// Somebody stopped it.
    Stopped,
    /// A monitor, or the move itself, failed.
    Failed(QemuError),
}

impl LiveError {
    /// What a look ended in that changed nothing. A side that does not answer does not tell where the guest is.
    pub fn of_look(cause: Ending) -> LiveError {
        let guest_at = match &cause {
            Ending::Obstacles(found) => {
                found.iter().find_map(DomainUnclear::of).map_or(Where::Source, domain_at)
            }
            Ending::Unclear(unclear) => unclear_at(*unclear),
            Ending::Settings(_) | Ending::Promise(_) => Where::Source,
            Ending::GivenUp(_) | Ending::Stopped | Ending::Failed(_) => Where::Unknown,
        };
        LiveError { cause, guest_at }
    }
}

/// Where a guest is if two QEMUs are found so.
pub(super) fn unclear_at(unclear: Unclear) -> Where {
    match unclear {
        Unclear::Copy | Unclear::StartedAgain | Unclear::OtherMove => Where::Source,
        Unclear::BothRun | Unclear::Elsewhere => Where::Unknown,
        Unclear::Lost => Where::Lost { had_leave: true },
    }
}

/// Where a domain is if two daemons are found so.
pub(in crate::live) fn domain_at(unclear: DomainUnclear) -> Where {
    match unclear {
        DomainUnclear::BothRun => Where::Both,
        DomainUnclear::LeftAtSource => Where::Target,
        DomainUnclear::Held => Where::Held,
        DomainUnclear::OtherMove | DomainUnclear::OtherJob | DomainUnclear::TakenBack => Where::Source,
        DomainUnclear::Lost(_) => Where::Lost { had_leave: true },
        DomainUnclear::BothStand => Where::Unknown,
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Obstacles(all) => {
                let all: Vec<String> = all.iter().map(Obstacle::to_string).collect();
                write!(f, "the guest cannot move: {}", all.join(". "))
            }
            Ending::Settings(error) => write!(f, "the guest cannot move so: {error}"),
            Ending::Promise(choice) => {
                let all: Vec<String> = choice.looked_at.iter().map(ToString::to_string).collect();
                let ms = choice.facts.overhead.likely * 1000.0;
                write!(
                    f,
                    "the promise cannot be kept: {} ({ms:.0} ms of a downtime go beside the sending)",
                    all.join("; ")
                )
            }
            Ending::Unclear(unclear) => {
                let (what, advice) = unclear.words();
                write!(f, "{what}: {advice}")
            }
            Ending::GivenUp(why) => write!(f, "the move was given up: {why}"),
            Ending::Stopped => f.write_str("the move was stopped"),
            Ending::Failed(error) => write!(f, "the move failed: {}", error.chain()),
        }
    }
}

impl fmt::Display for LiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.guest_at {
            Where::Source => "the guest is at the source, as it was",
            Where::Ended => {
                "the source's QEMU has ended and the guest with it, and nothing of its memory was sent: start it anew from the \
                 source's disks, like after a power cut; those of the target are not whole"
            }
            Where::Target => "the guest runs at the target",
            Where::Both => {
                "both sides say that they run the guest: stop one of them at once (`stop` at its monitor, `virsh destroy`) and \
                 look at what each has written"
            }
            Where::Between => {
                "the guest is at the target and part of its memory still at the source: end neither QEMU, and say `drover \
                 live` again, which makes the line anew"
            }
            Where::Lost { had_leave: true } => {
                "the guest is lost: part of its memory is nowhere any more. What is left are its disks, as the target has \
                 them, like after a power cut: end both QEMUs, start it at neither, and start it anew from those"
            }
            Where::Lost { had_leave: false } => {
                "the guest is lost, though it never ran at the target: QEMU does not give it back to the source. What is left \
                 are its disks, as they were when it stopped, like after a power cut: end the source's QEMU and start it anew \
                 from those"
            }
            Where::Waiting => {
                "all of the guest is at the target, where it is paused until it is started, and the source has ended it: \
                 say `drover live` again when the target is back, or `cont` at its monitor; never start it at the source"
            }
            Where::Halted => {
                "all of the guest is at the target, where it does not run: mend what stopped it and start it there (`cont`); \
                 never start it at the source"
            }
            Where::Held => {
                "the guest is paused at the source, and the target does not have it: see that no other host has, then \
                 `virsh resume` it at the source"
            }
            Where::Unknown => {
                "it cannot be told where the guest is: look at both sides before you start anything"
            }
        };
        write!(f, "{}; {place}", self.cause)
    }
}

impl Error for LiveError {}

impl From<QemuError> for Ending {
    fn from(error: QemuError) -> Self {
        Ending::Failed(error)
    }
}
