//! The moments of a forecast: those of a wave on the clock of its window, others on the user's.

use std::collections::HashMap;

use drover_forecast::{Forecast, Spread, VmForecast, WaveForecast};
use drover_types::Window;
use serde_json::{Map, Value, json};

use crate::clock::{local_moment, local_rfc3339, zone_id};
use crate::text::UNKNOWN;

/// Clocks of a forecast.
pub(crate) struct Clocks<'a> {
    start_ms: u64,
    of_wave: HashMap<(usize, &'a str), &'a Window>,
}

impl<'a> Clocks<'a> {
    pub(crate) fn of(it: &'a Forecast) -> Clocks<'a> {
        let clock = |wave: &'a WaveForecast| Some(((wave.plan, wave.name.as_str()), wave.window.clock()?));
        Clocks { start_ms: it.start_ms, of_wave: it.waves.iter().filter_map(clock).collect() }
    }

    /// That of all that is in no wave.
    pub(crate) fn local(&self) -> Clock<'a> {
        Clock { start_ms: self.start_ms, window: None }
    }

    pub(crate) fn of_wave(&self, wave: &WaveForecast) -> Clock<'a> {
        self.named(wave.plan, Some(&wave.name))
    }

    pub(crate) fn of_vm(&self, vm: &VmForecast) -> Clock<'a> {
        self.named(vm.plan, vm.wave.as_deref())
    }

    fn named(&self, plan: usize, wave: Option<&str>) -> Clock<'a> {
        let window = wave.and_then(|wave| self.of_wave.get(&(plan, wave)).copied());
        Clock { start_ms: self.start_ms, window }
    }
}

/// The clock by which moments are told.
#[derive(Clone, Copy)]
pub(crate) struct Clock<'a> {
    start_ms: u64,
    window: Option<&'a Window>,
}

impl Clock<'_> {
    /// `Europe/Berlin`.
    pub(crate) fn zone(&self) -> String {
        match self.window {
            Some(window) => window.zone().to_string(),
            None => zone_id(self.ms(0.0) as i64),
        }
    }

    /// So many seconds after the start: `Sat 2026-12-05 22:00`.
    pub(crate) fn moment(&self, seconds: f64) -> String {
        let ms = self.ms(seconds);
        match self.window {
            // It ends with the zone.
            Some(window) => window.moment(ms).trim_end_matches(window.zone()).trim_end().to_string(),
            None => local_moment(ms as i64),
        }
    }

    /// The same of what is likely; what stands for unknown where that is absent.
    pub(crate) fn likely(&self, spread: Option<Spread>) -> String {
        spread.map_or(UNKNOWN.into(), |it| self.moment(it.p50))
    }

    /// The same without the day of the week: `2026-12-05 22:00`.
    pub(crate) fn short(&self, spread: Option<Spread>) -> String {
        let moment = self.likely(spread);
        moment.split_once(' ').map_or(moment.clone(), |(_, date)| date.to_string())
    }

    fn rfc3339(&self, seconds: f64) -> Option<String> {
        let ms = self.ms(seconds);
        match self.window {
            Some(window) => window.rfc3339(ms),
            None => local_rfc3339(ms as i64),
        }
    }

    fn ms(&self, seconds: f64) -> u64 {
        self.start_ms.saturating_add((seconds * 1000.0) as u64)
    }

    /// P10, P50 and P90 as RFC 3339.
    fn json(&self, spread: Option<Spread>) -> Value {
        let of = |Spread { p10, p50, p90 }: Spread| json!({"p10": self.rfc3339(p10), "p50": self.rfc3339(p50), "p90": self.rfc3339(p90)});
        spread.map_or(Value::Null, of)
    }
}

/// The forecast with its moments as RFC 3339, beside its times in seconds.
pub(crate) fn with_moments(it: &Forecast) -> Value {
    let mut value = json!(it);
    let clocks = Clocks::of(it);
    let local = clocks.local();
    let Some(all) = value.as_object_mut() else { return value };
    all.insert("start".into(), json!(local.rfc3339(0.0)));
    all.insert("end".into(), local.json(Some(it.makespan_s)));
    all.insert("plan_ends".into(), it.plan_ends_s.iter().map(|end| local.json(*end)).collect());
    add(all, "waves", &it.waves, |wave| {
        let clock = clocks.of_wave(wave);
        vec![
            ("zone", json!(clock.zone())),
            ("begin", clock.json(wave.begin_s)),
            ("end", clock.json(wave.end_s)),
        ]
    });
    add(all, "vms", &it.vms, |vm| {
        let clock = clocks.of_vm(vm);
        vec![
            ("begin", clock.json(vm.begin_s)),
            ("cutover", clock.json(vm.cutover_s)),
            ("end", clock.json(vm.end_s)),
        ]
    });
    value
}

/// Adds to each object of a list what is told of it.
fn add<T>(
    all: &mut Map<String, Value>,
    list: &str,
    of: &[T],
    told: impl Fn(&T) -> Vec<(&'static str, Value)>,
) {
    let values = all.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
    for (value, one) in values.zip(of) {
        let Some(value) = value.as_object_mut() else { continue };
        value.extend(told(one).into_iter().map(|(key, told)| (key.to_string(), told)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::tests::in_zones;

    #[test]
    fn moments_are_told_in_the_zone_of_the_wave_and_as_rfc_3339() {
        let forecast = in_zones();
        let json = with_moments(&forecast);
        let berlin = &json["waves"][0];
        assert_eq!(berlin["zone"], "Europe/Berlin");
        assert_eq!(berlin["begin"]["p50"], "2026-03-07T22:00:00+01:00");
        let of = |vm: usize, key: &str| json["vms"][vm][key]["p50"].as_str().unwrap_or_default().to_string();
        assert_eq!(of(0, "begin"), "2026-03-07T22:00:00+01:00");
        assert!(of(0, "end").starts_with("2026-03-07T22:") && of(0, "end").ends_with("+01:00"), "{json}");
        assert!(of(1, "begin").ends_with("-05:00"), "{json}");
        // The local zone is that of tests.
        assert_eq!(of(2, "begin"), "2026-03-01T14:05:10+00:00");
        assert_eq!(json["start"], "2026-03-01T14:05:10+00:00");
        assert!(json["end"]["p90"].as_str().unwrap() >= "2026-03-07");
        let clocks = Clocks::of(&forecast);
        let clock = clocks.of_vm(&forecast.vms[0]);
        assert_eq!(clock.likely(forecast.vms[0].begin_s), "Sat 2026-03-07 22:00");
        assert_eq!(clock.short(forecast.vms[0].begin_s), "2026-03-07 22:00");
        assert_eq!((clock.zone().as_str(), clock.short(None).as_str()), ("Europe/Berlin", UNKNOWN));
        assert_eq!(clocks.local().zone(), "UTC");
    }
}
