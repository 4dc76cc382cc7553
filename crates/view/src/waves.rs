//! The waves of a plan as a table.

use drover_engine::{WaveReport, WaveState};
use drover_types::{IfFailed, WaveWindow};

use crate::clock::utc_minute;
use crate::table::{Align, Table};
use crate::text::{UNKNOWN, clean, clip};

const NAME_COLUMNS: usize = 20;

/// How far the waves of a plan are; nothing if it has none.
pub fn waves_text(waves: &[WaveReport]) -> String {
    use Align::{Left, Right};
    if waves.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("WAVE", Left),
        ("STATE", Left),
        ("VMS", Right),
        ("DONE", Right),
        ("AT WORK", Right),
        ("FAILED", Right),
        ("WINDOW", Left),
    ])
    .fitted();
    for it in waves {
        table.row([
            clip(&it.wave.name, NAME_COLUMNS).into_owned(),
            wave_state(it.state).into(),
            it.vms.to_string(),
            it.done.to_string(),
            it.running.to_string(),
            it.failed.to_string(),
            window_words(&it.wave.window),
        ]);
    }
    let after = |it: &&WaveReport| !it.wave.after.is_empty();
    let line = |it: &WaveReport| {
        let then = match it.wave.if_failed {
            IfFailed::Wait => "",
            IfFailed::GoOn => "; those after it go on if it fails",
            IfFailed::Stop => "; those after it stop if it fails",
        };
        format!("wave {} is after {}{then}\n", clean(&it.wave.name), clean(&it.wave.after.join(", ")))
    };
    let may_go_on = waves.iter().filter(|it| it.may_go_on && it.failed > 0);
    let words =
        may_go_on.map(|it| format!("those after wave {} go on: somebody said so\n", clean(&it.wave.name)));
    let lines: String = waves.iter().filter(after).map(line).chain(words).collect();
    format!("\n{table}{lines}")
}

pub(crate) fn wave_state(state: WaveState) -> &'static str {
    match state {
        WaveState::Queued => "queued",
        WaveState::Running => "running",
        WaveState::Done => "done",
        WaveState::Failed => "failed",
    }
}

/// `22:00-06:00 from 2026-12-01 22:00 until ...`, in UTC; `any time` for one that is always open.
pub(crate) fn window_words(window: &WaveWindow) -> String {
    if window.is_always() {
        return "any time".into();
    }
    let hours = window.hours.map(|hours| hours.to_string());
    let from = window.from_ms.map(|ms| format!("from {}", moment(ms)));
    let until = window.until_ms.map(|ms| format!("until {}", moment(ms)));
    let parts: Vec<String> = hours.into_iter().chain(from).chain(until).collect();
    format!("{} UTC", parts.join(" "))
}

fn moment(ms: u64) -> String {
    i64::try_from(ms).map_or(UNKNOWN.into(), utc_minute)
}

#[cfg(test)]
mod tests {
    use drover_types::Wave;

    use super::*;
    use crate::sample::wave;

    #[test]
    fn waves_say_how_far_they_are_and_what_they_wait_for() {
        let wave = |name: &str, after: &[&str]| WaveReport {
            wave: Wave {
                name: name.into(),
                after: after.iter().map(|it| it.to_string()).collect(),
                window: WaveWindow { from_ms: Some(1_796_162_400_000), ..wave().wave.window },
                ..Wave::default()
            },
            ..wave()
        };
        let text = waves_text(&[wave("pilot", &[]), wave("web", &["pilot"])]);
        for part in [
            "22:00-06:00 from 2026-12-01 22:00 UTC",
            "wave web is after pilot",
            "those after wave pilot go on",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(text.lines().all(|line| crate::text::width(line) <= 100), "{text}");
        assert_eq!(waves_text(&[]), "");
        assert_eq!(window_words(&WaveWindow::default()), "any time");
    }
}
