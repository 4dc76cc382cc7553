//! What a move is told, and how it ends.

use std::error::Error;
use std::fmt;

use drover_live::{Allowed, Choice, Loads, Obstacle, Promise, SettingsError, Unclear, Where, Why};
use drover_types::Estimate;

use super::beforehand::Looked;
use super::memory::MemoryOptions;
use crate::error::QemuError;
use crate::live::carried::Carried;
use crate::live::disks::NbdAt;
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
    /// What was found beforehand.
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
            Ending::Unclear(unclear) => unclear.guest_at(),
            Ending::Obstacles(_) | Ending::Settings(_) | Ending::Promise(_) => Where::Source,
            Ending::GivenUp(_) | Ending::Stopped | Ending::Failed(_) => Where::Unknown,
        };
        LiveError { cause, guest_at }
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
        write!(f, "{}; {}", self.cause, self.guest_at)
    }
}

impl Error for LiveError {}

impl From<QemuError> for Ending {
    fn from(error: QemuError) -> Self {
        Ending::Failed(error)
    }
}
