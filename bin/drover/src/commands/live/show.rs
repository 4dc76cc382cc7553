//! `drover live --watch`: the move in place on a terminal.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drover_live::{Event, Phase, Promise, Told, Watch};
use drover_view::{
    DisplayMode, LiveDisplay, LiveForeseen, LiveGuestNow, LiveMemoryNow, LiveNow, LiveSeveralDisplay,
};

use super::millis;
use crate::cli::LiveArgs;

/// What is on the terminal.
pub struct Shown {
    screen: Screen,
    now: LiveNow,
    /// Looks at the same samples as the move's own does; what it would do is of no interest.
    watch: Watch,
    promised_ms: u64,
    link_is_away: bool,
}

/// Where it is shown.
enum Screen {
    /// It has all of it.
    Own(LiveDisplay),
    /// It has a line, of this number.
    Line(Arc<Lines>, usize),
}

/// Several moves on one terminal, a line each.
pub struct Lines {
    display: LiveSeveralDisplay,
    guests: Mutex<Vec<LiveGuestNow>>,
}

impl Lines {
    /// Begins to show them, if that is wanted and standard error is a terminal.
    pub fn begin(args: &LiveArgs, names: &[String]) -> Option<Arc<Lines>> {
        let guest = |name: &String| LiveGuestNow { name: name.clone(), state: "waits".into(), now: None };
        let guests = Mutex::new(names.iter().map(guest).collect());
        is_wanted(args).then(|| Arc::new(Lines { display: LiveSeveralDisplay::start(), guests }))
    }

    /// What is to be said of a guest instead of figures.
    pub fn state(&self, guest: usize, state: impl Into<String>) {
        self.set(guest, |line| (line.state, line.now) = (state.into(), None));
    }

    /// A guest's turn has come; it was looked at before.
    pub fn begins(&self, guest: usize) {
        self.state(guest, "begins");
    }

    fn set(&self, guest: usize, change: impl FnOnce(&mut LiveGuestNow)) {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut guests[guest]);
        self.display.show(guests.clone());
    }
}

fn is_wanted(args: &LiveArgs) -> bool {
    args.watch && DisplayMode::choose(args.json, false) == DisplayMode::Terminal
}

impl Shown {
    /// Begins to show it, if that is wanted and standard error is a terminal.
    pub fn begin(args: &LiveArgs) -> Option<Shown> {
        is_wanted(args).then(|| Shown::on(Screen::Own(LiveDisplay::start()), args))
    }

    /// Shows it as one of several.
    pub fn of_several(lines: Arc<Lines>, guest: usize, args: &LiveArgs) -> Shown {
        Shown::on(Screen::Line(lines, guest), args)
    }

    fn on(screen: Screen, args: &LiveArgs) -> Shown {
        let promise = Promise { downtime_max: args.downtime, deadline: args.deadline };
        Shown {
            screen,
            now: LiveNow::default(),
            watch: Watch::new(promise, &[]),
            promised_ms: millis(args.downtime),
            link_is_away: false,
        }
    }

    /// Says something that stays.
    pub fn say(&self, text: &str) {
        match &self.screen {
            Screen::Own(display) => display.say(text),
            Screen::Line(lines, _) => lines.display.say(text),
        }
    }

    /// Takes in what happened; what is to be said of it, too, is said by others.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Chosen(choice) => {
                self.now.foreseen = Some(LiveForeseen {
                    total_s: choice.forecast.total.likely,
                    downtime_ms: choice.forecast.downtime.likely * 1000.0,
                    promised_ms: self.promised_ms,
                    converges: choice.forecast.converges,
                });
            }
            Event::Disk { name, state } => match self.now.disks.iter_mut().find(|(other, _)| other == name) {
                Some((_, other)) => *other = *state,
                None => self.now.disks.push((name.clone(), *state)),
            },
            Event::Memory(told) => self.now.memory = Some(self.memory(told)),
            Event::Link { is_up, .. } => self.link_is_away = !is_up,
            Event::Note(_)
            | Event::Route(_)
            | Event::Busy { .. }
            | Event::Sent
            | Event::Did(..)
            | Event::Share(_)
            | Event::Mending(_) => return,
        }
        let now = self.now.clone();
        match &self.screen {
            Screen::Own(display) => display.show(now),
            Screen::Line(lines, guest) => lines.set(*guest, |line| line.now = Some(now)),
        }
    }

    fn memory(&mut self, told: &Told) -> LiveMemoryNow {
        let sample = told.sample;
        if self.link_is_away {
            self.watch.see_interrupted(sample);
        } else {
            self.watch.see(sample);
        }
        let left = self.watch.needs_s(&sample).and_then(|left| Duration::try_from_secs_f64(left).ok());
        LiveMemoryNow {
            state: state(&told.sample.phase, self.link_is_away).into(),
            all_bytes: told.total_bytes,
            left_bytes: sample.left_bytes,
            sent_bytes: sample.sent_bytes,
            pass: sample.passes,
            rate: self.watch.rate().map(|rate| rate.likely),
            dirty: sample.dirty_bytes_per_s,
            throttle_percent: sample.throttle_percent,
            left: left.filter(|_| !self.link_is_away),
        }
    }
}

fn state(phase: &Phase, link_is_away: bool) -> &'static str {
    match phase {
        _ if link_is_away => "the link is away",
        Phase::Switchover => "the guest is paused",
        Phase::PostCopy => "the guest is in post-copy",
        Phase::Broken => "the line broke in post-copy",
        Phase::Setup | Phase::Precopy | Phase::Done | Phase::Failed => "",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_was_looked_at_and_whose_turn_comes_is_not_said_to_be_looked_at() {
        let guest = LiveGuestNow { name: "web".into(), state: "waits".into(), now: None };
        let lines = Lines { display: LiveSeveralDisplay::start(), guests: Mutex::new(vec![guest]) };
        lines.begins(0);
        assert_eq!(lines.guests.lock().unwrap()[0].state, "begins");
    }
}
