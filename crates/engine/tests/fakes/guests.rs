//! Guests that take their time to shut down.

use std::collections::BTreeMap;
use std::time::Duration;

use drover_engine::{Cause, Clock, ProviderError};
use drover_types::inventory::{PowerState, Vm};

use super::{State, World};

/// How guests shut down.
#[derive(Default)]
pub struct Shutdowns {
    /// How long they take, in milliseconds; at once if zero.
    takes_ms: i64,
    /// When those that were asked are off, by VM.
    off_ms: BTreeMap<String, i64>,
}

impl World {
    /// From now on a guest that is asked to shut down takes this long.
    pub fn shutdowns_take(&self, time: Duration) {
        self.state().shutdowns.takes_ms = time.as_millis() as i64;
    }

    pub fn power(&self, id: &str) -> PowerState {
        let mut state = self.state();
        state.let_go_down(self.clock.now_ms());
        state.vms[id].power
    }

    pub(super) fn shuts_down(&self, vm: &Vm) -> Result<(), ProviderError> {
        let now_ms = self.clock.now_ms();
        self.call("shut down", &vm.name, |state| {
            let takes_ms = state.shutdowns.takes_ms;
            if takes_ms > 0 {
                state.shutdowns.off_ms.entry(vm.id.clone()).or_insert(now_ms + takes_ms);
            }
        })
    }

    pub(super) fn goes_off(&self, vm: &Vm, timeout: Duration) -> Result<(), ProviderError> {
        self.call("wait until off", &vm.name, |state| {
            let timeout_ms = timeout.as_millis() as i64;
            let off_ms = state.shutdowns.off_ms.get(&vm.id);
            let left_ms = off_ms.map_or(0, |off_ms| (off_ms - self.clock.now_ms()).max(0));
            self.clock.sleep(Duration::from_millis(left_ms.min(timeout_ms) as u64));
            if left_ms > timeout_ms {
                return Err(ProviderError::new(Cause::Source, format!("{} does not shut down", vm.name)));
            }
            state.shutdowns.off_ms.remove(&vm.id);
            state.vms.get_mut(&vm.id).unwrap().power = PowerState::Off;
            Ok(())
        })?
    }
}

impl State {
    /// Those whose time has come are off.
    pub fn let_go_down(&mut self, now_ms: i64) {
        let (vms, is_due) = (&mut self.vms, |off_ms: i64| off_ms <= now_ms);
        self.shutdowns.off_ms.retain(|id, off_ms| {
            if is_due(*off_ms) {
                vms.get_mut(id).unwrap().power = PowerState::Off;
            }
            !is_due(*off_ms)
        });
    }
}
