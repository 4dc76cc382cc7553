//! When Migrations and Plans will have arrived: foreseen on a thread of its own, and told by few requests.
//!
//! A status that is written anyway has its Migration's forecast in it, which costs nothing. Beside those only forecasts are written that
//! are off by much, of Migrations that arrive next first, and of thousands a part in a round.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use drover_kubevirt::{Change, KubeError, KubeErrorKind};
use drover_operator::forecast::{Answer, Asked, One, is_news, is_on_its_way, to_tell};
use drover_operator::model::{Foreseen, Phase, Status};
use serde_json::json;

use super::{Kind, Message, Operator, now, path_of};

/// How often all is foreseen anew, as the forecast of a run is.
const EACH: Duration = Duration::from_secs(60);
/// The same while a worker is at one that has no forecast yet.
const SOON: Duration = Duration::from_secs(10);
/// How often to look whether there is something to foresee.
const LOOK: Duration = Duration::from_secs(2);
/// It takes such a part of a processor at most.
const COST_PART: u32 = 10;

/// What is foreseen, and when that was.
#[derive(Default)]
pub struct Forecasts {
    is_asked: bool,
    /// When it was foreseen last, and how long that took.
    last: Option<(Instant, Duration)>,
    looked: Option<Instant>,
    /// Whether `known` is what there is, and not only what was never asked.
    is_known: bool,
    known: Answer,
}

/// What came of it, and how long it took.
pub struct Told {
    answer: Answer,
    took: Duration,
}

impl Forecasts {
    /// Whether all is to be foreseen, where one with a worker has no forecast or all have.
    fn is_due(&self, lacks_one: bool) -> bool {
        let pause = if lacks_one { SOON } else { EACH };
        let is_old = |(at, took): (Instant, Duration)| at.elapsed() >= pause.max(took * COST_PART);
        !self.is_asked && self.last.is_none_or(is_old)
    }

    /// The forecast of a Plan, by its UID, to be told beside what was told last.
    pub fn of_plan(&self, uid: &str, told: Option<&Foreseen>) -> Option<Foreseen> {
        match self.known.plans.get(uid) {
            Some(fresh) if is_news(told, fresh) => Some(fresh.clone()),
            None if self.is_known => None,
            Some(_) | None => told.cloned(),
        }
    }
}

impl Operator {
    /// The forecast that goes with a status that is written.
    pub(super) fn forecast_with(&self, name: &str, status: &Status) -> Option<Foreseen> {
        let migration = self.migrations.get(name)?;
        let is_wanted = is_on_its_way(&migration.spec, status);
        let known = self.forecasts.known.migrations.get(name).or(status.forecast.as_ref());
        known.filter(|_| is_wanted).cloned()
    }

    /// Foresees what is on its way, now and then.
    pub(super) fn tend_forecasts(&mut self) {
        let forecasts = &mut self.forecasts;
        if forecasts.is_asked || forecasts.looked.is_some_and(|at| at.elapsed() < LOOK) {
            return;
        }
        forecasts.looked = Some(Instant::now());
        let lacks = |it: &super::Migration| it.status.phase == Phase::Running && it.status.forecast.is_none();
        let lacks_one = self.migrations.values().any(lacks);
        if !self.forecasts.is_due(lacks_one) {
            return;
        }
        let all = self.migrations.iter().map(|(name, it)| One { name, spec: &it.spec, status: &it.status });
        let waves = self.waves_by_plan();
        let waves = |plan: &str| waves.get(plan).cloned().unwrap_or_default();
        let asked = Asked::new(all, &self.budgets, waves, now());
        if asked.is_empty() {
            (self.forecasts.known, self.forecasts.is_known) = (Answer::default(), true);
            return;
        }
        let sender = self.sender.clone();
        let thread = std::thread::Builder::new().name("foresee".into()).spawn(move || {
            let begun = Instant::now();
            let answer = asked.answer();
            // Nobody listens only when all of it ends.
            let _ = sender.send(Message::Foreseen(Box::new(Told { answer, took: begun.elapsed() })));
        });
        self.forecasts.is_asked = thread.is_ok();
    }

