//! `drover kubectl status --watch`: follows Plans and Migrations by watches of the API server, without asking for lists again.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use drover_kubevirt::Seen;
use drover_view::{now_utc, time_now};
use serde_json::{Value, json};

use super::rows::{PlanRow, Row, chosen, of_wave, shown};
use super::{Place, failure};
use crate::cli::KubectlStatusArgs;
use crate::exit::{Exit, Failure};
use crate::signals::stop_on_signals;

/// How often it is shown at most.
const EVERY: Duration = Duration::from_secs(1);
/// How often to look whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Messages that wait to be taken.
const QUEUE: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Plan,
    Migration,
}

/// What is known so far.
#[derive(Default)]
struct Known {
    plans: BTreeMap<String, PlanRow>,
    rows: BTreeMap<String, Row>,
    /// Names of a list that is under way.
    listing: BTreeMap<Kind, Vec<String>>,
    complete: [bool; 2],
}

impl Known {
    fn take(&mut self, kind: Kind, seen: Seen) -> Result<(), Failure> {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_string();
        match seen {
            Seen::Begin => drop(self.listing.insert(kind, Vec::new())),
            Seen::There(object) => {
                let name = name(&object);
                if let Some(listing) = self.listing.get_mut(&kind) {
                    listing.push(name.clone());
                }
                match kind {
                    Kind::Plan => drop(self.plans.insert(name, PlanRow::of(&object))),
                    Kind::Migration => drop(self.rows.insert(name, Row::of(&object))),
                }
            }
            Seen::Gone(object) => self.keep(kind, |it| *it != name(&object)),
            Seen::Complete => {
                let mut listing = self.listing.remove(&kind).unwrap_or_default();
                listing.sort();
                self.keep(kind, |it| listing.binary_search(it).is_ok());
                self.complete[kind as usize] = true;
            }
            // What cannot be asked at all is told at once; what could be is waited for.
            Seen::Trouble(error) if !self.complete[kind as usize] => return Err(failure(error)),
            Seen::Trouble(error) => crate::out::say(format_args!("{error}; it is tried again")),
        }
        Ok(())
    }

    fn keep(&mut self, kind: Kind, is_there: impl Fn(&String) -> bool) {
        match kind {
            Kind::Plan => self.plans.retain(|name, _| is_there(name)),
            Kind::Migration => self.rows.retain(|name, _| is_there(name)),
        }
    }

    /// Those that are asked for, in order.
    fn rows(&self, args: &KubectlStatusArgs) -> Result<Vec<Row>, String> {
        let mut all: Vec<Row> = self.rows.values().cloned().collect();
        all.sort_by(|a, b| (&a.plan, &a.vm, &a.name).cmp(&(&b.plan, &b.vm, &b.name)));
        let rows = chosen(&all, &args.names, args.of.as_deref());
        let rows = rows.and_then(|rows| of_wave(rows, args.wave.as_deref()))?;
        Ok(rows.into_iter().cloned().collect())
    }

    /// A Plan that is not laid over its source yet, and may have what is asked for then.
    fn awaited(&self, args: &KubectlStatusArgs) -> Option<&PlanRow> {
        let may_have = |plan: &&PlanRow| {
            args.of.as_ref().is_none_or(|of| plan.name == *of)
                && args.wave.as_ref().is_none_or(|wave| plan.wave_names.contains(wave))
        };
        self.plans.values().filter(may_have).find(|plan| !plan.is_settled)
    }

    fn plans(&self, args: &KubectlStatusArgs) -> Vec<PlanRow> {
        let is_asked =
            |plan: &&PlanRow| args.names.is_empty() && args.of.as_ref().is_none_or(|of| plan.name == *of);
        let mut plans: Vec<PlanRow> = self.plans.values().filter(is_asked).cloned().collect();
        plans.iter_mut().for_each(|plan| plan.keep_wave(args.wave.as_deref()));
        plans
    }
}

