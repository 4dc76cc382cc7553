//! Made-up data for tests.

use drover_engine::{
    DiskReport, DiskRow, Downtime, EventRow, PassKind, PassRow, PassState, PhaseTime, PlanReport, PlanRow,
    PlanState, RatePoint, RunFacts, RunRow, VmReport, VmRow, VmState, WarmReport, WarmRow, WaveReport,
    WaveState,
};
use drover_mover::Attribution;
use drover_types::{Wave, WaveWindow, Windows};

/// 2026-03-01 14:05:10 UTC.
pub(crate) const START: i64 = 1_772_373_910_000;

pub(crate) fn plan(name: &str, state: PlanState) -> PlanRow {
    let ended_ms = (state != PlanState::Running).then_some(START + 72_000);
    let pid = (state == PlanState::Running).then_some(4711);
    PlanRow {
        name: name.into(),
        text: String::new(),
        folder: "/plans".into(),
        state,
        pid,
        started_ms: START,
        ended_ms,
    }
}

pub(crate) fn vm(id: &str, name: &str, state: VmState) -> VmRow {
    VmRow {
        trace_id: "0af7651916cd43dd8448eb211c80319c".into(),
        id: id.into(),
        name: name.into(),
        site: None,
        target_host: None,
        wave: None,
        state,
        phase: Some("copy".into()),
        planned: String::new(),
        snapshot: None,
        switched_off: true,
        touched: false,
        started: None,
        error: None,
        cause: None,
        advice: None,
        started_ms: Some(START + 1000),
        ended_ms: Some(START + 61_000),
    }
}

pub(crate) fn disk(vm: &str, number: usize) -> DiskRow {
    DiskRow {
        vm: vm.into(),
        number,
        label: format!("Hard disk {}", number + 1),
        path: format!("/images/{vm}/disk{number}.raw").into(),
        size: 10 << 30,
        data_bytes: Some(2 << 30),
        read_bytes: Some(2 << 30),
        written_bytes: Some(2 << 30),
        resumed_bytes: Some(0),
        retries: Some(0),
        root: Some("a1".repeat(32)),
        target_root: Some("a1".repeat(32)),
        blocks_verified: Some(163_840),
        blocks: Some(163_840),
        differing: Some(0),
        copy_ms: Some(4000),
        verify_ms: Some(2000),
        attribution: None,
        note: None,
        link: None,
        read_bytes_all: None,
        written_bytes_all: None,
    }
}

pub(crate) fn disk_report(details: DiskRow) -> DiskReport {
    DiskReport {
        label: details.label.clone(),
        path: details.path.clone(),
        size: details.size,
        equal: details.blocks_verified.map(|_| details.differing == Some(0)),
        read_rate: details
            .read_bytes
            .zip(details.copy_ms)
            .map(|(bytes, ms)| bytes as f64 * 1000.0 / ms as f64),
        attribution: Some(Attribution {
            source_ns: 710,
            target_ns: 200,
            cpu_ns: 60,
            flush_ns: 20,
            idle_ns: 10,
        }),
        link: details.link.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        datastore: None,
        pool: None,
        details,
    }
}

fn phase(name: &str, from_s: i64, to_s: Option<i64>) -> PhaseTime {
    PhaseTime {
        phase: name.into(),
        started_ms: START + from_s * 1000,
        ended_ms: to_s.map(|s| START + s * 1000),
    }
}

fn event(at_s: i64, vm: &str, kind: &str, phase: Option<&str>, text: &str) -> EventRow {
    EventRow {
        at_ms: START + at_s * 1000,
        vm: Some(vm.into()),
        phase: phase.map(Into::into),
        kind: kind.into(),
        text: text.into(),
    }
}

fn run() -> RunRow {
    let facts = RunFacts {
        drover: "1.2.3".into(),
        user: "ann (uid 1000)".into(),
        host: "kvm1".into(),
        plan_file: "/plans/lab.yaml".into(),
        plan_blake3: "b2".repeat(32),
        source: "vc1".into(),
        source_product: "VMware vCenter Server 8.0.2".into(),
        source_uuid: "42-cafe".into(),
        ..RunFacts::default()
    };
    RunRow { at_ms: START, facts }
}

