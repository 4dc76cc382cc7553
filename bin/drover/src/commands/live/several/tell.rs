//! What several moves tell: lines with the guest's name, one line each on a terminal, one report.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use drover_live::together::{Foreseen, Moves, Pair, Turn};
use drover_live::{Allowed, Event, Moment, Where};
use drover_qemu::live::{Ended, LiveError, Tells};
use drover_types::counted;
use drover_view::{
    LiveOfSeveral, LiveOutcome, LiveSchedule, LiveSeveralReport, LiveSeveralWay, LiveTurn, live_several_html,
    live_several_json,
};
use serde_json::json;

use super::place::Refusal;
use super::wanted::Wanted;
use super::{weighed, worst};
use crate::cli::LiveCommand;
use crate::commands::live::over::Over;
use crate::commands::live::record::{self, Record, now_ms, put};
use crate::commands::live::show::{Lines, Shown};
use crate::commands::live::{View, allowed, failed_document, place};
use crate::exit::{Exit, Failure};
use crate::out::{line, say};

/// Tells of all guests.
pub struct Teller {
    json: bool,
    lines: Option<Arc<Lines>>,
    guests: Vec<Guest>,
    /// Guests that moved and whose promise was broken.
    broken: usize,
    began: Instant,
    path: Option<PathBuf>,
    report: LiveSeveralReport,
    failures: Vec<(usize, Failure)>,
}

struct Guest {
    name: String,
    view: View,
    record: Record,
    allowed: Allowed,
    /// What leads to its site.
    over: Option<Over>,
    began_s: Option<f64>,
    failure: Option<Failure>,
}

impl Teller {
    pub fn begin(command: &LiveCommand, guests: &[Wanted]) -> Teller {
        let names: Vec<String> = guests.iter().map(|guest| guest.name.clone()).collect();
        let lines = Lines::begin(&command.args, &names);
        let guest = |(number, wanted): (usize, &Wanted)| {
            let shown = lines.clone().map(|lines| Shown::of_several(lines, number, &wanted.args));
            let asked = record::asked(&wanted.args);
            let who = Some(wanted.name.clone());
            let view = View { who, json: command.args.json, said_ms: None, shown, asked };
            let record = Record::new(&wanted.args, PathBuf::new());
            let allowed = allowed(&wanted.args);
            Guest {
                name: wanted.name.clone(),
                view,
                record,
                allowed,
                over: None,
                began_s: None,
                failure: None,
            }
        };
        let guests = guests.iter().enumerate().map(guest).collect();
        let report = LiveSeveralReport { began_ms: now_ms(), ..LiveSeveralReport::default() };
        let path = command.args.report.clone();
        Teller {
            json: command.args.json,
            lines,
            guests,
            broken: 0,
            began: Instant::now(),
            path,
            report,
            failures: Vec::new(),
        }
    }

    /// How guests will go, between each two hosts, and what else was looked at; counts instead of what was told before.
    pub fn schedules(&mut self, moves: &Moves) {
        self.report.schedules.clear();
        moves.pairs().iter().for_each(|pair| self.schedule(pair));
    }

    /// This leads to a guest's site, until its move has ended.
    pub fn goes_over(&mut self, number: usize, over: Option<Over>) {
        self.guests[number].over = over;
    }

    fn schedule(&mut self, pair: &Pair) {
        let schedule = told(pair);
        if self.json {
            let mut document = json!({ "event": "schedule" });
            let fields = serde_json::to_value(&schedule).unwrap_or_default();
            fields.as_object().into_iter().flatten().for_each(|(key, value)| document[key] = value.clone());
            line(document);
        } else {
            self.say(&format!("{}: {} guests", pair.between, pair.guests.len()));
            pair.schedule.looked_at.iter().for_each(|looked| self.say(&format!("  {looked}")));
            if let Some(chosen) = &pair.schedule.chosen {
                self.say(&format!("{}:", chosen.way));
                chosen.turns.iter().for_each(|turn| self.say(&turn_words(pair, turn)));
            }
            if let Some(excess) = pair.schedule.excess() {
                let excess = excess as f64 / 1e6;
                self.say(&format!(
                    "they may go up to {excess:.1} MB/s beyond --rate-max, since QEMU sends 64 pages at once"
                ));
            }
        }
        self.report.schedules.push(schedule);
    }

