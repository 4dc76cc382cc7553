//! What decisions cost in large fleets. Run by hand, since it measures time:
//! `cargo test --release -p drover-schedule --test large -- --ignored --nocapture`
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use drover_schedule::simulate::{Fleet, simulate};
use drover_schedule::{Ended, JobId, Scheduler, Tenant};

/// Times of decisions of a fleet whose running VMs end one after the other.
fn decisions(fleet: &Fleet) -> (Duration, Vec<Duration>) {
    let mut scheduler = Scheduler::new(fleet.budgets.clone());
    let jobs = fleet.vms.iter().map(|vm| vm.job.clone()).collect();
    let began = Instant::now();
    scheduler.add(Tenant(0), jobs, 0);
    let added = began.elapsed();
    let mut times = Vec::new();
    let mut running = std::collections::VecDeque::<JobId>::new();
    loop {
        let began = Instant::now();
        let admission = scheduler.next(0);
        times.push(began.elapsed());
        match (admission, running.pop_front()) {
            (Some(admission), oldest) => {
                running.extend(oldest);
                running.push_back(admission.job);
            }
            (None, Some(oldest)) => scheduler.finished(oldest, Ended::Arrived, 0),
            (None, None) => break,
        }
    }
    assert!(scheduler.is_done());
    times.sort();
    (added, times)
}

#[test]
#[ignore = "it measures time"]
fn decisions_of_large_fleets() {
    println!("  VMs  disks  decisions    add/ms  mean/us   p99/us   max/us  simulated in/s  makespan/h");
    for vms in [100, 1000, 5000, 10_000, 20_000] {
        let fleet = support::large(vms, 40, 1);
        let disks: usize = fleet.vms.iter().map(|vm| vm.job.disks.len()).sum();
        let (added, times) = decisions(&fleet);
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let mean = us(times.iter().sum::<Duration>()) / times.len() as f64;
        let began = Instant::now();
        let outcome = simulate(&Fleet { climb_from: None, ..fleet });
        println!(
            "{vms:5} {disks:6} {:10} {:9.1} {mean:8.1} {:8.1} {:8.1} {:15.2} {:11.1}",
            times.len(),
            added.as_secs_f64() * 1e3,
            us(times[times.len() * 99 / 100]),
            us(*times.last().unwrap()),
            began.elapsed().as_secs_f64(),
            outcome.makespan_ms as f64 / 3.6e6,
        );
    }
}

#[test]
fn two_thousand_vms_in_forty_plans_end_as_in_one() {
    let hours = |tenants| {
        let fleet = Fleet { climb_from: None, ..support::large(2000, 16, tenants) };
        let outcome = simulate(&fleet);
        assert!(outcome.vms.iter().all(|vm| vm.end_ms.is_some()));
        outcome.makespan_ms as f64 / 3.6e6
    };
    let (one, many) = (hours(1), hours(40));
    assert!((one / many - 1.0).abs() < 0.02, "{one} h as one plan, {many} h as forty");
}
