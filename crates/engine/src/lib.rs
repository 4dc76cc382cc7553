//! Runs a plan: takes each VM through its itinerary, keeps the state in SQLite so that a run can be
//! continued after any end, undoes what a failed VM must not leave behind, and collects the report.
//!
//! The engine knows no hypervisor. [`SourceProvider`] and [`TargetProvider`] are its words for what it
//! needs of one; the program implements them with the provider crates.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod again;
mod begun;
mod cancel;
mod clock;
pub mod conformance;
pub mod deadlines;
mod error;
mod event;
mod foresight;
mod give_up;
mod going_on;
mod gone;
mod hooks;
mod itinerary;
mod limits;
mod look;
mod orders;
mod outage;
mod pace;
mod parallel;
mod phase;
mod provider;
mod rehearsal;
mod report;
mod runner;
mod slots;
mod standing;
mod store;
mod tracking;
mod waits;
mod wave_hooks;
mod waves;

pub use begun::{begun, left_alone, left_out, others_have};
pub use cancel::{GivenUp, Leave, cancel, cancel_by_leave, cancel_ordered, switch_on_by_leave};
pub use clock::{Clock, SystemClock};
pub use error::{Cause, EngineError, ProviderError, chain};
pub use event::{Board, DiskActivity, Event, LiveDisk, NoObserver, Observer};
pub use foresight::Foresight;
pub use going_on::GoingOn;
pub use hooks::{Answer, CallKind, HookResult, HookRunner, NoHooks, POST_START, PRE_CUTOVER};
pub use itinerary::{MOMENT_GRACE_MS, SNAPSHOT_MARK, is_own_snapshot};
pub use limits::{LimitsInForce, LimitsOrder, PlanLimits, ask_limits, plan_limits};
pub use look::{Looked, Looking, look_into};
pub use orders::{
    Cleaned, Forgotten, FoundSnapshot, ask_cutover, ask_give_up, ask_retry, clean, forget, is_being_run,
    is_running, see_its_vms, take_back, wave_to_give_up, wave_to_try_again,
};
pub use phase::Phase;
pub use provider::{
    AskedDisk, Attachment, Compared, Converted, FIRST_WRITES_BYTES, LateNotes, LinkBytes, Linked, OneWay,
    OpenedSource, OpenedTarget, PowerWatch, Record, SourceProvider, Started, TargetPlace, TargetProvider,
    Upload, Urgency,
};
pub use rehearsal::{CopyState, HeldPlan, copy_of, hold_plan};
pub use report::{
    DiskReport, PhaseTime, PlanReport, RatePoint, VmReport, WarmReport, arrived_vms, plan_report, rates,
    vm_details,
};
pub use runner::{MayBegin, RunOutcome, Runner};
pub use slots::{InUse, Schedule, budgets_of, host_limits};
pub use standing::{AtTarget, Standing, VmEnd};
pub use store::{
    CountRow, DiskRow, Downtime, EventRow, ForecastError, Foreseen, ForeseenEnds, ForeseenNow, ForeseenVm,
    HookRow, KnownRates, OrderRow, PassKind, PassRow, PassState, PlanRow, PlanState, ProgressRow,
    RehearsalResult, RehearsalRow, RehearsedCheck, RunFacts, RunRow, SampleRow, ServedRow, Store, StoreError,
    TrackedRow, VmRow, VmState, WarmRow, WaveCall,
};
pub use tracking::{ALL_WRITTEN, AreasError, ChangeTracking, Frozen};
pub use waves::{WaveReport, WaveState, ask_proceed, wave_reports};
