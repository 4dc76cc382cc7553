//! Plans that are given up: each of their Migrations is, some in a turn, so that others are decided on in between.

use drover_kubevirt::{Change, KubeError, KubeErrorKind};
use drover_operator::model::Phase;
use drover_operator::objects::Note;
use drover_operator::time::Moment;
use serde_json::json;

use super::plans::{after, stops_all};
use super::{Kind, Migration, Operator, path_of};

/// Migrations of one Plan that are given up in one turn. Each takes some four requests, for its spec, its status and two events.
const CANCELS_MAX: usize = 50;

/// How far a Plan that is given up is with its Migrations: in rounds over those that are left, in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct Cancels {
    /// The last one that had its turn in the round under way.
    last: Option<String>,
    /// How many the server refused in that, and what it said of the first.
    refused: Option<(usize, String)>,
    /// When the next round begins after one in which it refused some, and the pause before it.
    next: Option<(Moment, i64)>,
}

impl Cancels {
    /// Whether a round is under way, or may begin.
    fn is_due(&self, at: Moment) -> bool {
        self.next.is_none_or(|(next, _)| next <= at)
    }

    /// Whether the turn of one that is left is yet to come in this round.
    fn is_ahead(&self, name: &str, at: Moment) -> bool {
        self.is_due(at) && self.last.as_deref().is_none_or(|last| name > last)
    }

    /// Those whose turn it is, of all that are left, in the order of their names.
    fn turn<'a>(&self, left: impl Iterator<Item = &'a String>, at: Moment) -> Vec<String> {
        left.filter(|name| self.is_ahead(name, at)).take(CANCELS_MAX).cloned().collect()
    }

    /// These had their turn. At the end of a round it gives in words what the server refused in it.
    fn had(&mut self, names: &[String], refused: &[String], at: Moment) -> Option<String> {
        if let Some(first) = refused.first() {
            let (count, _) = self.refused.get_or_insert_with(|| (0, first.clone()));
            *count += refused.len();
        }
        if names.len() == CANCELS_MAX {
            self.last = names.last().cloned();
            return None;
        }
        let refused = self.refused.take();
        self.last = None;
        self.next = refused.is_some().then(|| after(self.next, at));
        refused.map(|(count, first)| {
            format!("{count} Migrations could not be cancelled, and are tried again: {first}")
        })
    }
}

/// Whether a Migration is yet to be given up with its Plan.
fn is_left(it: &Migration, plan: &str) -> bool {
    it.spec.plan_ref.uid == plan && !it.spec.cancel && it.status.phase != Phase::Done
}

/// Does something to each; what the server refuses of one is told, and keeps it from none of the others.
fn past_refusals(
    names: &[String],
    mut act: impl FnMut(&str) -> Result<(), KubeError>,
) -> Result<Vec<String>, KubeError> {
    let mut refused = Vec::new();
    for name in names {
        match act(name) {
            // Another by now, or gone: the watch tells.
            Ok(()) => {}
            Err(error) if matches!(error.kind, KubeErrorKind::Conflict | KubeErrorKind::Missing) => {}
            // A right that lacks may lack for long: what is refused because of it is decided on like all others until the next round.
            Err(error) if error.kind != KubeErrorKind::Denied && stops_all(error.kind) => return Err(error),
            Err(error) => refused.push(format!("{name}: {}", error.what)),
        }
    }
    Ok(refused)
}

impl Operator {
    /// Gives up those Migrations of a Plan that is given up whose turn it is.
    pub(super) fn cancel_some(&mut self, name: &str, at: Moment) -> Result<(), KubeError> {
        let is_due = |plan: &&super::Plan| plan.cancel && plan.cancels.is_due(at);
        let Some(plan) = self.plans.get(name).filter(is_due) else { return Ok(()) };
        let left = self.migrations.iter().filter(|(_, it)| is_left(it, &plan.meta.uid));
        let names = plan.cancels.turn(left.map(|(migration, _)| migration), at);
        // What becomes of them is decided now, also of those that the server refuses.
        self.due.extend(names.iter().cloned());
        let refused = past_refusals(&names, |migration| self.cancel_one(migration))?;
        let told = self.plans.get_mut(name).and_then(|plan| plan.cancels.had(&names, &refused, at));
        if let Some(message) = told {
            self.tell("Plan", name, &[Note { is_warning: true, reason: "CancelRefused".into(), message }]);
        }
        Ok(())
    }

