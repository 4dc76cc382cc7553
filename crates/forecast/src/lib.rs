//! What a fleet comes to before it moves, and how long that will take.
//!
//! Pure: inventories, plans and measured rates go in, figures come out. No clock, file or thread.
//!
//! - [`assess`] sums up an inventory: sizes, places, and what stands in the way.
//! - [`foresee`] runs the schedule on a virtual clock, with [`Rates`] drawn from their spread.
//! - [`left_of`] changes the question of a run to what is left of it, so that its forecast is corrected while it goes on.
//! - [`together`] makes one question of plans that share a schedule.
//! - [`advise`] tells what would make it faster, and by how much.
//! - [`propose`] cuts a fleet into waves that fit a window.
//! - [`reference`] holds the same model against published figures.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod advise;
mod assess;
mod carried;
mod fleet;
mod foresee;
mod learn;
mod left;
mod limits;
mod on_order;
mod quantile;
mod rates;
pub mod reference;
mod together;
mod waves;
mod windows;

pub use advise::{Advice, Asked, Severity, advise};
pub use assess::{Assessment, Estimates, Finding, Group, Place, Sizes, Totals, VmSums, WarmInVain, assess};
pub use carried::{ByteSpread, LineBytes};
pub use fleet::{FleetDisk, FleetVm, WarmWish, may_run, spread_over};
pub use foresee::{By, Forecast, Line, Question, VmForecast, WaveForecast, foresee, foresee_roughly};
pub use learn::{Copies, Measured, Part, Seen, To};
pub use left::{Progress, left_of};
pub use limits::{Gain, Limiting, WithoutCopy};
pub use on_order::OnOrder;
pub use quantile::{Spread, quantile};
pub use rates::{Origin, Quantity, Rates, Unit, churn_of};
pub use together::together;
pub use waves::{Proposal, ProposedWave, WAVES_MAX, WaveRule, propose};
pub use windows::{MissedWindow, TightWave, WINDOW_DAYS_MAX, spans_of, tight_waves};
