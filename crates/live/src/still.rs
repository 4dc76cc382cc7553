//! What the time was made of in which a guest stood still, as far as both monitors and drover's own clock tell.
//!
//! ```text
//! source:  stopped ── pre-switchover ── device ─────────── completed
//!                     (disks, if any)   (last pass, devices)        \
//! drover:                                                            leave to start ─┐
//! target:                                                                         started
//! ```
//!
//! Nothing is guessed: a part whose begin or end nobody told has no time.

use std::time::Duration;

/// Something that one side told with the time of its host, or that drover did to it, with the time of drover's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What happened.
    pub what: Happened,
    /// Microseconds since 1970.
    pub at_us: i64,
}

/// What happened on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The guest was stopped.
    Stopped,
    /// It was started.
    Started,
    /// The move came to this status, in QEMU's word.
    Status(String),
    /// Another pass over its memory began.
    Pass,
    /// Drover gave leave to start the guest; not yet that it runs.
    LeaveGiven,
}

/// A part of the time in which the guest stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What was done in it.
    pub name: &'static str,
    /// How long it took, where that was told.
    pub time: Option<Duration>,
    /// By what it is known, or why it is not.
    pub how: &'static str,
}

/// The parts, in their order, and those that nobody can tell. They add up to the time from the stop at the source to
/// the start at the target where all of them have a time.
pub fn parts(source: &[Moment], target: &[Moment]) -> Vec<Part> {
    let stopped = last(source, |what| *what == Happened::Stopped);
    let since = |moment: Option<i64>| moment.filter(|at| stopped.is_none_or(|stopped| *at >= stopped));
    let status =
        |word: &str| since(last(source, |what| matches!(what, Happened::Status(told) if told == word)));
    let (paused, device) = (status("pre-switchover"), status("device"));
    let (ahead, completed) = (status("postcopy-active"), status("completed"));
    let leave = last(target, |what| *what == Happened::LeaveGiven);
    let started = last(target, |what| *what == Happened::Started);
    let mut parts = Vec::new();
    let sent_from = if paused.is_some() { device } else { stopped };
    if paused.is_some() {
        parts.push(part("disks handed over", stopped, device, "the source's events: stopped, then `device`"));
    }
    let sent = if ahead.is_some() {
        parts.push(part(
            "device state, and what the guest needs to begin",
            sent_from,
            ahead,
            "the source's events, up to `postcopy-active`",
        ));
        ahead
    } else {
        parts.push(part(
            "last pass and device state",
            sent_from,
            completed,
            "the source's events, up to `completed`; QEMU tells no border between the two",
        ));
        completed
    };
    parts.push(part(
        "hand-over: until drover had seen that all is there",
        sent,
        leave,
        "the source's event, and when drover gave leave to start",
    ));
    parts.push(part(
        "start at the target",
        leave,
        started,
        "drover's leave, and the target's event; by two clocks where the target is on another host",
    ));
    parts.push(untold(
        "network: until switches know the new place",
        "QEMU tells when it announces, not when it is heard",
    ));
    parts.push(untold("first heartbeat of the guest's own", "drover does not look into guests"));
    parts
}

/// For which the guest stood still at the source and went on there, where both were told.
pub fn stood_at_source(source: &[Moment]) -> Option<Duration> {
    let stopped = last(source, |what| *what == Happened::Stopped)?;
    let started = last(source, |what| *what == Happened::Started)?;
    between(stopped, started)
}

/// Whether somebody stopped the guest at the source, not QEMU to hand it over. That has no event of its own, and the machine's status
/// is the same soon after. But QEMU looks for pages that were written to after somebody's stop, and not between its own and the
/// switchover. Seen so with QEMU 7.2, 10.0 and 11.1; 7.2 tells of no switchover but where it pauses before that.
pub fn stopped_by_somebody<'a>(source: impl DoubleEndedIterator<Item = &'a Moment>) -> bool {
    // From the end on: a switchover, a pass before it, a stop before that.
    let (mut hands_over, mut has_passed) = (false, false);
    for Moment { what, .. } in source.rev() {
        match what {
            Happened::Status(word) if matches!(word.as_str(), "pre-switchover" | "device") => {
                (hands_over, has_passed) = (true, false);
            }
            Happened::Pass => has_passed |= hands_over,
            Happened::Stopped => return has_passed,
            Happened::Started | Happened::LeaveGiven => return false,
            Happened::Status(_) => {}
        }
    }
    false
}

fn last(moments: &[Moment], is_it: impl Fn(&Happened) -> bool) -> Option<i64> {
    moments.iter().rev().find(|moment| is_it(&moment.what)).map(|moment| moment.at_us)
}