    fn cancel_one(&mut self, name: &str) -> Result<(), KubeError> {
        self.check_lease()?;
        let Some(migration) = self.migrations.get(name) else { return Ok(()) };
        let body = json!({"metadata": {"uid": migration.meta.uid}, "spec": {"cancel": true}});
        let path = path_of(Kind::Migration, &self.namespace, name);
        let answer = self.cluster.change(&path, Change::Merge, &body)?;
        self.take_answer(&answer);
        Ok(())
    }

    /// Whether its Plan is given up and its own turn is yet to come. It is decided on then: else thousands would be written twice, first
    /// that their Plan is not laid over its source.
    pub(super) fn waits_for_cancel(&self, name: &str, at: Moment) -> bool {
        let Some(it) = self.migrations.get(name) else { return false };
        let plan = self.plans.get(&it.spec.plan_ref.name);
        plan.is_some_and(|plan| plan.cancel && is_left(it, &plan.meta.uid) && plan.cancels.is_ahead(name, at))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(count: usize) -> BTreeSet<String> {
        (0..count).map(|number| format!("vm-{number:04}")).collect()
    }

    #[test]
    fn a_turn_gives_up_so_many_and_all_have_theirs_in_the_end() {
        let (mut cancels, mut left, at) = (Cancels::default(), names(2 * CANCELS_MAX + 7), Moment(0));
        let mut turns = Vec::new();
        while !left.is_empty() {
            let ahead = left.iter().filter(|name| cancels.is_ahead(name, at)).count();
            assert_eq!(ahead, left.len(), "none of them is decided on before");
            let turn = cancels.turn(left.iter(), at);
            left.retain(|name| !turn.contains(name));
            assert_eq!(cancels.had(&turn, &[], at), None);
            turns.push(turn.len());
        }
        assert_eq!(turns, [CANCELS_MAX, CANCELS_MAX, 7]);
        // One that comes late has its turn, too.
        assert_eq!(cancels.turn(names(1).iter(), at), ["vm-0000"]);
    }

    #[test]
    fn what_is_refused_holds_up_none_of_the_others_and_has_another_turn_after_a_pause() {
        fn is_refused(name: &str) -> bool {
            name.ends_with('3')
        }
        let (mut cancels, mut left) = (Cancels::default(), names(2 * CANCELS_MAX + 20));
        let mut round = |cancels: &mut Cancels, at: Moment| {
            let mut turns = 0;
            loop {
                let turn = cancels.turn(left.iter(), at);
                let refused: Vec<String> = turn.iter().filter(|name| is_refused(name)).cloned().collect();
                left.retain(|name| !turn.contains(name) || is_refused(name));
                turns += 1;
                if let Some(told) = cancels.had(&turn, &refused, at) {
                    return (turns, left.len(), told);
                }
            }
        };
        let words = "12 Migrations could not be cancelled, and are tried again: vm-0003".to_string();
        assert_eq!(round(&mut cancels, Moment(0)), (3, 12, words.clone()));
        // Until then they are decided on like all others.
        assert!(!cancels.is_due(Moment(14)) && !cancels.is_ahead("vm-0003", Moment(14)));
        assert!(cancels.is_ahead("vm-0003", Moment(15)));
        assert_eq!(round(&mut cancels, Moment(15)), (1, 12, words));
        assert_eq!([44, 45].map(|at| cancels.is_due(Moment(at))), [false, true], "pauses grow");
    }

    #[test]
    fn one_that_is_refused_keeps_none_of_the_others() {
        let names = ["a", "b", "c", "d"].map(String::from);
        let mut done = Vec::new();
        let refused = past_refusals(&names, |name| {
            done.push(name.to_string());
            match name {
                "a" => Err(KubeError { kind: KubeErrorKind::Refused, what: "words".into() }),
                "b" => Err(KubeError { kind: KubeErrorKind::Conflict, what: "made anew".into() }),
                "c" => Err(KubeError { kind: KubeErrorKind::Denied, what: "no right".into() }),
                _ => Ok(()),
            }
        });
        assert_eq!(done, names);
        assert_eq!(refused.unwrap(), ["a: words", "c: no right"]);
        // What nobody answers is asked for once.
        let mut asked = 0;
        let ended = past_refusals(&names, |_| {
            asked += 1;
            Err(KubeError { kind: KubeErrorKind::Unreachable, what: "no answer".into() })
        });
        assert_eq!((ended.unwrap_err().kind, asked), (KubeErrorKind::Unreachable, 1));
    }
}
