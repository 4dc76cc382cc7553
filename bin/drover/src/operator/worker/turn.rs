//! A worker's turn to move over. No worker knows of the others, so the operator admits cutovers: a worker tells that it asks, makes its
//! passes, and learns from the status that it may.
//!
//! Leave that comes while it makes a pass is given back, so that another has it meanwhile. What keeps that apart from a cutover that begins:
//! it goes by leave only where the same answer says that it asks; it says that it does not only once its own schedule holds the cutover, which
//! nobody but this lets go again; and what the operator would write by what it said before is refused, since its Migration is another by then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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

/// What lets the VM move over, or holds it.
pub trait Gate: Send + Sync {
    /// Holds it as long as its guest runs, until that is taken back.
    fn hold(&self, held: bool);
    /// The same, unless it asks now or moves over. Whether it is held by that.
    fn hold_unless_asked(&self) -> bool;
    /// Whether it asks now, or moves over. It does not while it makes a pass.
    fn asks(&self) -> bool;
}

impl Gate for Schedule {
    fn hold(&self, held: bool) {
        self.hold_cutovers(held);
    }

    fn hold_unless_asked(&self) -> bool {
        Schedule::hold_unless_asked(self)
    }

    fn asks(&self) -> bool {
        self.asks_cutover()
    }
}

