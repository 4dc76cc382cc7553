//! What people and machines read: progress of a run, tables, reports, the HTML page.
//!
//! Nothing here decides anything. [`Display`] follows a run as it happens; the functions turn what the
//! store, an inventory or a plan's problems hold into text, JSON or a page. Names that come from a
//! provider are shown with their control characters replaced, so that none can drive a terminal.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod advice;
mod assess;
mod axis;
mod canvas;
mod checked;
mod clock;
mod copy_display;
mod display;
mod evidence;
mod filter;
mod follow;
mod forecast;
mod forecast_clock;
mod foreseen;
mod frame;
mod hooks;
mod html;
mod in_place;
mod inventory;
mod live;
mod live_display;
mod live_several;
mod live_words;
mod meter;
mod mode;
mod now;
mod problems;
mod report;
#[cfg(test)]
mod sample;
mod sheet;
mod stage;
mod status;
mod summary;
mod table;
mod tally;
mod text;
mod warm;
mod waves;

pub use advice::{advice_json, advice_text};
pub use assess::{assess_json, assess_text};
pub use checked::{CheckedVm, Grouping};
pub use clock::{local as local_time, now_utc, time_now};
pub use copy_display::CopyDisplay;
pub use display::{Display, RunNow, RunWatch};
pub use drover_types::count;
pub use drover_types::shown::{clean, plain};
pub use filter::{Extent, LISTED_MAX, ShownState, VmFilter};
pub use follow::{Counts, Followed, Pace, PlanProgress, VmProgress};
pub use forecast::{
    forecast_json, forecast_text, proposed_note, proposed_rest_note, proposed_waves_text, reference_text,
};
pub use foreseen::{WaitsForCutover, waits_for_cutover};
pub use hooks::check_words;
pub use html::{assess_html, forecast_html, live_report_html, live_several_html, report_html};
pub use in_place::{InLines, InPlace};
pub use inventory::{inventory_json, inventory_text};
pub use live::{
    LiveAsked, LiveDeed, LiveDisk, LiveLook, LiveNote, LiveOutcome, LiveReal, LiveReport, live_report_json,
};
pub use live_display::{LiveDisplay, LiveForeseen, LiveMemoryNow, LiveNow};
pub use live_several::{
    LiveGuestNow, LiveOfSeveral, LiveSchedule, LiveSeveralDisplay, LiveSeveralReport, LiveSeveralWay,
    LiveSums, LiveTurn, live_several_json,
};
pub use live_words::live_words;
pub use mode::{DisplayMode, can_move, set_plain_display};
pub use problems::problems_text;
pub use report::{ReportJson, report_of, report_part_text, report_text};
pub use sheet::{inventory_csv, report_csv};
pub use stage::terminal_columns;
pub use status::{DaemonError, EndForeseen, PlanStatus, plans_text, runs};
pub use summary::vm_state;
pub use table::{Align, Table, set_columns};
pub use waves::waves_text;