/// A VM with two disks that arrived, and one with hostile names that failed.
pub(crate) fn report() -> PlanReport {
    let done = VmReport {
        row: VmRow { started: Some("runs as process 42".into()), ..vm("vm-1", "web01", VmState::Done) },
        instance_uuid: Some("50-beef".into()),
        source_host: Some("esx1".into()),
        disks: vec![disk_report(disk("vm-1", 0)), disk_report(disk("vm-1", 1))],
        phases: vec![
            phase("check", 1, Some(2)),
            phase("copy", 2, Some(42)),
            phase("verify", 42, Some(55)),
            phase("start", 55, Some(61)),
        ],
        warm: None,
        undone_downtime_ms: None,
        hooks: Vec::new(),
        rehearsals: Vec::new(),
    };
    let half = DiskRow {
        read_bytes: Some(1 << 30),
        resumed_bytes: Some(1 << 30),
        retries: Some(3),
        root: None,
        target_root: None,
        blocks_verified: None,
        differing: None,
        copy_ms: None,
        note: Some("journal was cut".into()),
        ..disk("vm-2", 0)
    };
    let failed = VmReport {
        row: VmRow {
            error: Some("copy of <db> & \"co\"/Hard disk 1: write: no space left".into()),
            cause: Some("targetfull".into()),
            advice: Some("make room on the target, then `drover resume`".into()),
            ..vm("vm-2", "<db> & \"co\"'s", VmState::Failed)
        },
        instance_uuid: None,
        source_host: None,
        disks: vec![disk_report(half)],
        phases: vec![phase("check", 1, Some(2)), phase("copy", 2, None)],
        warm: None,
        undone_downtime_ms: None,
        hooks: Vec::new(),
        rehearsals: Vec::new(),
    };
    let point = |s: i64| RatePoint {
        at_ms: START + s * 1000,
        read_rate: 8e8 + 1e7 * (s % 7) as f64,
        written_rate: 7e8,
        disks: 3,
    };
    PlanReport {
        plan: plan("lab", PlanState::Incomplete),
        runs: vec![run()],
        vms: vec![done, failed],
        waves: vec![wave()],
        wave_hooks: Vec::new(),
        rates: (3..42).map(point).collect(),
        events: vec![
            event(1, "vm-1", "started", Some("check"), ""),
            event(61, "vm-1", "note", None, "runs as process 42"),
            event(61, "vm-2", "error", Some("copy"), "no <space> & \u{1b}[31mleft"),
        ],
    }
}

/// The wave of both VMs, which others are after.
pub(crate) fn wave() -> WaveReport {
    WaveReport {
        wave: Wave {
            name: "pilot".into(),
            after: vec!["lab-first".into()],
            window: WaveWindow {
                windows: Windows("22:00-06:00".parse().into_iter().collect()),
                ..WaveWindow::default()
            },
            ..Wave::default()
        },
        state: WaveState::Failed,
        vms: 2,
        done: 1,
        running: 0,
        failed: 1,
        cancelled: 0,
        skipped: 0,
        left: 0,
        may_go_on: true,
        began_ms: Some(START),
        ended_ms: Some(START + 61_000),
        opens: None,
    }
}

/// Two passes, the second of which found change tracking damaged, and a cutover.
pub(crate) fn warm() -> WarmReport {
    let pass = |number: u32, seconds: i64| {
        let began_ms = START + 1000 + i64::from(number - 1) * 60_000;
        let ended_ms = Some(began_ms + seconds * 1000);
        let state = PassState::Complete;
        PassRow { ended_ms, state, read_bytes: 10 << 30, ..PassRow::begin("vm-1", number, began_ms) }
    };
    let damaged = "change tracking is damaged".to_string();
    let second = PassRow {
        kind: PassKind::HashDiff,
        why: Some(damaged.clone()),
        areas_bytes: 300 << 20,
        changed_bytes: 2 << 20,
        audited_blocks: 1000,
        mismatches: 2,
        ..pass(2, 12)
    };
    let first = PassRow { areas_bytes: 10 << 30, changed_bytes: 10 << 30, ..pass(1, 40) };
    let row = WarmRow {
        distrust: Some(damaged),
        reason: Some("the predicted downtime fits".into()),
        forecast: Some(Downtime {
            forecast_ms: 12_000,
            low_ms: 8000,
            high_ms: 20_000,
            ..Downtime::default()
        }),
        down_ms: Some(START + 80_000),
        up_ms: Some(START + 94_000),
        ..WarmRow::default()
    };
    WarmReport { downtime_ms: row.ready_ms(), ready_ms: row.ready_ms(), row, passes: vec![first, second] }
}

pub(crate) fn json(report: &PlanReport) -> serde_json::Value {
    serde_json::to_value(crate::ReportJson(report)).unwrap()
}

pub(crate) fn empty() -> PlanReport {
    let plan = PlanRow { ended_ms: None, ..plan("", PlanState::Done) };
    PlanReport {
        plan,
        runs: vec![],
        vms: vec![],
        waves: vec![],
        wave_hooks: vec![],
        rates: vec![],
        events: vec![],
    }
}