    fn say(&self, text: &str) {
        match self.guests.first().and_then(|guest| guest.view.shown.as_ref()) {
            Some(shown) => shown.say(text),
            None => say(text),
        }
    }

    /// A guest did not move, or not as it should.
    fn failed(&mut self, number: usize, error: &LiveError, source: &[Moment]) {
        let guest = &mut self.guests[number];
        guest.record.failed(error, source);
        if self.json {
            guest.view.print(failed_document(error));
        }
        let failure = weighed(error, guest.allowed);
        guest.failure = Some(failure.clone());
        guest.view.say(&failure);
        self.state(number, &error.to_string());
        self.failures.push((number, failure));
    }

    /// Says of a guest why it is not begun.
    pub fn held_back(&mut self, number: usize, failure: Failure) {
        self.guests[number].view.say(&failure);
        self.state(number, &failure.message);
        self.failures.push((number, failure));
    }

    /// A guest cannot move, so none that has not begun is moved.
    pub fn refused(&mut self, number: usize, Refusal { failure, guest_at }: &Refusal) {
        let guest = &mut self.guests[number];
        if let Some(guest_at) = guest_at {
            guest.record.refused(&failure.message, guest_at);
        }
        if self.json {
            let guest_at = place(guest_at.as_ref().unwrap_or(&Where::Unknown));
            guest.view.print(json!({"event": "failed", "message": failure.message, "guest_at": guest_at}));
        }
        guest.failure = Some(failure.clone());
    }

    fn state(&self, number: usize, state: &str) {
        if let Some(lines) = &self.lines {
            lines.state(number, state);
        }
    }

    /// All have ended: what they come to, and what the command ends in.
    pub fn sums(&mut self, foreseen_s: f64) -> Result<Exit, Failure> {
        let failures = std::mem::take(&mut self.failures);
        let (guests, failed) = (self.guests.len(), failures.len());
        let seconds = self.began.elapsed().as_secs_f64();
        self.hide();
        match self.json {
            true => line(json!({
                "event": "ended", "guests": guests, "moved": guests - failed, "total_s": seconds,
                "total_s_foreseen": foreseen_s, "promises_broken": self.broken,
            })),
            false => line(format!(
                "{} of {guests} guests run at their targets after {seconds:.1} s (foreseen {foreseen_s:.1})",
                guests - failed
            )),
        }
        if failures.is_empty() {
            return Ok(if self.broken > 0 { Exit::PromiseBroken } else { Exit::Success });
        }
        let exit = worst(failures.iter().map(|(_, failure)| failure.exit));
        let mut text = format!("{failed} of {guests} guests did not move as they should:");
        for (number, failure) in &failures {
            text.push_str(&format!("\n  {}: {}", self.guests[*number].name, failure.message));
        }
        Err(Failure::new(exit, text))
    }

    /// What moved on the terminal goes before what stays is written below.
    fn hide(&mut self) {
        self.lines = None;
        self.guests.iter_mut().for_each(|guest| guest.view.shown = None);
    }

    /// Writes the report, with what the command ends in; a failure that comes on top of one is told beside it.
    pub fn write(mut self, ended: Result<Exit, Failure>) -> Result<Exit, Failure> {
        self.hide();
        let Some(path) = self.path.take() else { return ended };
        let report = self.into_report(&ended);
        let text = match path.extension().is_some_and(|it| it == "html") {
            true => live_several_html(&report),
            false => format!("{:#}\n", live_several_json(&report)),
        };
        let Err(error) = put(&path, text.as_bytes()) else { return ended };
        let text = format!("the report {} could not be written: {error}", path.display());
        match ended {
            Ok(_) => {
                let moved = report.sums().moved;
                let text = format!("{} at the target; {text}", counted(moved, "guest", "runs", "run"));
                Err(Failure::new(Exit::Internal, text))
            }
            Err(failure) => {
                let message = format!("{}; {text}", failure.message);
                Err(Failure { message, ..failure })
            }
        }
    }

    fn into_report(self, ended: &Result<Exit, Failure>) -> LiveSeveralReport {
        let one = |guest: Guest| LiveOfSeveral {
            name: guest.name,
            began_s: guest.began_s,
            report: guest.record.ended(guest.failure.as_ref()),
        };
        let moves: Vec<LiveOfSeveral> = self.guests.into_iter().map(one).collect();
        // What has a guest of its own stands there.
        let is_told = moves.iter().any(|one| matches!(one.report.outcome, LiveOutcome::Failed { .. }));
        let message = ended.as_ref().err().filter(|_| !is_told).map(|failure| failure.message.clone());
        LiveSeveralReport { ended_ms: now_ms(), message, moves, ..self.report }
    }
}

