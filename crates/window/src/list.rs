//! Several windows, of which one at least has to be open.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::window::Window;

/// Windows of one list; who needs more has other ones in mind.
pub const WINDOWS_MAX: usize = 100;

/// A list that is open for so long after the last of its dates does not close: what comes again does so each week.
const OPEN_MS_MAX: u64 = 15 * 24 * 3_600_000;

/// Windows, in the order in which they were written. It is open while one of them is; an empty one never is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Windows(pub Vec<Window>);

/// What a window is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It is open.
    Open {
        /// When it closes, in milliseconds since 1970; absent if it never does.
        until_ms: Option<u64>,
    },
    /// It is closed, and opens at this moment.
    At(u64),
    /// It is closed for good.
    Never,
}

impl Windows {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether they say nothing, because there are none or one of them is always open.
    pub fn is_always(&self) -> bool {
        self.is_empty() || self.0.iter().any(Window::is_always)
    }

    /// What they are at a moment, in milliseconds since 1970. Windows that overlap or touch each other are one.
    pub fn at(&self, now_ms: u64) -> Opening {
        let Some(mut until) = self.open_until(now_ms) else {
            let opens = self.0.iter().filter_map(|it| it.span_at(now_ms)).map(|(from, _)| from).min();
            return opens.map_or(Opening::Never, Opening::At);
        };
        if self.0.iter().any(Window::is_always) {
            return Opening::Open { until_ms: None };
        }
        let dates = self.0.iter().filter(|it| it.is_of_dates()).filter_map(|it| it.span_at(now_ms));
        let last = dates.map(|(_, to)| to).max().unwrap_or(0).max(now_ms);
        while until <= last + OPEN_MS_MAX {
            match self.open_until(until) {
                Some(later) => until = later,
                None => return Opening::Open { until_ms: Some(until) },
            }
        }
        Opening::Open { until_ms: None }
    }

    /// When the last of them closes for good; absent if there are none, or one that comes again and again.
    pub fn end_ms(&self) -> Option<u64> {
        let is_once = !self.is_empty() && self.0.iter().all(Window::is_of_dates);
        is_once.then(|| self.0.iter().filter_map(|it| it.span_at(0)).map(|(_, to)| to).max().unwrap_or(0))
    }

    /// When the last of those closes that are open.
    fn open_until(&self, ms: u64) -> Option<u64> {
        let spans = self.0.iter().filter_map(|it| it.span_at(ms));
        spans.filter(|(from, _)| *from <= ms).map(|(_, to)| to).max()
    }
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(at, it)| write!(f, "{}{it}", if at > 0 { ", " } else { "" }))
    }
}