/// Of the one VM of a worker.
pub struct Turn {
    /// Whether the operator admits it; not by one of before.
    is_admitted: AtomicBool,
    gate: OnceLock<Arc<dyn Gate>>,
    /// Whether it is to be told that it asks; also while it makes a pass in which no leave came.
    asks: AtomicBool,
    /// What of that the operator knows.
    told: AtomicBool,
    /// Whether it goes by leave. Under its lock the gate is opened, or closed for a pass: an open one without leave would let it move over
    /// untested.
    had: Mutex<bool>,
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
            gate: OnceLock::new(),
            asks: AtomicBool::new(false),
            told: AtomicBool::new(false),
            had: Mutex::new(false),
        }
    }

    /// The schedule of its run.
    pub fn schedule(&self, limits: &Limits, store: &Store) -> Result<Arc<Schedule>, End> {
        let schedule = Schedule::of_state(budgets_of(limits), store.folder())
            .map_err(|error| Failure::new(Exit::State, format!("{}: {error}", store.folder().display())))?;
        let schedule = Arc::new(schedule);
        self.begin(schedule.clone());
        Ok(schedule)
    }

    fn begin(&self, gate: Arc<dyn Gate>) {
        gate.hold(self.is_admitted.load(Ordering::SeqCst));
        // A worker has one run.
        self.gate.get_or_init(|| gate);
    }

    /// Whether the operator does not know yet what it asks for.
    pub fn has_news(&self) -> bool {
        let asks_now = self.gate.get().is_some_and(|gate| gate.asks());
        self.asks.fetch_or(asks_now, Ordering::SeqCst);
        let is_told = self.told.load(Ordering::SeqCst) == self.asks.load(Ordering::SeqCst);
        self.is_admitted.load(Ordering::SeqCst) && !is_told
    }

    /// It waits for its next pass, and would not move over before. Should it be told to, it needs leave anew.
    pub fn asks_no_more(&self) {
        let mut had = self.had();
        if let Some(gate) = self.gate.get().filter(|_| self.is_admitted.load(Ordering::SeqCst)) {
            gate.hold_unless_asked();
        }
        self.asks.store(false, Ordering::SeqCst);
        *had = false;
    }

    /// Whether it learned that it may, also if that was taken back since: then what goes by it is refused.
    pub fn had_leave(&self) -> bool {
        *self.had()
    }

    fn had(&self) -> MutexGuard<'_, bool> {
        self.had.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what the Migration says, and writes what it asks for; what the server keeps of that is in the answer. Unsaid, it is said
    /// the next time.
    pub fn look(&self, fence: &Fence, found: &Value, write: impl Fn(&Value) -> Result<Value, KubeError>) {
        let Some(gate) = self.gate.get().filter(|_| self.is_admitted.load(Ordering::SeqCst)) else { return };
        // As the operator sees it: of what was written the answer may have been lost.
        let told = found["status"]["worker"]["asksCutover"] == true;
        self.told.store(told, Ordering::SeqCst);
        let may = told && fence.may_cut_over(found);
        let mut had = self.had();
        match gate.hold_unless_asked() {
            // It makes a pass: another has its place meanwhile.
            true if may => self.asks.store(false, Ordering::SeqCst),
            true => {}
            false => {
                *had |= may;
                gate.hold(!may);
            }
        }
        drop(had);
        if !self.has_news() {
            return;
        }
        let asks = self.asks.load(Ordering::SeqCst);
        // From here on it goes by no leave that it had before.
        if !asks && !gate.hold_unless_asked() {
            return;
        }
        let Ok(answer) = write(&fence.write(&[(ASKS, json!(asks))])) else { return };
        self.told.store(asks, Ordering::SeqCst);
        if answer["status"]["worker"]["asksCutover"] != asks {
            crate::out::say(
                "the cluster does not keep that it asks to move over (apply deploy/crds.yaml of this version of drover): it moves over \
                 without leave of the operator",
            );
            self.is_admitted.store(false, Ordering::SeqCst);
            gate.hold(false);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::sync::Weak;
    use std::sync::mpsc::channel;
    use std::thread::JoinHandle;
    use std::time::Duration;

    use drover_kubevirt::KubeErrorKind;

    use super::*;

    fn fence() -> Fence {
        Fence { uid: "m1".into(), epoch: 3, pod: "p".into() }
    }

    /// A VM that stands there to move over, or makes a pass.
    #[derive(Default)]
    struct Vm {
        stands: AtomicBool,
        held: AtomicBool,
    }

    impl Gate for Vm {
        fn hold(&self, held: bool) {
            self.held.store(held, Ordering::SeqCst);
        }

        fn hold_unless_asked(&self) -> bool {
            let is_unasked = !self.asks();
            self.held.fetch_or(is_unasked, Ordering::SeqCst);
            is_unasked
        }

        fn asks(&self) -> bool {
            self.stands.load(Ordering::SeqCst)
        }
    }

    /// A worker, and what the server has of its Migration.
    struct World {
        turn: Turn,
        vm: Arc<Vm>,
        migration: RefCell<Value>,
        written: Cell<usize>,
        /// Whether answers are lost.
        is_deaf: Cell<bool>,
    }

    impl World {
        fn new() -> World {
            let (turn, vm) = (Turn::admitted(true), Arc::new(Vm::default()));
            turn.begin(vm.clone());
            let migration = RefCell::new(json!({"status": {"worker": {}}}));
            World { turn, vm, migration, written: Cell::new(0), is_deaf: Cell::new(false) }
        }

        /// The operator has written that the worker of an epoch may.
        fn lets(&self, epoch: u64) {
            self.migration.borrow_mut()["status"]["cutoverEpoch"] = json!(epoch);
        }

        /// It looks, with the VM at a pass or not; gives how often it has written, and whether the VM is held.
        fn looks(&self, stands: bool) -> (usize, bool) {
            self.vm.stands.store(stands, Ordering::SeqCst);
            let found = self.migration.borrow().clone();
            self.turn.look(&fence(), &found, |operations| {
                let asks = operations.as_array().and_then(|all| all.last()).map(|it| it["value"].clone());
                self.migration.borrow_mut()["status"]["worker"]["asksCutover"] = json!(asks);
                self.written.set(self.written.get() + 1);
                match self.is_deaf.get() {
                    true => Err(KubeError { kind: KubeErrorKind::Unreachable, what: "no answer".into() }),
                    false => Ok(self.migration.borrow().clone()),
                }
            });
            (self.written.get(), self.vm.held.load(Ordering::SeqCst))
        }

        /// Whether the operator sees that it asks.
        fn asks(&self) -> bool {
            self.migration.borrow()["status"]["worker"]["asksCutover"] == true
        }
    }

    #[test]
    fn it_tells_what_it_asks_for_once_and_moves_over_with_leave() {
        let world = World::new();
        assert_eq!((world.looks(false), world.asks()), ((0, true), false));
        world.vm.stands.store(true, Ordering::SeqCst);
        assert!(world.turn.has_news());
        assert_eq!((world.looks(true), world.looks(true)), ((1, true), (1, true)));
        assert!(world.asks());
        world.lets(2);
        assert_eq!((world.looks(true), world.turn.had_leave()), ((1, true), false), "of another epoch");
        // It makes a pass meanwhile, and keeps its place.
        assert_eq!((world.looks(false), world.asks()), ((1, true), true));
        world.lets(3);
        assert_eq!((world.looks(true), world.turn.had_leave()), ((1, false), true));
        world.lets(0);
        assert_eq!(
            (world.looks(true), world.turn.had_leave()),
            ((1, true), true),
            "what goes by leave that was taken back is refused"
        );
        world.turn.asks_no_more();
        assert_eq!((world.looks(false), world.asks(), world.turn.had_leave()), ((2, true), false, false));
    }

    #[test]
    fn leave_that_comes_in_a_pass_is_given_back_and_nothing_goes_by_it_any_more() {
        for is_deaf in [false, true] {
            let world = World::new();
            world.looks(true);
            world.lets(3);
            world.is_deaf.set(is_deaf);
            assert_eq!((world.looks(false), world.asks()), ((2, true), false));
            world.is_deaf.set(false);
            // The pass is over, and the operator has not looked yet: it may take that leave back at any moment.
            assert_eq!((world.looks(true), world.asks()), ((3, true), true));
            assert!(!world.turn.had_leave());
            // It had leave again, or still, when it asked anew: what would take it back by what it said before is refused.
            assert_eq!((world.looks(true), world.turn.had_leave()), ((3, false), true));
        }
    }

    #[test]
    fn one_that_moves_over_by_its_leave_does_not_give_it_back() {
        let world = World::new();
        world.looks(true);
        world.lets(3);
        assert_eq!(world.looks(true), (1, false));
        // It waited for its next pass a moment ago, and moves over now.
        world.turn.asks_no_more();
        assert_eq!((world.looks(true), world.asks()), ((1, false), true));
    }

    /// A VM that makes a pass, waits for the next one and stands there again, all in the very moment in which its gate is opened.
    #[derive(Default)]
    struct Passer {
        vm: Arc<Vm>,
        turn: OnceLock<Weak<Turn>>,
        waits: Mutex<Option<JoinHandle<()>>>,
    }

    impl Gate for Passer {
        fn hold(&self, held: bool) {
            if let (false, Some(turn)) = (held, self.turn.get().and_then(Weak::upgrade)) {
                self.vm.stands.store(false, Ordering::SeqCst);
                let ((sender, is_over), vm) = (channel(), self.vm.clone());
                let waits = std::thread::spawn(move || {
                    turn.asks_no_more();
                    vm.stands.store(true, Ordering::SeqCst);
                    let _ = sender.send(());
                });
                // It is not over before, where the gate is opened under the lock.
                let _ = is_over.recv_timeout(Duration::from_millis(300));
                *self.waits.lock().unwrap() = Some(waits);
            }
            self.vm.hold(held);
        }

        fn hold_unless_asked(&self) -> bool {
            self.vm.hold_unless_asked()
        }

        fn asks(&self) -> bool {
            self.vm.asks()
        }
    }

    #[test]
    fn a_gate_that_is_opened_while_the_vm_makes_a_pass_is_not_open_without_leave() {
        let (turn, gate) = (Arc::new(Turn::admitted(true)), Arc::new(Passer::default()));
        turn.begin(gate.clone());
        gate.turn.get_or_init(|| Arc::downgrade(&turn));
        gate.vm.stands.store(true, Ordering::SeqCst);
        let may = json!({"status": {"worker": {"asksCutover": true}, "cutoverEpoch": 3}});
        turn.look(&fence(), &may, |_| Ok(json!({"status": {"worker": {"asksCutover": false}}})));
        gate.waits.lock().unwrap().take().unwrap().join().unwrap();
        assert!(gate.vm.held.load(Ordering::SeqCst) && !turn.had_leave());
    }

    #[test]
    fn without_an_operator_or_a_cluster_that_knows_of_it_nobody_is_asked() {
        let vm = || Arc::new(Vm { stands: AtomicBool::new(true), ..Vm::default() });
        let turn = Turn::admitted(false);
        turn.begin(vm());
        turn.look(&fence(), &Value::Null, |_| panic!("it asks nobody"));
        let (turn, vm) = (Turn::admitted(true), vm());
        turn.begin(vm.clone());
        turn.look(&fence(), &Value::Null, |_| Ok(json!({"status": {"worker": {}}})));
        assert!(!turn.is_admitted.load(Ordering::SeqCst) && !vm.held.load(Ordering::SeqCst));
        turn.look(&fence(), &Value::Null, |_| panic!("it asks once"));
    }
}