impl Tells for Teller {
    fn event(&mut self, number: usize, event: &Event) {
        let guest = &mut self.guests[number];
        guest.record.take(event);
        guest.view.tell(event);
    }

    fn begins(&mut self, number: usize) {
        let began_s = self.began.elapsed().as_secs_f64();
        let guest = &mut self.guests[number];
        guest.began_s = Some(began_s);
        if let Some(lines) = &self.lines {
            lines.begins(number);
        }
        let guest = &self.guests[number];
        match self.json {
            true => guest.view.print(json!({"event": "begins", "at_s": began_s})),
            false => guest.view.say("its move begins"),
        }
    }

    fn ended(&mut self, number: usize, Ended { result, moments: [source, target] }: Ended) {
        let over = self.guests[number].over.take();
        if let Some(over) = &over {
            over.refused().into_iter().for_each(|why| self.event(number, &Event::Note(why)));
            self.guests[number].record.went_over(over.told());
        }
        match result {
            Ok(moved) => {
                let guest = &mut self.guests[number];
                guest.record.moved(&moved, &source, &target);
                let exit = guest.view.moved(&moved, over.as_ref());
                self.broken += usize::from(exit == Exit::PromiseBroken);
                let words = format!("runs at the target, after {:.1} s", moved.total.as_secs_f64());
                self.state(number, &words);
            }
            Err(error) => self.failed(number, &error, &source),
        }
    }

    fn never_begins(&mut self, number: usize, error: &LiveError) {
        self.failed(number, error, &[]);
    }

    fn died(&mut self, number: usize) {
        let text = "internal error, which ended its move: look at both sides before you start anything";
        // Where it is counts more than that it is a defect.
        let failure = Failure::new(Exit::Target, text);
        let guest = &mut self.guests[number];
        if self.json {
            guest.view.print(json!({"event": "failed", "message": text, "guest_at": "unknown"}));
        }
        guest.view.say(&failure);
        guest.failure = Some(failure.clone());
        guest.over = None;
        self.state(number, text);
        self.failures.push((number, failure));
    }

    fn foreseen_anew(&mut self, between: &str, total_s: f64) {
        match self.json {
            true => line(json!({"event": "foreseen", "between": between, "total_s": total_s})),
            false => self.say(&format!("{between}: {total_s:.1} s in all, as it looks now")),
        }
    }
}

fn turn_words(pair: &Pair, turn: &Turn) -> String {
    format!(
        "  {}: begins after {:.1} s, takes {:.1}, is down {:.0} ms, with {:.1} MB/s at least",
        pair.guests[turn.guest].name,
        turn.begins_s,
        turn.takes_s,
        turn.downtime.likely * 1000.0,
        turn.rate_least / 1e6
    )
}

fn told(pair: &Pair) -> LiveSchedule {
    let way = |found: &Foreseen| LiveSeveralWay {
        way: found.way.clone(),
        at_once: found.width,
        total_s: found.total.likely,
        total_s_spread: found.total.spread,
        downtime_ms_most: found.downtime_most() * 1000.0,
        misses: found.misses.clone(),
    };
    let turn = |turn: &Turn| LiveTurn {
        guest: pair.guests[turn.guest].name.clone(),
        begins_s: turn.begins_s,
        takes_s: turn.takes_s,
        downtime_ms: turn.downtime.likely * 1000.0,
        rate_least_bytes_per_s: turn.rate_least,
    };
    let chosen = pair.schedule.chosen.as_ref();
    LiveSchedule {
        between: pair.between.clone(),
        line_bytes_per_s: pair.pipe.line.likely,
        line_is_known: pair.line_is_known,
        rate_max_bytes_per_s: pair.pipe.rate_max,
        excess_bytes_per_s: pair.schedule.excess(),
        chosen: chosen.map(|chosen| chosen.way.clone()),
        ways: pair.schedule.looked_at.iter().map(way).collect(),
        turns: chosen.map(|chosen| chosen.turns.iter().map(turn).collect()).unwrap_or_default(),
    }
}
