//! The model against published figures: some rows fit it, the others check it.
//!
//! The figures are those of the Migration Toolkit for Virtualization (performance recommendations, 2025). Its plans start their
//! VMs one after the other, which the model takes from one row; drover's plans do not.

use drover_schedule::simulate::{Capacities, Fleet, Vm, WarmMove, simulate};
use drover_schedule::{Budgets, Disk, Job, Order, Tenant, Window};
use serde::Serialize;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MB: f64 = 1e6;

/// Data of each VM of the cold rows.
const DATA_BYTES: u64 = 35 * GIB;
/// Of the rows of plans; it is not published. Up to 4.9 GiB the line does not limit, and any size gives the same.
const SMALL_BYTES: u64 = 2 * GIB;
/// Fitted by the row of one VM.
const STREAM: u64 = 100 * MIB;
/// Fitted by the row of 20 VMs.
const HOST: u64 = 284 * MIB;
/// Fitted by the row of eight hosts: what they share.
const SHARED: u64 = 1_173 * MIB;
/// Fitted by the row of 500 VMs in one plan: a plan starts a VM so many milliseconds after the one before.
const START_EVERY_MS: u64 = 37_200;
/// Fitted by the row of one warm disk.
const WARM_STREAM: u64 = 76_500_000;
/// Fitted by the row of ten warm VMs.
const WARM_HOST: u64 = 253_000_000;
/// Fitted by the row of 70 warm VMs.
const WARM_SHARED: u64 = 802_000_000;
/// Published: a quarter less beyond 200 warm disks at once.
const MANY_DISKS: usize = 200;
const MANY_DISKS_LOSS: f64 = 0.25;

/// What a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// The model has a number from it.
    Fitted,
    /// The model knows nothing of it.
    Checked,
    /// Nothing is published.
    Predicted,
}

/// Unit of a row's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Figure {
    /// Minutes.
    #[serde(rename = "min")]
    Minutes,
    /// MiB/s.
    #[serde(rename = "MiB/s")]
    MibPerSecond,
    /// MB/s.
    #[serde(rename = "MB/s")]
    MbPerSecond,
}

/// A row: what was published, and what the model gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The experiment.
    pub name: &'static str,
    /// What it is for.
    pub used: Use,
    /// Unit of both figures.
    pub unit: Figure,
    /// What was published.
    pub published: Option<f64>,
    /// What the model gives.
    pub model: f64,
    /// How far off that is, as a share of what was published.
    pub off: Option<f64>,
}

impl Row {
    fn new(
        name: &'static str,
        used: Use,
        unit: Figure,
        published: impl Into<Option<f64>>,
        model: f64,
    ) -> Row {
        let published = published.into();
        Row { name, used, unit, published, model, off: published.map(|it| model / it - 1.0) }
    }
}

/// All experiments, run anew.
pub fn rows() -> Vec<Row> {
    use Figure::{MbPerSecond, MibPerSecond, Minutes};
    use Use::{Checked, Fitted, Predicted};
    let rate = |vms: usize, hosts: usize| cold(vms, hosts).rate / MIB as f64;
    let minutes = |vms: usize, hosts: usize| cold(vms, hosts).seconds / 60.0;
    vec![
        Row::new("1 VM, 1 host", Fitted, MibPerSecond, 100.0, rate(1, 1)),
        Row::new("1 VM, 1 host", Checked, Minutes, 6.0, minutes(1, 1)),
        Row::new("10 VMs, 1 host", Checked, MibPerSecond, 272.0, rate(10, 1)),
        Row::new("10 VMs, 1 host", Checked, Minutes, 22.0, minutes(10, 1)),
        Row::new("20 VMs, 1 host", Fitted, MibPerSecond, 284.0, rate(20, 1)),
        Row::new("20 VMs, 1 host", Checked, Minutes, 42.0, minutes(20, 1)),
        Row::new("80 VMs, 1 host", Checked, MibPerSecond, 294.0, rate(80, 1)),
        Row::new("80 VMs, 1 host", Checked, Minutes, 163.0, minutes(80, 1)),
        Row::new("80 VMs, 8 hosts", Fitted, MibPerSecond, 1_173.0, rate(80, 8)),
        Row::new("80 VMs, 8 hosts", Checked, Minutes, 41.0, minutes(80, 8)),
        Row::new("500 VMs in 1 plan", Fitted, Minutes, 310.0, plans(500, 1, START_EVERY_MS)),
        Row::new("800 VMs in 8 plans", Checked, Minutes, 57.0, plans(800, 8, START_EVERY_MS)),
        Row::new("5,000 VMs in 40 plans", Predicted, Minutes, None, plans(5_000, 40, START_EVERY_MS)),
        Row::new("500 VMs in 1 plan, drover", Predicted, Minutes, None, plans(500, 1, 0)),
        Row::new("800 VMs in 1 plan, drover", Predicted, Minutes, None, plans(800, 1, 0)),
        Row::new("800 VMs in 8 plans, drover", Predicted, Minutes, None, plans(800, 8, 0)),
        Row::new("5,000 VMs in 40 plans, drover", Predicted, Minutes, None, plans(5_000, 40, 0)),
        Row::new("1 warm disk", Fitted, MbPerSecond, 76.5, warm(1, 1, 1)),
        Row::new("10 warm VMs, 1 host", Fitted, MbPerSecond, 253.0, warm(10, 1, 1)),
        Row::new("70 warm VMs, 210 disks, 8 hosts", Fitted, MbPerSecond, 802.0, warm(70, 3, 8)),
        Row::new("200 warm VMs, 400 disks, 6 hosts", Checked, MbPerSecond, 667.0, warm(200, 2, 6)),
    ]
}

