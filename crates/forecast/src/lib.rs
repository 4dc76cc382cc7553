//! What a fleet comes to before it moves, and how long that will take.
//!
//! Pure: inventories, plans and measured rates go in, figures come out. No clock, file or thread.
//!
//! - [`assess`] sums up an inventory: sizes, places, and what stands in the way.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod assess;
mod quantile;

pub use assess::{
    Assessment, Finding, Group, LargeVm, Place, Sizes, Totals, assess, capacity_bytes, data_bytes,
    data_bytes_of,
};
pub use quantile::{Spread, quantile};