/// Follows them until all have come to rest.
pub fn run(place: &Place, args: &KubectlStatusArgs) -> Result<Exit, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let (sender, receiver) = sync_channel(QUEUE);
    for (kind, plural) in [(Kind::Plan, "plans"), (Kind::Migration, "migrations")] {
        follow(place, kind, plural, &sender)?;
    }
    let is_screen = !args.json && std::io::stdout().is_terminal();
    let (mut known, mut before, mut shown_at) = (Known::default(), BTreeMap::new(), None::<Instant>);
    let (mut page, mut awaited) = (String::new(), String::new());
    loop {
        taken(&receiver, &mut known)?;
        if stop.is_set() {
            return Ok(Exit::Interrupted);
        }
        let is_due = shown_at.is_none_or(|at| at.elapsed() >= EVERY);
        if known.complete != [true; 2] || !is_due {
            continue;
        }
        shown_at = Some(Instant::now());
        let plans = known.plans(args);
        let rows = match (known.rows(args), known.awaited(args)) {
            (Ok(rows), _) => rows,
            // It was removed meanwhile.
            (Err(_), _) if !before.is_empty() => Vec::new(),
            (Err(_), Some(plan)) => {
                tell_awaited(plan, &mut awaited);
                continue;
            }
            // Of the two streams that of Migrations may be behind.
            (Err(_), None) if is_there(place, args)? => continue,
            (Err(why), None) => return Err(place.no(why)),
        };
        if args.of.is_some() && args.names.is_empty() && plans.is_empty() && rows.is_empty() {
            return Err(place.no("there is no such Plan".into()));
        }
        let told: Vec<&Row> = rows.iter().filter(|row| row.is_in(&args.phase)).collect();
        if is_screen || args.summary {
            let text = shown(&place.namespace, &plans, &told, args.summary);
            if is_screen {
                crate::out::fresh_page();
            }
            if is_screen || text != page {
                crate::out::print(&text);
            }
            page = text;
        } else {
            tell_news(&told, &before, args.json);
        }
        if plans.iter().all(|plan| plan.is_settled) && rows.iter().all(Row::is_at_rest) {
            let has_failed = rows.iter().any(|row| row.phase == "Failed");
            return Ok(if has_failed { Exit::Mixed } else { Exit::Success });
        }
        before = rows.into_iter().map(|row| (row.name.clone(), row)).collect();
    }
}

/// Says which Plan is waited for and why, where that is not what was said last.
fn tell_awaited(plan: &PlanRow, last: &mut String) {
    let why = if plan.message.is_empty() { "it is being laid over its source" } else { &plan.message };
    let words = format!("waiting for Plan {}: {}", plan.name, drover_view::clean(why));
    if words != *last {
        crate::out::say(&words);
    }
    *last = words;
}

/// Whether what is asked for is there, asked of the server itself.
fn is_there(place: &Place, args: &KubectlStatusArgs) -> Result<bool, Failure> {
    let all = place.rows()?;
    let rows = chosen(&all, &args.names, args.of.as_deref());
    Ok(rows.and_then(|rows| of_wave(rows, args.wave.as_deref())).is_ok())
}

fn follow(place: &Place, kind: Kind, plural: &str, sender: &SyncSender<(Kind, Seen)>) -> Result<(), Failure> {
    let (cluster, path, sender) = (place.cluster.clone(), place.own(plural), sender.clone());
    let run = move || cluster.follow(&path, "", |seen| sender.send((kind, seen)).is_ok());
    let thread = std::thread::Builder::new().name(format!("watch {plural}")).spawn(run);
    thread.map(drop).map_err(|error| Failure::new(Exit::Internal, format!("no thread: {error}")))
}

/// Takes in what has come, or waits for a moment.
fn taken(receiver: &Receiver<(Kind, Seen)>, known: &mut Known) -> Result<(), Failure> {
    match receiver.recv_timeout(LOOK) {
        Ok((kind, seen)) => known.take(kind, seen)?,
        Err(RecvTimeoutError::Timeout) => return Ok(()),
        Err(RecvTimeoutError::Disconnected) => {
            return Err(Failure::new(Exit::Internal, "nobody watches any more"));
        }
    }
    receiver.try_iter().take(QUEUE).try_for_each(|(kind, seen)| known.take(kind, seen))
}

/// A line, or an object, for each that is not as it was.
fn tell_news(rows: &[&Row], before: &BTreeMap<String, Row>, json: bool) {
    for row in rows.iter().filter(|row| before.get(&row.name) != Some(**row)) {
        match json {
            true => {
                let mut told = json!({"time": now_utc(), "event": "status"});
                if let (Value::Object(told), Value::Object(fields)) = (&mut told, json!(row)) {
                    told.extend(fields);
                }
                crate::out::json(told);
            }
            false => crate::out::line(format_args!("{}  {}", time_now(), row.line())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_a_list_has_no_more_is_gone() {
        let object = |name: &str| json!({"metadata": {"name": name}, "spec": {"vm": {"name": name}}});
        let mut known = Known::default();
        let mut take = |seen: Vec<Seen>| {
            seen.into_iter().for_each(|it| known.take(Kind::Migration, it).unwrap());
            known.rows.keys().cloned().collect::<Vec<_>>()
        };
        let list = vec![Seen::Begin, Seen::There(object("b")), Seen::There(object("a")), Seen::Complete];
        assert_eq!(take(list), ["a", "b"]);
        assert_eq!(take(vec![Seen::There(object("c")), Seen::Gone(object("a"))]), ["b", "c"]);
        assert_eq!(take(vec![Seen::Begin, Seen::There(object("c")), Seen::Complete]), ["c"]);
    }

    #[test]
    fn what_was_never_seen_is_not_waited_for() {
        let trouble = || {
            let kind = drover_kubevirt::KubeErrorKind::Denied;
            Seen::Trouble(drover_kubevirt::KubeError { kind, what: "no".into() })
        };
        let mut known = Known::default();
        assert_eq!(known.take(Kind::Plan, trouble()).unwrap_err().exit, Exit::Access);
        known.take(Kind::Plan, Seen::Complete).unwrap();
        known.take(Kind::Plan, trouble()).unwrap();
    }
}
