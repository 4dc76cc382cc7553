//! Plans that are given up: each of their Migrations is, some in a turn, so that others are decided on in between.

use std::collections::BTreeMap;

use drover_kubevirt::{Change, KubeError, KubeErrorKind};
use drover_operator::model::Phase;
use drover_operator::objects::Note;
use drover_operator::time::Moment;
use serde_json::json;

use super::plans::{after, stops_all};
use super::{Kind, Migration, Operator, path_of};

/// Migrations of one Plan that are given up in one turn. Each takes some four requests, for its spec, its status and two events.
const CANCELS_MAX: usize = 50;

/// The order of turns: first those with a worker or with leave to move over, of which a guest goes down before long; then by name. `true` is
/// of the others.
type Rank = (bool, String);

fn rank(it: &Migration) -> Rank {
    (it.status.job.is_none() && it.status.cutover_epoch.is_none(), it.meta.name.clone())
}

/// Plans that are given up, by their UIDs; also one that is removed before all of its Migrations are given up.
#[derive(Debug, Default)]
pub struct GivenUp(BTreeMap<String, Cancels>);

impl GivenUp {
    /// A Plan is given up, or is not any more.
    pub fn see(&mut self, uid: &str, name: &str, is_given_up: bool) {
        match is_given_up {
            true => {
                let fresh = || Cancels { plan: name.to_string(), ..Cancels::default() };
                self.0.entry(uid.to_string()).or_insert_with(fresh);
            }
            false => _ = self.0.remove(uid),
        }
    }

    /// Whether the turn of a Migration is yet to come in the round of its Plan.
    fn is_ahead(&self, it: &Migration, at: Moment) -> bool {
        let cancels = self.0.get(&it.spec.plan_ref.uid).filter(|_| is_left(it));
        cancels.is_some_and(|cancels| cancels.is_ahead(&rank(it), at))
    }
}

/// How far a Plan that is given up is with its Migrations: in rounds over those that are left, in their order.
#[derive(Debug, Default)]
struct Cancels {
    /// The Plan's name.
    plan: String,
    /// The last one that had its turn in the round under way.
    last: Option<Rank>,
    /// How many the server refused in that, and what it said of the first.
    refused: Option<(usize, String)>,
    /// When it goes on: after a round in which it refused some, or an answer after which the others were not tried. And the pause before.
    next: Option<(Moment, i64)>,
}

impl Cancels {
    /// Whether a round is under way, or may begin. In a pause all are decided on like others.
    fn is_due(&self, at: Moment) -> bool {
        self.next.is_none_or(|(next, _)| next <= at)
    }

    /// Whether the turn of one that is left is yet to come in this round.
    fn is_ahead(&self, rank: &Rank, at: Moment) -> bool {
        self.is_due(at) && self.last.as_ref().is_none_or(|last| rank > last)
    }

    /// Those whose turn it is, of all that are left, in their order, and those whose turn is yet to come.
    fn turn(&self, left: impl Iterator<Item = Rank>, at: Moment) -> (Vec<Rank>, Vec<Rank>) {
        let mut turn: Vec<Rank> = left.filter(|rank| self.is_ahead(rank, at)).collect();
        turn.sort();
        let later = turn.split_off(turn.len().min(CANCELS_MAX));
        (turn, later)
    }