struct Ran {
    seconds: f64,
    rate: f64,
}

fn cold(vms: usize, hosts: usize) -> Ran {
    let capacities =
        Capacities { stream: Some(STREAM), host: Some(HOST), pool: Some(SHARED), ..Capacities::default() };
    let vms = (0..vms).map(|at| vm(at, hosts, 0, &[DATA_BYTES])).collect();
    ran(&Fleet { vms, capacities, ..Fleet::default() })
}

/// Minutes of so many VMs in so many plans, each of which starts its VMs one after the other.
fn plans(vms: usize, plans: usize, every_ms: u64) -> f64 {
    let capacities =
        Capacities { stream: Some(STREAM), host: Some(HOST), pool: Some(SHARED), ..Capacities::default() };
    let vm = |at: usize| {
        let mut vm = vm(at, HOSTS_OF_PLANS, at % plans, &[SMALL_BYTES]);
        let from_ms = (at / plans) as u64 * every_ms;
        vm.job.windows = if every_ms > 0 { vec![Window { from_ms, to_ms: u64::MAX }] } else { Vec::new() };
        vm
    };
    let order = if every_ms > 0 { Order::Arrival } else { Order::Critical };
    let budgets = Budgets { order, ..Budgets::default() };
    ran(&Fleet { vms: (0..vms).map(vm).collect(), capacities, budgets, ..Fleet::default() }).seconds / 60.0
}

const HOSTS_OF_PLANS: usize = 8;

/// MB/s of the first passes of warm VMs.
fn warm(vms: usize, disks: usize, hosts: usize) -> f64 {
    let loss = if vms * disks > MANY_DISKS + MANY_DISKS / 20 { MANY_DISKS_LOSS } else { 0.0 };
    let capacities = Capacities {
        stream: Some(WARM_STREAM),
        host: Some(WARM_HOST),
        pool: Some((WARM_SHARED as f64 * (1.0 - loss)) as u64),
        ..Capacities::default()
    };
    let vm = |at: usize| Vm {
        warm: Some(WarmMove { interval_ms: 1, ..WarmMove::default() }),
        ..vm(at, hosts, 0, &vec![DATA_BYTES; disks])
    };
    let budgets = Budgets { vms_per_host: u32::MAX, disks: u32::MAX, ..Budgets::default() };
    ran(&Fleet { vms: (0..vms).map(vm).collect(), capacities, budgets, ..Fleet::default() }).rate / MB
}

fn vm(at: usize, hosts: usize, plan: usize, disks: &[u64]) -> Vm {
    let disk = |bytes: &u64| Disk { bytes: *bytes, datastore: "ds".into(), pool: Some("target".into()) };
    let job = Job {
        name: format!("vm-{at}"),
        host: format!("esx{}", at % hosts),
        disks: disks.iter().map(disk).collect(),
        ..Job::default()
    };
    Vm { tenant: Tenant(plan as u64), job, ..Vm::default() }
}

fn ran(fleet: &Fleet) -> Ran {
    let outcome = simulate(fleet);
    let seconds = outcome.makespan_ms as f64 / 1000.0;
    let bytes: u64 = fleet.vms.iter().map(|vm| vm.job.bytes()).sum();
    Ran { seconds, rate: bytes as f64 / seconds.max(0.001) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_fit_are_met_and_rows_that_check_are_near() {
        for row in rows() {
            let Some(off) = row.off else { continue };
            let most = if row.used == Use::Fitted { 0.02 } else { 0.12 };
            assert!(off.abs() <= most, "{}: {:.1} against {:?}", row.name, row.model, row.published);
        }
    }

    #[test]
    fn for_drover_one_plan_is_as_good_as_eight() {
        let (one, eight) = (plans(800, 1, 0), plans(800, 8, 0));
        assert!((one / eight - 1.0).abs() < 0.02, "{one} and {eight} minutes");
    }
}
