//! What would make plans faster, as text and JSON.

use std::fmt::{self, Write};

use drover_forecast::{Advice, Forecast, Severity};
use serde_json::{Value, json};

use crate::forecast::time;
use crate::text::clean;

/// Advice, the weightiest first.
pub fn advice_text(forecast: &Forecast, all: &[Advice]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_advice(&mut text, forecast, all);
    text
}

/// The same as JSON.
pub fn advice_json(forecast: &Forecast, all: &[Advice]) -> Value {
    json!({ "makespan_s": forecast.makespan_s, "advice": all })
}

fn write_advice(text: &mut String, forecast: &Forecast, all: &[Advice]) -> fmt::Result {
    let likely = forecast.makespan_s.p50;
    writeln!(text, "foreseen to take {} (drover forecast says how)", time(likely))?;
    if all.is_empty() {
        writeln!(text, "nothing to advise")?;
    }
    for it in all {
        let severity = match it.severity {
            Severity::High => "HIGH",
            Severity::Medium => "medium",
            Severity::Low => "low",
        };
        writeln!(text, "\n{severity:<8}{}", clean(&it.finding))?;
        writeln!(text, "        found by  {}", clean(&it.evidence))?;
        writeln!(text, "        try       {}", clean(&it.advice))?;
        if let Some(gain) = it.gain {
            writeln!(text, "        gains     {:.0} %, {}", gain * 100.0, time(gain * likely))?;
        }
        if let Some(source) = it.source {
            writeln!(text, "        source    {source}")?;
        }
    }
    Ok(())
}
