//! A worker's turn to move over. No worker knows of the others, so the operator admits cutovers: a worker tells that it asks, makes its
//! passes, and learns from the status that it may.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use drover_engine::{Schedule, Store, budgets_of};
use drover_kubevirt::KubeError;
use drover_operator::fence::Fence;
use drover_operator::objects::CUTOVERS;
use drover_plan::Limits;
use serde_json::{Value, json};

use super::End;
use crate::exit::{Exit, Failure};

/// The field of what a worker says.
const ASKS: &str = "worker/asksCutover";

/// Of the one VM of a worker.
pub struct Turn {
    /// Whether the operator admits it; not by one of before.
    is_admitted: AtomicBool,
    schedule: OnceLock<Arc<Schedule>>,
    /// Whether it asks; also while it makes a pass meanwhile.
    asks: AtomicBool,
    /// What of that was told.
    told: AtomicBool,
    had: AtomicBool,
}

impl Turn {
    /// Of a worker that moves a warm VM, or another.
    pub fn new(is_warm: bool) -> Turn {
        let is_admitted = is_warm && std::env::var(CUTOVERS.0).is_ok_and(|it| it == CUTOVERS.1);
        Turn::admitted(is_admitted)
    }

    fn admitted(is_admitted: bool) -> Turn {
        Turn {
            is_admitted: AtomicBool::new(is_admitted),
            schedule: OnceLock::new(),
            asks: AtomicBool::new(false),
            told: AtomicBool::new(false),
            had: AtomicBool::new(false),
        }
    }

    /// The schedule of its run.
    pub fn schedule(&self, limits: &Limits, store: &Store) -> Result<Arc<Schedule>, End> {
        let schedule = Schedule::of_state(budgets_of(limits), store.folder())
            .map_err(|error| Failure::new(Exit::State, format!("{}: {error}", store.folder().display())))?;
        Ok(self.begin(schedule))
    }

    fn begin(&self, schedule: Schedule) -> Arc<Schedule> {
        schedule.hold_cutovers(self.is_admitted.load(Ordering::SeqCst));
        self.schedule.get_or_init(|| Arc::new(schedule)).clone()
    }

    /// Whether the operator does not know yet what it asks for.
    pub fn has_news(&self) -> bool {
        let asks_now = self.schedule.get().is_some_and(|schedule| schedule.asks_cutover());
        self.asks.fetch_or(asks_now, Ordering::SeqCst);
        let is_told = self.told.load(Ordering::SeqCst) == self.asks.load(Ordering::SeqCst);
        self.is_admitted.load(Ordering::SeqCst) && !is_told
    }

    /// It waits for its next pass, and would not move over before.
    pub fn asks_no_more(&self) {
        self.asks.store(false, Ordering::SeqCst);
        self.had.store(false, Ordering::SeqCst);
    }

    /// Whether it learned that it may, also if that was taken back since: then what goes by it is refused.
    pub fn had_leave(&self) -> bool {
        self.had.load(Ordering::SeqCst)
    }

    /// Takes in what the Migration says, and writes what it asks for; what the server keeps of that is in the answer. Unsaid, it is said
    /// the next time.
    pub fn look(&self, fence: &Fence, found: &Value, write: impl Fn(&Value) -> Result<Value, KubeError>) {
        let Some(schedule) = self.schedule.get().filter(|_| self.is_admitted.load(Ordering::SeqCst)) else {
            return;
        };
        let may = fence.may_cut_over(found);
        self.had.fetch_or(may, Ordering::SeqCst);
        schedule.hold_cutovers(!may);
        if !self.has_news() {
            return;
        }
        let asks = self.asks.load(Ordering::SeqCst);
        let Ok(answer) = write(&fence.write(&[(ASKS, json!(asks))])) else { return };
        self.told.store(asks, Ordering::SeqCst);
        if answer["status"]["worker"]["asksCutover"] != asks {
            crate::out::say(
                "the cluster does not keep that it asks to move over (apply deploy/crds.yaml of this version of drover): it moves over \
                 without leave of the operator",
            );
            self.is_admitted.store(false, Ordering::SeqCst);
            schedule.hold_cutovers(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use drover_schedule::Budgets;

    use super::*;

    fn fence() -> Fence {
        Fence { uid: "m1".into(), epoch: 3, pod: "p".into() }
    }

    /// What the server answers that keeps all, or forgets what it does not know.
    fn kept(operations: &Value, keeps: bool) -> Value {
        let asks = operations.as_array().and_then(|all| all.last()).map(|it| it["value"].clone());
        json!({"status": {"worker": {"asksCutover": asks.filter(|_| keeps)}}})
    }

    #[test]
    fn it_tells_what_it_asks_for_once_and_moves_over_with_leave() {
        let turn = Turn::admitted(true);
        let schedule = turn.begin(Schedule::new(Budgets::default()));
        let written = RefCell::new(Vec::new());
        let look = |epoch: u64| {
            turn.look(&fence(), &json!({"status": {"cutoverEpoch": epoch}}), |operations| {
                written.borrow_mut().push(operations.to_string());
                Ok(kept(operations, true))
            });
            written.borrow().len()
        };
        assert_eq!((look(0), turn.had_leave()), (0, false));
        turn.asks.store(true, Ordering::SeqCst);
        assert!(turn.has_news());
        assert_eq!((look(2), look(2), turn.had_leave()), (1, 1, false), "of another epoch");
        assert!(written.borrow()[0].contains("/status/worker/asksCutover"));
        assert_eq!((look(3), turn.had_leave()), (1, true));
        assert_eq!(
            (look(0), turn.had_leave()),
            (1, true),
            "what goes by leave that was taken back is refused"
        );
        turn.asks_no_more();
        assert_eq!((look(0), turn.had_leave()), (2, false));
        assert!(!schedule.asks_cutover());
    }

    #[test]
    fn without_an_operator_or_a_cluster_that_knows_of_it_nobody_is_asked() {
        let turn = Turn::admitted(false);
        turn.begin(Schedule::new(Budgets::default()));
        turn.asks.store(true, Ordering::SeqCst);
        turn.look(&fence(), &Value::Null, |_| panic!("it asks nobody"));
        let turn = Turn::admitted(true);
        turn.begin(Schedule::new(Budgets::default()));
        turn.asks.store(true, Ordering::SeqCst);
        turn.look(&fence(), &Value::Null, |operations| Ok(kept(operations, false)));
        assert!(!turn.is_admitted.load(Ordering::SeqCst));
        turn.look(&fence(), &Value::Null, |_| panic!("it asks once"));
    }
}