    /// These had their turn. At the end of a round it gives in words what the server refused in it.
    fn had(&mut self, turn: &[Rank], ended: &Ended, at: Moment) -> Option<String> {
        if let Some(first) = ended.refused.first() {
            let (count, _) = self.refused.get_or_insert_with(|| (0, first.clone()));
            *count += ended.refused.len();
        }
        if let Some((rank, _)) = &ended.stopped {
            // It goes on behind that one: it may be the only one which the server answers so.
            self.last = Some(rank.clone());
            self.next = Some(after(self.next, at));
            return None;
        }
        if turn.len() == CANCELS_MAX {
            self.last = turn.last().cloned();
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
fn is_left(it: &Migration) -> bool {
    !it.spec.cancel && it.status.phase != Phase::Done
}

/// How a turn ended.
#[derive(Debug, Default)]
struct Ended {
    /// What the server refused, each in words.
    refused: Vec<String>,
    /// The one after which no other was tried, and why.
    stopped: Option<(Rank, KubeError)>,
}

/// Does something to each; what the server refuses of one is told, and keeps it from none of the others.
fn past_refusals(turn: &[Rank], mut act: impl FnMut(&str) -> Result<(), KubeError>) -> Ended {
    let mut ended = Ended::default();
    for rank in turn {
        let (_, name) = rank;
        let error = match act(name) {
            Ok(()) => continue,
            // Another by now, or gone: the watch tells.
            Err(error) if matches!(error.kind, KubeErrorKind::Conflict | KubeErrorKind::Missing) => continue,
            Err(error) => error,
        };
        ended.refused.push(format!("{name}: {}", error.what));
        // A right that lacks may lack for long: what is refused because of it is decided on like all others until the next round.
        if error.kind != KubeErrorKind::Denied && stops_all(error.kind) {
            ended.stopped = Some((rank.clone(), error));
            break;
        }
    }
    ended
}

/// Whether a worker, a guest or a removal waits for what is decided.
fn is_urgent(it: &Migration) -> bool {
    it.has_begun() || it.status.job.is_some() || it.meta.is_going
}

impl Operator {
    /// Gives up those Migrations of Plans that are given up whose turn it is.
    pub(super) fn cancel_in_turns(&mut self, at: Moment) {
        let uids: Vec<String> = self.given_up.0.keys().cloned().collect();
        uids.iter().for_each(|uid| self.cancel_some(uid, at));
    }

    fn cancel_some(&mut self, uid: &str, at: Moment) {
        let Some(cancels) = self.given_up.0.get(uid).filter(|cancels| cancels.is_due(at)) else { return };
        let plan = cancels.plan.clone();
        let is_there = self.plans.get(&plan).is_some_and(|it| it.meta.uid == uid);
        let left = self.migrations.values().filter(|it| it.spec.plan_ref.uid == uid && is_left(it));
        let (turn, later) = cancels.turn(left.map(rank), at);
        // Of a Plan that is gone nothing is left, once a whole round finds nothing.
        if turn.is_empty() && cancels.last.is_none() && !is_there {
            self.given_up.0.remove(uid);
            return;
        }
        self.give_back(&later);
        // What becomes of them is decided now, also of those that the server refuses.
        self.due.extend(turn.iter().map(|(_, name)| name.clone()));
        let ended = past_refusals(&turn, |migration| self.cancel_one(migration));
        if let Some((_, error)) = &ended.stopped {
            crate::out::say(format_args!("Plan {plan}: {error}; it is tried again"));
            // The others are decided on in the pause, where something waits for that.
            let waits = |name: &String| self.migrations.get(name).is_some_and(is_urgent);
            self.due.extend(later.into_iter().map(|(_, name)| name).filter(waits));
        }
        let told = self.given_up.0.get_mut(uid).and_then(|cancels| cancels.had(&turn, &ended, at));
        let Some(message) = told else { return };
        let note = Note { is_warning: true, reason: "CancelRefused".into(), message };
        match is_there {
            true => self.tell("Plan", &plan, &[note]),
            false => crate::out::say_of("Plan", &plan, &note.reason, &note.message),
        }
    }

    /// Those that wait for their turn begin nothing meanwhile: slots, and places among the guests that are down, are for others.
    fn give_back(&mut self, later: &[Rank]) {
        let now_ms = self.now_ms();
        for (_, name) in later {
            let Some(Migration { status, .. }) = self.migrations.get(name) else { continue };
            if status.job.is_none() && !status.keeps_slot() {
                self.admissions.leave(name, now_ms);
            }
            if status.cutover_epoch.is_none() && !status.is_moving_over() {
                self.cutovers.leave(name, now_ms);
            }
        }
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
        self.migrations.get(name).is_some_and(|it| self.given_up.is_ahead(it, at))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;

    use drover_kubevirt::{Access, Cluster};
    use drover_operator::model::{JobRef, MigrationSpec, Pinned, Status, Work};
    use drover_operator::objects::Shape;
    use drover_schedule::Budgets;

    use super::*;
    use crate::operator::figures::Told;
    use crate::operator::lease::Lease;

    /// An operator of a server that does not answer.
    fn operator() -> (tempfile::TempDir, Operator) {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config");
        let text = "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n\
                    users: [{name: a, user: {}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n";
        std::fs::write(&config, text).unwrap();
        let cluster = Cluster::connect(&Access { kubeconfig: Some(config), context: None }).unwrap();
        let shape = Shape {
            image: "drover".into(),
            target_images: Vec::new(),
            image_pull: "IfNotPresent".into(),
            account: "drover-worker".into(),
            state_class: None,
            state_size: "1Gi".into(),
            cpu: "1".into(),
            memory: "1Gi".into(),
            json: false,
            converter: None,
        };
        let budgets = Budgets { vms_per_host: 500, disks: 500, cutovers: 500, ..Budgets::default() };
        let lease = Lease::new(cluster.clone(), "vms");
        let (sender, _) = sync_channel(1);
        let told = Arc::new(Told::new(false));
        (folder, Operator::new(cluster, "vms".into(), shape, budgets, lease, told, sender))
    }

    fn plan(uid: &str, cancel: bool) -> serde_json::Value {
        json!({"metadata": {"name": "p", "uid": uid, "generation": 1}, "spec": {"provider": "vc", "plan": {}, "cancel": cancel}})
    }

    /// One of the Plan with UID `p1`.
    fn put(operator: &mut Operator, name: &str, status: &Status) {
        let plan_ref = Pinned { name: "p".into(), uid: "p1".into(), generation: 1 };
        let spec = MigrationSpec { plan_ref, ..MigrationSpec::default() };
        let status = json!(status);
        let object =
            json!({"metadata": {"name": name, "uid": format!("of {name}")}, "spec": spec, "status": status});
        operator.put(Kind::Migration, &object);
        assert!(operator.migrations.contains_key(name));
    }

    #[test]
    fn a_plan_that_is_removed_while_it_is_given_up_is_given_up_to_its_end() {
        let (_folder, mut operator) = operator();
        put(&mut operator, "vm-1", &Status::default());
        operator.put(Kind::Plan, &plan("p1", true));
        operator.lose(Kind::Plan, "p");
        let at = Moment(0);
        assert!(operator.waits_for_cancel("vm-1", at), "nobody gives it up");
        // One that is made anew is another Plan.
        operator.put(Kind::Plan, &plan("p2", false));
        operator.due.clear();
        operator.cancel_in_turns(at);
        assert!(operator.due.contains("vm-1") && operator.given_up.0.contains_key("p1"));
        // Nothing is left of it.
        operator.lose(Kind::Migration, "vm-1");
        operator.cancel_in_turns(Moment(1000));
        operator.cancel_in_turns(Moment(2000));
        assert!(operator.given_up.0.is_empty());
        // One that is there is given up for as long as it says so.
        operator.put(Kind::Plan, &plan("p2", true));
        operator.cancel_in_turns(Moment(3000));
        assert!(operator.given_up.0.contains_key("p2"));
        operator.put(Kind::Plan, &plan("p2", false));
        assert!(operator.given_up.0.is_empty());
    }

    fn idle(name: &str) -> Rank {
        (true, name.to_string())
    }

    fn ranks(count: usize) -> BTreeSet<Rank> {
        (0..count).map(|number| idle(&format!("vm-{number:04}"))).collect()
    }

    #[test]
    fn what_waits_for_its_turn_has_no_slot_that_it_does_not_use() {
        let (_folder, mut operator) = operator();
        operator.put(Kind::Plan, &plan("p1", true));
        let job = JobRef { name: "job".into(), uid: None, work: Work::Move, at: Moment(0), overdue: false };
        let idle = Status::default();
        let works = Status { job: Some(job), epoch: 1, phase: Phase::Running, ..idle.clone() };
        let moves_over = Status { cutover_epoch: Some(1), ..works.clone() };
        let down = Status { guest_off: true, phase: Phase::Retrying, ..idle.clone() };
        (0..CANCELS_MAX).for_each(|number| put(&mut operator, &format!("a-{number:02}"), &works));
        for (name, status) in [("v", &idle), ("w", &works), ("x", &moves_over), ("y", &down)] {
            put(&mut operator, name, status);
        }
        let spec = MigrationSpec::default();
        for name in operator.migrations.keys() {
            operator.admissions.want(name, &spec, Work::Move, true, 0);
            operator.cutovers.want(name, "p1", None, false, 0);
        }
        let sum = |(waiting, admitted): (usize, usize)| waiting + admitted;
        let held = |operator: &Operator| [operator.admissions.counts(), operator.cutovers.counts()].map(sum);
        let all = CANCELS_MAX + 4;
        assert_eq!(held(&operator), [all, all]);
        operator.cancel_in_turns(Moment(0));
        assert_eq!(held(&operator), [all - 1, all - 2], "of slots `v`, of places `v` and `w`");
    }

    #[test]
    fn a_turn_gives_up_so_many_and_all_have_theirs_in_the_end() {
        let (mut cancels, mut left, at) = (Cancels::default(), ranks(2 * CANCELS_MAX + 7), Moment(0));
        let mut turns = Vec::new();
        while !left.is_empty() {
            let ahead = left.iter().filter(|rank| cancels.is_ahead(rank, at)).count();
            assert_eq!(ahead, left.len(), "none of them is decided on before");
            let (turn, _) = cancels.turn(left.iter().cloned(), at);
            left.retain(|rank| !turn.contains(rank));
            assert_eq!(cancels.had(&turn, &Ended::default(), at), None);
            turns.push(turn.len());
        }
        assert_eq!(turns, [CANCELS_MAX, CANCELS_MAX, 7]);
        // One that comes late has its turn, too.
        assert_eq!(cancels.turn(ranks(1).into_iter(), at).0, [idle("vm-0000")]);
    }

    #[test]
    fn what_is_refused_holds_up_none_of_the_others_and_has_another_turn_after_a_pause() {
        fn is_refused(name: &str) -> bool {
            name.ends_with('3')
        }
        let (mut cancels, mut left) = (Cancels::default(), ranks(2 * CANCELS_MAX + 20));
        let mut round = |cancels: &mut Cancels, at: Moment| {
            let mut turns = 0;
            loop {
                let (turn, _) = cancels.turn(left.iter().cloned(), at);
                let refused =
                    turn.iter().map(|(_, name)| name).filter(|name| is_refused(name)).cloned().collect();
                left.retain(|rank| !turn.contains(rank) || is_refused(&rank.1));
                turns += 1;
                let ended = Ended { refused, stopped: None };
                if let Some(told) = cancels.had(&turn, &ended, at) {
                    return (turns, left.len(), told);
                }
            }
        };
        let words = "12 Migrations could not be cancelled, and are tried again: vm-0003".to_string();
        assert_eq!(round(&mut cancels, Moment(0)), (3, 12, words.clone()));
        // Until then they are decided on like all others.
        assert!(!cancels.is_due(Moment(14)) && !cancels.is_ahead(&idle("vm-0003"), Moment(14)));
        assert!(cancels.is_ahead(&idle("vm-0003"), Moment(15)));
        assert_eq!(round(&mut cancels, Moment(15)), (1, 12, words));
        assert_eq!([44, 45].map(|at| cancels.is_due(Moment(at))), [false, true], "pauses grow");
    }

    #[test]
    fn one_that_is_refused_keeps_none_of_the_others() {
        let turn = ["a", "b", "c", "d"].map(idle);
        let mut done = Vec::new();
        let ended = past_refusals(&turn, |name| {
            done.push(idle(name));
            match name {
                "a" => Err(KubeError { kind: KubeErrorKind::Refused, what: "words".into() }),
                "b" => Err(KubeError { kind: KubeErrorKind::Conflict, what: "made anew".into() }),
                "c" => Err(KubeError { kind: KubeErrorKind::Denied, what: "no right".into() }),
                _ => Ok(()),
            }
        });
        assert_eq!(done, turn);
        assert_eq!(ended.refused, ["a: words", "c: no right"]);
        assert!(ended.stopped.is_none());
        // What nobody answers is asked for once.
        let mut asked = 0;
        let ended = past_refusals(&turn, |_| {
            asked += 1;
            Err(KubeError { kind: KubeErrorKind::Unreachable, what: "no answer".into() })
        });
        assert_eq!((ended.stopped.unwrap().1.kind, asked), (KubeErrorKind::Unreachable, 1));
    }

    #[test]
    fn one_at_which_the_server_fails_holds_up_none_of_the_others() {
        let (mut cancels, left) = (Cancels::default(), ["a", "b", "c", "d"].map(idle));
        let fails = |name: &str| {
            let kind = match name {
                "a" => KubeErrorKind::Refused,
                "b" => KubeErrorKind::Server,
                _ => return Ok(()),
            };
            Err(KubeError { kind, what: "words".into() })
        };
        let turn = |cancels: &mut Cancels, at: i64| {
            let (turn, _) = cancels.turn(left.iter().cloned(), Moment(at));
            let ended = past_refusals(&turn, fails);
            let told = cancels.had(&turn, &ended, Moment(at));
            (turn, told, left.iter().any(|rank| cancels.is_ahead(rank, Moment(at))))
        };
        assert_eq!(turn(&mut cancels, 0), (left.to_vec(), None, false));
        // In the pause after it all are decided on.
        assert_eq!([14, 15].map(|at| cancels.is_ahead(&idle("c"), Moment(at))), [false, true]);
        // What was refused before it is told at the end of the round.
        let told = "2 Migrations could not be cancelled, and are tried again: a: words".to_string();
        assert_eq!(turn(&mut cancels, 15), (vec![idle("c"), idle("d")], Some(told), false));
    }

    #[test]
    fn what_waits_for_its_turn_is_decided_on_while_the_server_fails() {
        let (_folder, mut operator) = operator();
        operator.put(Kind::Plan, &plan("p1", true));
        let job = JobRef { name: "job".into(), uid: None, work: Work::Move, at: Moment(0), overdue: false };
        for number in 0..CANCELS_MAX + 4 {
            let job = Some(job.clone()).filter(|_| number != 1);
            put(&mut operator, &format!("vm-{number:04}"), &Status { job, ..Status::default() });
        }
        operator.due.clear();
        let names = ["vm-0000", "vm-0001", "vm-0050", "vm-0051"];
        let waits = |operator: &Operator| names.map(|name| operator.waits_for_cancel(name, Moment(0)));
        assert_eq!(waits(&operator), [true; 4]);
        operator.cancel_in_turns(Moment(0));
        assert_eq!(waits(&operator), [false; 4]);
        // Those whose turn it was, and ends of workers that would wait for theirs. One that does nothing goes last, whatever its name.
        assert_eq!(names.map(|name| operator.due.contains(name)), [true, false, true, true]);
    }

    #[test]
    fn what_has_a_worker_or_leave_to_move_over_has_its_turn_first() {
        let (_folder, mut operator) = operator();
        let job = JobRef { name: "job".into(), uid: None, work: Work::Move, at: Moment(0), overdue: false };
        put(&mut operator, "a", &Status::default());
        put(&mut operator, "b", &Status { job: Some(job), ..Status::default() });
        put(&mut operator, "c", &Status { cutover_epoch: Some(1), ..Status::default() });
        let (turn, _) = Cancels::default().turn(operator.migrations.values().map(rank), Moment(0));
        assert_eq!(turn, [(false, "b".to_string()), (false, "c".to_string()), idle("a")]);
    }
}
