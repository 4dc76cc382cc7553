//! Generated fleets: how near the schedule comes to what no schedule can beat, and what a counter per host comes to.
#![allow(clippy::unwrap_used)]

mod support;

use drover_schedule::simulate::{Fleet, Outcome, lower_bound_ms, simulate};
use drover_schedule::{Budgets, Order};

/// Parts of the lower bound that the schedule may take beyond it.
const BEYOND_MAX: f64 = 0.05;
/// The same while it finds out how many disks of a host are worth it.
const CLIMBING_MAX: f64 = 0.10;

fn ratio(fleet: &Fleet) -> (f64, Outcome) {
    let outcome = simulate(fleet);
    assert!(outcome.vms.iter().all(|vm| vm.end_ms.is_some()), "a VM never arrived");
    (outcome.makespan_ms as f64 / lower_bound_ms(fleet) as f64, outcome)
}

fn fifo(fleet: &Fleet) -> Fleet {
    let budgets = Budgets { order: Order::Arrival, ..fleet.budgets.clone() };
    Fleet { budgets, climb_from: None, ..fleet.clone() }
}

#[test]
fn twenty_fleets_end_within_five_percent_of_the_lower_bound() {
    println!("fleet                 VMs  bound/min  schedule climbing   FIFO");
    let mut worst: f64 = 0.0;
    for seed in 0..20 {
        let (name, fleet) = support::fleet(seed);
        let (ours, _) = ratio(&Fleet { climb_from: None, ..fleet.clone() });
        let (climbing, _) = ratio(&fleet);
        let (counter, _) = ratio(&fifo(&fleet));
        let bound = lower_bound_ms(&fleet) as f64 / 60_000.0;
        println!("{name:20} {:4} {bound:10.0} {ours:9.3} {climbing:8.3} {counter:6.3}", fleet.vms.len());
        worst = worst.max(ours);
        assert!(climbing <= 1.0 + CLIMBING_MAX, "{name}: climbing took {climbing:.3} of its lower bound");
    }
    assert!(worst <= 1.0 + BEYOND_MAX, "the worst took {worst:.3} of its lower bound");
}
