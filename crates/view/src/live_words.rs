//! What happens while a guest moves, in words. Pure.

use drover_live::{Event, Loads, Mending, Route};
use drover_types::{Estimate, count};

/// What happened, where it is told in words alone.
pub fn live_words(event: &Event) -> Option<String> {
    match event {
        Event::Note(text) => Some(text.clone()),
        Event::Route(route) => Some(route_words(route)),
        Event::Busy { loads, longer } => Some(busy_words(loads, longer)),
        Event::Share(rate) => Some(format!("its share is {:.1} MB/s from now on", *rate as f64 / 1e6)),
        Event::Mending(mending) => Some(mending_words(mending)),
        Event::Chosen(_)
        | Event::Disk { .. }
        | Event::Memory(_)
        | Event::Sent
        | Event::Did(..)
        | Event::Link { .. } => None,
    }
}

fn route_words(route: &Route) -> String {
    match route.is_direct {
        true => format!("what is sent goes directly: {route}"),
        false => format!("what is sent goes over the link: {route}"),
    }
}

fn busy_words(loads: &Loads, longer: &Estimate) -> String {
    match longer.likely > 0.0 {
        true => format!("{loads}: a downtime is {:.0} ms longer for it", longer.likely * 1000.0),
        false => format!("{loads}: that is not in what is foreseen"),
    }
}

fn mending_words(mending: &Mending) -> String {
    match mending {
        Mending::Broke { why } => {
            format!("the line broke in post-copy ({why}): the guest waits for its memory where it needs it")
        }
        Mending::Told(side) => format!("the {side} had not noticed that the line broke, and was told"),
        Mending::Tries { number } => format!("the line is made anew, try {number}"),
        Mending::Failed { number, why, next } => {
            format!("try {number} came to nothing: {why}; the next comes after {} s", next.as_secs())
        }
        Mending::Back { tries } => {
            format!("the line is back after {}: it goes on", count(*tries as usize, "try"))
        }
    }
}