    /// Keeps what is foreseen, and tells those for whom it is news.
    pub(super) fn take_foreseen(&mut self, told: Told) {
        let forecasts = &mut self.forecasts;
        forecasts.is_asked = false;
        forecasts.last = Some((Instant::now(), told.took));
        (forecasts.known, forecasts.is_known) = (told.answer, true);
        let known = |name: &str| self.migrations.get(name).and_then(|it| it.status.forecast.as_ref());
        let fresh = &self.forecasts.known.migrations;
        let all: BTreeMap<String, Foreseen> = to_tell(fresh, known)
            .into_iter()
            .filter_map(|name| Some((name.to_string(), fresh.get(name)?.clone())))
            .collect();
        for (name, it) in all {
            if !self.lease.is_held() {
                return;
            }
            self.tell_figures();
            match self.write_forecast(&name, &it) {
                Ok(()) => {}
                // It was changed or removed meanwhile: the watch tells, and the next round is soon.
                Err(error) if matches!(error.kind, KubeErrorKind::Conflict | KubeErrorKind::Missing) => {}
                Err(error) => {
                    crate::out::say(format_args!("forecasts are not told: {error}; it is tried again"));
                    return;
                }
            }
        }
    }

    fn write_forecast(&mut self, name: &str, forecast: &Foreseen) -> Result<(), KubeError> {
        let Some(migration) = self.migrations.get(name) else { return Ok(()) };
        // What was foreseen of one that has come to rest since is nothing.
        if !is_on_its_way(&migration.spec, &migration.status) {
            return Ok(());
        }
        let body = json!({"metadata": {"uid": migration.meta.uid}, "status": {"forecast": forecast}});
        let path = format!("{}/status", path_of(Kind::Migration, &self.namespace, name));
        let answer = self.cluster.change(&path, Change::Merge, &body)?;
        self.take_answer(&answer);
        // What others wrote meanwhile is in the answer, too.
        self.due.insert(name.to_string());
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_operator::time::Moment;

    use super::*;

    #[test]
    fn it_is_foreseen_now_and_then_and_takes_a_part_of_a_processor() {
        let mut forecasts = Forecasts::default();
        assert!(forecasts.is_due(false) && forecasts.is_due(true));
        let ago = |seconds: u64| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let quick = Duration::from_millis(10);
        for (last, none_lacks, one_lacks) in [
            ((ago(5), quick), false, false),
            ((ago(20), quick), false, true),
            ((ago(61), quick), true, true),
            ((ago(61), Duration::from_secs(30)), false, false),
            ((ago(301), Duration::from_secs(30)), true, true),
        ] {
            forecasts.last = Some(last);
            assert_eq!(
                (forecasts.is_due(false), forecasts.is_due(true)),
                (none_lacks, one_lacks),
                "{last:?}"
            );
        }
        forecasts.is_asked = true;
        assert!(!forecasts.is_due(true));
    }

    #[test]
    fn a_plan_is_told_news_alone_and_nothing_once_all_of_it_is_there() {
        let foreseen = |at: i64, end: i64| {
            let end = Moment(end);
            Foreseen { at: Moment(at), p10: end, p50: end, p90: end }
        };
        let mut forecasts = Forecasts::default();
        let told = foreseen(0, 1000);
        assert_eq!(
            forecasts.of_plan("p", Some(&told)),
            Some(told.clone()),
            "an operator that has just begun"
        );
        forecasts.is_known = true;
        assert_eq!(forecasts.of_plan("p", Some(&told)), None);
        forecasts.known.plans.insert("p".into(), foreseen(600, 1010));
        assert_eq!(forecasts.of_plan("p", None), Some(foreseen(600, 1010)));
        assert_eq!(forecasts.of_plan("p", Some(&told)), Some(told.clone()));
        forecasts.known.plans.insert("p".into(), foreseen(600, 2000));
        assert_eq!(forecasts.of_plan("p", Some(&told)), Some(foreseen(600, 2000)));
    }
}