fn part(name: &'static str, from: Option<i64>, to: Option<i64>, how: &'static str) -> Part {
    let (Some(from), Some(to)) = (from, to) else {
        return untold(name, "one of the events it lies between was not told");
    };
    match between(from, to) {
        Some(time) => Part { name, time: Some(time), how },
        None => untold(name, "the clocks of both hosts do not agree"),
    }
}

fn between(from: i64, to: i64) -> Option<Duration> {
    u64::try_from(to.checked_sub(from)?).ok().map(Duration::from_micros)
}

fn untold(name: &'static str, how: &'static str) -> Part {
    Part { name, time: None, how }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(word: &str, at_us: i64) -> Moment {
        Moment { what: Happened::Status(word.into()), at_us }
    }

    fn moment(what: Happened, at_us: i64) -> Moment {
        Moment { what, at_us }
    }

    fn target() -> Vec<Moment> {
        vec![
            status("active", 2),
            status("completed", 61_000),
            moment(Happened::LeaveGiven, 75_000),
            moment(Happened::Started, 77_000),
        ]
    }

    fn told(parts: &[Part]) -> Vec<Option<u128>> {
        parts.iter().map(|part| part.time.map(|time| time.as_micros())).collect()
    }

    #[test]
    fn the_parts_of_a_move_without_disks_add_up() {
        let source = [
            // An earlier stop of the same guest is none of this move's.
            moment(Happened::Stopped, 1),
            moment(Happened::Started, 2),
            status("active", 3),
            moment(Happened::Stopped, 10_000),
            status("device", 11_000),
            status("completed", 60_000),
        ];
        let parts = parts(&source, &target());
        assert_eq!(told(&parts), [Some(50_000), Some(15_000), Some(2_000), None, None]);
        assert_eq!(told(&parts).into_iter().flatten().sum::<u128>(), 77_000 - 10_000);
    }

    #[test]
    fn disks_and_post_copy_have_parts_of_their_own() {
        let with_disks = [
            moment(Happened::Stopped, 10_000),
            status("pre-switchover", 10_100),
            status("device", 30_000),
            status("completed", 60_000),
        ];
        assert_eq!(told(&parts(&with_disks, &target()))[..3], [Some(20_000), Some(30_000), Some(15_000)]);
        let ahead = [
            moment(Happened::Stopped, 10_000),
            status("device", 10_100),
            status("postcopy-active", 70_000),
            status("completed", 900_000),
        ];
        let found = parts(&ahead, &target());
        assert!(found[0].name.contains("begin"), "{found:?}");
        assert_eq!(told(&found)[..3], [Some(60_000), Some(5_000), Some(2_000)]);
    }

    #[test]
    fn what_was_not_told_has_no_time() {
        assert!(told(&parts(&[], &[])).iter().all(Option::is_none));
        // A guest that was paused before: what was told of an earlier move is not taken for this one's.
        let source = [status("completed", 5), moment(Happened::Stopped, 10)];
        assert!(told(&parts(&source, &[])).iter().all(Option::is_none));
        // A clock that is behind.
        let behind = [moment(Happened::LeaveGiven, 20), moment(Happened::Started, 10)];
        let found = parts(&[], &behind);
        assert!(found.iter().any(|part| part.how.contains("clocks")), "{found:?}");
    }

    #[test]
    fn a_stop_of_somebodys_is_told_from_that_of_a_handover() {
        let is_somebodys = |words: &str| {
            let what = |word: &str| match word {
                "STOP" => Happened::Stopped,
                "RESUME" => Happened::Started,
                "PASS" => Happened::Pass,
                status => Happened::Status(status.into()),
            };
            let moments: Vec<Moment> = words.split(' ').map(|word| moment(what(word), 0)).collect();
            stopped_by_somebody(moments.iter())
        };
        // As QEMU 10.0, 11.1 and 7.2 told them.
        for own in [
            "setup PASS active STOP device PASS completed",
            "setup PASS active STOP pre-switchover device PASS completed",
            "setup active PASS PASS STOP pre-switchover device completed",
            "setup PASS active STOP PASS completed",
            "setup PASS active",
            "STOP PASS RESUME PASS STOP device",
        ] {
            assert!(!is_somebodys(own), "{own}");
        }
        for somebodys in [
            "setup PASS active STOP PASS device PASS completed",
            "setup PASS active STOP PASS pre-switchover",
            "setup active STOP PASS PASS pre-switchover device PASS completed",
        ] {
            assert!(is_somebodys(somebodys), "{somebodys}");
        }
    }

    #[test]
    fn a_guest_that_went_on_at_the_source_stood_still_there() {
        let source = [moment(Happened::Stopped, 1_000), moment(Happened::Started, 31_000)];
        assert_eq!(stood_at_source(&source), Some(Duration::from_millis(30)));
        assert_eq!(stood_at_source(&source[..1]), None);
        let stands = [moment(Happened::Started, 1), moment(Happened::Stopped, 2)];
        assert_eq!(stood_at_source(&stands), None);
    }
}
