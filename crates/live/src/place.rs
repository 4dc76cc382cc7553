//! Where a guest is when its move has ended.

use std::fmt;

use crate::domain::DomainUnclear;
use crate::found::{Found, Unclear};

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

impl Unclear {
    /// Where a guest is if two QEMUs are found so.
    #[must_use]
    pub fn guest_at(self) -> Where {
        match self {
            Unclear::Copy | Unclear::StartedAgain | Unclear::OtherMove => Where::Source,
            Unclear::BothRun | Unclear::Elsewhere => Where::Unknown,
            Unclear::Lost => Where::Lost { had_leave: true },
            Unclear::Domain(why) => why.guest_at(),
        }
    }
}

impl DomainUnclear {
    /// Where a domain is if two daemons are found so.
    #[must_use]
    pub fn guest_at(self) -> Where {
        match self {
            DomainUnclear::BothRun => Where::Both,
            DomainUnclear::LeftAtSource => Where::Target,
            DomainUnclear::Held => Where::Held,
            DomainUnclear::OtherMove | DomainUnclear::OtherJob | DomainUnclear::TakenBack => Where::Source,
            // It is off, as it was.
            DomainUnclear::Nowhere => Where::Source,
            DomainUnclear::Lost(_) => Where::Lost { had_leave: true },
            DomainUnclear::BothStand => Where::Unknown,
        }
    }
}

impl Found {
    /// Where the guest is if nothing is done about what was found.
    #[must_use]
    pub fn guest_at(&self) -> Where {
        match self {
            Found::Sending => Where::Source,
            Found::Arrived => Where::Waiting,
            Found::Nothing | Found::Ahead | Found::Broken | Found::Moved | Found::Unclear(_) => {
                self.settled().1
            }
        }
    }

    /// What is said of a move that has ended, where a domain is found so and nobody told why; and where that is.
    #[must_use]
    pub fn settled(&self) -> (&'static str, Where) {
        match self {
            Found::Nothing => ("the move ended, and the guest is still at the source", Where::Source),
            Found::Arrived | Found::Moved => ("the guest is at the target", Where::Target),
            Found::Sending => ("the move does not come to its end", Where::Unknown),
            Found::Ahead => {
                ("the guest is in post-copy, and the move does not come to its end", Where::Between)
            }
            Found::Broken => {
                ("the guest is in post-copy, and the line to the rest of its memory is gone", Where::Between)
            }
            Found::Unclear(Unclear::Domain(DomainUnclear::Nowhere)) => {
                ("neither daemon runs the domain any more: it ended on its way", Where::Unknown)
            }
            Found::Unclear(why) => ("the move ended halfway", why.guest_at()),
        }
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
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
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_nothing_was_done_about_is_where_it_was_found() {
        let at = |found: Found| found.guest_at();
        assert_eq!((at(Found::Nothing), at(Found::Sending)), (Where::Source, Where::Source));
        assert_eq!((at(Found::Ahead), at(Found::Broken)), (Where::Between, Where::Between));
        assert_eq!((at(Found::Arrived), at(Found::Moved)), (Where::Waiting, Where::Target));
        assert_eq!(at(Found::Unclear(Unclear::BothRun)), Where::Unknown);
    }
}
