//! What is set on both monitors before memory moves, and what they say was set.
//!
//! QEMU checks late and says little when the sides differ. So both get the same list, made from what both know, and
//! both are read back.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::Ability;

/// What was chosen, in drover's words.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// Connections for memory; 1 is QEMU's classic single stream.
    pub channels: u8,
    /// Pages are compressed by the channels.
    pub zstd: bool,
    /// Longest time for which the guest may stand still.
    pub downtime_max: Duration,
    /// Bytes a second that may be sent; absent: as fast as it goes.
    pub rate_max: Option<u64>,
    /// Bytes a second that count when it is decided whether what is left fits the downtime; absent: as QEMU measures.
    pub switchover_rate: Option<u64>,
    /// The guest is slowed down if it writes faster than it is sent.
    pub throttle: Throttle,
    /// The guest may run at the target before all of its memory is there.
    pub postcopy: bool,
    /// The guest stands at the source until drover says so: disks are handed over in between.
    pub pause_before_switchover: bool,
    /// Bitmaps of changed blocks go along.
    pub dirty_bitmaps: bool,
    /// Something between both sides takes bytes before the target has them: the source must hear of the target itself
    /// that all is there.
    pub is_carried: bool,
    /// Name of a TLS credentials object that is there on both sides, and the target's name in its certificate.
    pub tls: Option<(String, String)>,
    /// RDMA, with the size of its chunks in bytes where it is chosen.
    pub rdma: Option<Option<u64>>,
}

/// How a guest is slowed down that writes too fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttle {
    /// It is not.
    #[default]
    None,
    /// All its processors get less time (`auto-converge`), from [`slow_down`] on.
    AutoConverge,
    /// Each processor may write to so many bytes a second (`dirty-limit`; KVM with a dirty ring).
    DirtyLimit {
        /// In MiB/s of a processor.
        mib_per_s: u64,
    },
}

impl Default for Wish {
    fn default() -> Self {
        Wish {
            channels: 1,
            zstd: false,
            downtime_max: Duration::from_millis(300),
            rate_max: None,
            switchover_rate: None,
            throttle: Throttle::None,
            postcopy: false,
            pause_before_switchover: false,
            dirty_bitmaps: false,
            is_carried: false,
            tls: None,
            rdma: None,
        }
    }
}

/// One of two monitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where the guest runs.
    Source,
    /// Where it will.
    Target,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Target => "target",
        })
    }
}

/// What goes to a monitor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Every capability that both know, switched on or off: what somebody left there does not count.
    pub capabilities: BTreeMap<String, bool>,
    /// Parameters of both sides.
    pub parameters: Map<String, Value>,
    /// What was wished for and left out, because it only helps and one side does not know it.
    pub left_out: Vec<String>,
}

impl Settings {
    /// The argument of `migrate-set-capabilities`.
    pub fn capabilities_json(&self) -> Value {
        let one = |(name, state): (&String, &bool)| json!({"capability": name, "state": state});
        json!({"capabilities": self.capabilities.iter().map(one).collect::<Vec<Value>>()})
    }
}

/// Why it cannot be set as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    /// What one side lacks.
    pub what: String,
    /// Which one.
    pub side: Side,
    /// Its version.
    pub version: String,
    /// What to try.
    pub advice: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingsError { what, side, version, advice } = self;
        write!(f, "{what} is not known to the {side}'s QEMU {version}; {advice}")
    }
}

/// Capabilities that drover has an opinion on; the others stay as they are.
const OURS: [&str; 16] = [
    "events",
    "multifd",
    "postcopy-ram",
    "postcopy-preempt",
    "return-path",
    "switchover-ack",
    "pause-before-switchover",
    "late-block-activate",
    "dirty-bitmaps",
    "auto-converge",
    "dirty-limit",
    "xbzrle",
    "compress",
    "block",
    "rdma-pin-all",
    "zero-copy-send",
];
/// QEMU's own cap is 128 MiB/s; this one is none (what it accepts at most is larger).
const RATE_UNLIMITED: u64 = 100_000_000_000;
/// How a guest is slowed down before it must be: auto-converge can be switched on before a move begins only, so it is on
/// and as good as off.
const THROTTLE_IDLE: [(&str, u64); 3] =
    [("cpu-throttle-initial", 1), ("cpu-throttle-increment", 1), ("throttle-trigger-threshold", 100)];
/// And when it must be: QEMU's defaults (20 and 10 %) take minutes to take hold.
const THROTTLE_HARD: [(&str, u64); 3] =
    [("cpu-throttle-initial", 40), ("cpu-throttle-increment", 20), ("throttle-trigger-threshold", 50)];

/// What to set at the source, in a move under way, to slow the guest down from now on.
pub fn slow_down(source: &Ability) -> Map<String, Value> {
    let known = THROTTLE_HARD.into_iter().filter(|(name, _)| source.takes(name));
    known.map(|(name, value)| (name.to_string(), value.into())).collect()
}

/// What to set on both sides.
///
/// # Errors
/// What cannot be left out and is not known to one of them.
pub fn settings(wish: &Wish, source: &Ability, target: &Ability) -> Result<Settings, SettingsError> {
    let mut made = Maker { source, target, settings: Settings::default() };
    for name in OURS {
        if source.has(name) && target.has(name) {
            made.settings.capabilities.insert(name.to_string(), false);
        }
    }
    made.helps("events");
    match wish.is_carried {
        true => made.needs("return-path", "move without --via")?,
        false => made.helps("return-path"),
    }
    if !wish.postcopy || wish.pause_before_switchover {
        // Where the move is cancelled in the last moment, the target has not touched its disks.
        made.helps("late-block-activate");
    }
    if !wish.postcopy {
        made.helps("switchover-ack");
    }
    if wish.channels > 1 {
        made.needs("multifd", "move over a single channel")?;
        made.set("multifd-channels", wish.channels, "move over a single channel")?;
        made.word("multifd-compression", if wish.zstd { "zstd" } else { "none" })?;
        made.helpful_word("zero-page-detection", "multifd");
    }
    if wish.postcopy {
        made.needs("postcopy-ram", "move without post-copy")?;
        made.helps("postcopy-preempt");
    }
    if wish.pause_before_switchover {
        made.needs("pause-before-switchover", "move disks another way (shared storage)")?;
    }
    if wish.dirty_bitmaps {
        made.needs("dirty-bitmaps", "leave the bitmaps behind")?;
    }
    made.throttle(wish.throttle)?;
    made.rates(wish)?;
    if let Some((credentials, name)) = &wish.tls {
        made.set("tls-creds", credentials.as_str(), "send through drover's link, which is encrypted")?;
        made.set("tls-hostname", name.as_str(), "send through drover's link, which is encrypted")?;
    }
    made.rdma(wish.rdma)?;
    Ok(made.settings)
}

struct Maker<'a> {
    source: &'a Ability,
    target: &'a Ability,
    settings: Settings,
}

impl Maker<'_> {
    /// The side that does not know it, if one does not.
    fn lacking(&self, knows: impl Fn(&Ability) -> bool) -> Option<(Side, &Ability)> {
        let both = [(Side::Source, self.source), (Side::Target, self.target)];
        both.into_iter().find(|(_, ability)| !knows(ability))
    }

    fn refuse(
        &self,
        what: String,
        lacking: Option<(Side, &Ability)>,
        advice: &str,
    ) -> Result<(), SettingsError> {
        let Some((side, ability)) = lacking else { return Ok(()) };
        Err(SettingsError { what, side, version: ability.version.clone(), advice: advice.to_string() })
    }

    fn needs(&mut self, capability: &str, else_do: &str) -> Result<(), SettingsError> {
        let lacking = self.lacking(|ability| ability.has(capability));
        self.refuse(format!("the capability {capability}"), lacking, else_do)?;
        self.settings.capabilities.insert(capability.to_string(), true);
        Ok(())
    }

    fn helps(&mut self, capability: &str) {
        if self.needs(capability, "").is_err() {
            self.settings.left_out.push(capability.to_string());
        }
    }

    fn set(&mut self, parameter: &str, value: impl Into<Value>, else_do: &str) -> Result<(), SettingsError> {
        let lacking = self.lacking(|ability| ability.takes(parameter));
        self.refuse(format!("the parameter {parameter}"), lacking, else_do)?;
        self.settings.parameters.insert(parameter.to_string(), value.into());
        Ok(())
    }

    fn word(&mut self, parameter: &str, word: &str) -> Result<(), SettingsError> {
        let lacking = self.lacking(|ability| ability.takes_word(parameter, word));
        self.refuse(format!("{parameter}={word}"), lacking, "move without it")?;
        self.settings.parameters.insert(parameter.to_string(), word.into());
        Ok(())
    }

    fn helpful_word(&mut self, parameter: &str, word: &str) {
        if self.word(parameter, word).is_err() {
            self.settings.left_out.push(format!("{parameter}={word}"));
        }
    }

    fn throttle(&mut self, throttle: Throttle) -> Result<(), SettingsError> {
        match throttle {
            Throttle::None => Ok(()),
            Throttle::AutoConverge => {
                self.needs("auto-converge", "move without slowing the guest down")?;
                for (name, value) in THROTTLE_IDLE {
                    // 5.0 and later know the threshold.
                    if self.set(name, value, "").is_err() {
                        self.settings.left_out.push(name.to_string());
                    }
                }
                Ok(())
            }
            Throttle::DirtyLimit { mib_per_s } => {
                self.needs("dirty-limit", "slow the guest down by auto-converge")?;
                self.set("vcpu-dirty-limit", mib_per_s, "slow the guest down by auto-converge")
            }
        }
    }

    fn rates(&mut self, wish: &Wish) -> Result<(), SettingsError> {
        let downtime_ms = u64::try_from(wish.downtime_max.as_millis()).unwrap_or(u64::MAX);
        self.set("downtime-limit", downtime_ms, "use a QEMU of 7.2 or later")?;
        let rate = wish.rate_max.unwrap_or(RATE_UNLIMITED);
        self.set("max-bandwidth", rate, "use a QEMU of 7.2 or later")?;
        // Pages that the guest waits for go beyond it; 0 is no bound.
        let rate_after = wish.rate_max.unwrap_or(0);
        if wish.postcopy && self.set("max-postcopy-bandwidth", rate_after, "").is_err() {
            self.settings.left_out.push("max-postcopy-bandwidth".into());
        }
        let Some(rate) = wish.switchover_rate else { return Ok(()) };
        if self.set("avail-switchover-bandwidth", rate, "").is_err() {
            self.settings.left_out.push("avail-switchover-bandwidth".into());
        }
        Ok(())
    }

    /// A chunk size that only one side knows fails in mid-move; one that both know is set on both.
    fn rdma(&mut self, rdma: Option<Option<u64>>) -> Result<(), SettingsError> {
        let Some(chunk) = rdma else { return Ok(()) };
        self.helps("rdma-pin-all");
        let one_knows = self.source.takes(CHUNK) || self.target.takes(CHUNK);
        match chunk {
            Some(bytes) => self.set(CHUNK, bytes, "use QEMU 11.1 or later on both sides, or no chunk size"),
            // What it comes with on one side is not what the other has built in.
            None if one_knows => {
                self.set(CHUNK, CHUNK_BYTES_OLD, "use QEMU 11.1 or later on both sides, or none on either")
            }
            None => Ok(()),
        }
    }
}

const CHUNK: &str = "x-rdma-chunk-size";
/// What every QEMU before 11.1 has, and 11.1 comes with.
const CHUNK_BYTES_OLD: u64 = 1 << 20;

/// What a monitor has that was not set so.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Of which.
    pub side: Side,
    /// A capability or parameter.
    pub name: String,
    /// What was set.
    pub set: Value,
    /// What it says.
    pub found: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { side, name, set, found } = self;
        write!(f, "{name} of the {side} was set to {set} and is {found}")
    }
}

/// Holds what a monitor says (`query-migrate-capabilities`, `query-migrate-parameters`) against what was set.
pub fn differences(
    settings: &Settings,
    side: Side,
    capabilities: &Value,
    parameters: &Value,
) -> Vec<Difference> {
    let listed = |name: &str| {
        let mut all = capabilities.as_array().into_iter().flatten();
        all.find(|entry| entry["capability"] == name).map(|entry| entry["state"].clone()).unwrap_or_default()
    };
    let capabilities = settings.capabilities.iter().map(|(name, state)| (name, json!(state), listed(name)));
    let parameters =
        settings.parameters.iter().map(|(name, set)| (name, set.clone(), parameters[name].clone()));
    capabilities
        .chain(parameters)
        .filter(|(_, set, found)| set != found)
        .map(|(name, set, found)| Difference { side, name: name.clone(), set, found })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ability::tests::qemu;

    const OLD: [&str; 11] = [
        "events",
        "late-block-activate",
        "multifd",
        "postcopy-ram",
        "return-path",
        "pause-before-switchover",
        "auto-converge",
        "xbzrle",
        "compress",
        "dirty-bitmaps",
        "rdma-pin-all",
    ];
    const PARAMETERS: [&str; 8] = [
        "multifd-channels",
        "multifd-compression=none|zlib|zstd",
        "downtime-limit",
        "max-bandwidth",
        "cpu-throttle-initial",
        "cpu-throttle-increment",
        "tls-creds",
        "tls-hostname",
    ];

    fn old() -> Ability {
        qemu((7, 2), &OLD, &PARAMETERS)
    }

    fn new() -> Ability {
        let gone = ["compress"];
        let more = ["switchover-ack", "postcopy-preempt", "dirty-limit"];
        let capabilities: Vec<&str> =
            OLD.iter().filter(|name| !gone.contains(name)).chain(&more).copied().collect();
        let more = [
            "zero-page-detection=none|legacy|multifd",
            "avail-switchover-bandwidth",
            CHUNK,
            "vcpu-dirty-limit",
        ];
        qemu((11, 1), &capabilities, &[&PARAMETERS[..], &more].concat())
    }

    fn many() -> Wish {
        Wish { channels: 4, switchover_rate: Some(1 << 30), ..Wish::default() }
    }

    #[test]
    fn what_only_helps_is_left_out_where_one_side_lacks_it() {
        let settings = settings(&many(), &old(), &new()).unwrap();
        assert!(settings.capabilities["multifd"]);
        assert_eq!(settings.parameters["multifd-channels"], 4);
        assert!(!settings.parameters.contains_key("zero-page-detection"));
        assert!(!settings.capabilities.contains_key("switchover-ack"));
        assert_eq!(
            settings.left_out,
            ["switchover-ack", "zero-page-detection=multifd", "avail-switchover-bandwidth"]
        );
    }

    #[test]
    fn what_somebody_left_switched_on_is_switched_off() {
        let settings = settings(&Wish::default(), &old(), &old()).unwrap();
        for name in ["multifd", "postcopy-ram", "auto-converge", "compress", "xbzrle"] {
            assert!(!settings.capabilities[name], "{name}");
        }
        assert_eq!(settings.parameters["max-bandwidth"], RATE_UNLIMITED);
        assert_eq!(settings.parameters["downtime-limit"], 300);
    }

    #[test]
    fn two_new_ones_get_all_that_helps() {
        let settings = settings(&many(), &new(), &new()).unwrap();
        assert!(settings.capabilities["switchover-ack"]);
        assert_eq!(settings.parameters["zero-page-detection"], "multifd");
        assert_eq!(settings.parameters["avail-switchover-bandwidth"], 1 << 30);
        assert!(settings.left_out.is_empty(), "{:?}", settings.left_out);
    }

    #[test]
    fn what_was_wished_for_is_refused_by_name_and_side() {
        let wish = Wish { postcopy: true, ..Wish::default() };
        let without = qemu((10, 0), &["multifd"], &PARAMETERS);
        let error = settings(&wish, &new(), &without).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the capability postcopy-ram is not known to the target's QEMU 10.0.0; move without post-copy"
        );
        let limit = Wish { throttle: Throttle::DirtyLimit { mib_per_s: 10 }, ..Wish::default() };
        assert_eq!(settings(&limit, &old(), &new()).unwrap_err().side, Side::Source);
    }

    #[test]
    fn a_move_over_a_link_needs_the_way_back() {
        let carried = Wish { is_carried: true, ..Wish::default() };
        assert!(settings(&carried, &new(), &new()).unwrap().capabilities["return-path"]);
        let without = qemu((10, 0), &["multifd"], &PARAMETERS);
        let error = settings(&carried, &new(), &without).unwrap_err();
        assert!(error.side == Side::Target && error.what.contains("return-path"), "{error}");
        assert!(settings(&Wish::default(), &new(), &without).is_ok());
    }

    #[test]
    fn compression_that_one_side_lacks_is_refused() {
        let wish = Wish { zstd: true, ..many() };
        let without = qemu(
            (7, 2),
            &OLD,
            &["multifd-channels", "multifd-compression=none|zlib", "max-bandwidth", "downtime-limit"],
        );
        assert!(settings(&wish, &old(), &without).unwrap_err().what.contains("zstd"));
        assert_eq!(settings(&wish, &old(), &old()).unwrap().parameters["multifd-compression"], "zstd");
    }

    #[test]
    fn chunks_of_rdma_are_the_same_on_both_sides_or_it_is_refused() {
        let rdma = |chunk| Wish { rdma: Some(chunk), ..Wish::default() };
        let both = settings(&rdma(Some(1 << 30)), &new(), &new()).unwrap();
        assert_eq!(both.parameters[CHUNK], 1 << 30);
        assert_eq!(settings(&rdma(None), &new(), &new()).unwrap().parameters[CHUNK], 1 << 20);
        assert!(!settings(&rdma(None), &old(), &old()).unwrap().parameters.contains_key(CHUNK));
        for chunk in [None, Some(32 << 20)] {
            let error = settings(&rdma(chunk), &new(), &old()).unwrap_err();
            assert!(error.side == Side::Target && error.what.contains(CHUNK), "{error}");
        }
    }

    #[test]
    fn what_is_read_back_is_held_against_what_was_set() {
        let settings = settings(&many(), &old(), &old()).unwrap();
        let mut states: Vec<Value> = settings
            .capabilities
            .iter()
            .map(|(name, state)| json!({"capability": name, "state": state}))
            .collect();
        let mut parameters = Value::Object(settings.parameters.clone());
        assert_eq!(differences(&settings, Side::Target, &json!(states), &parameters), []);
        parameters["multifd-channels"] = json!(2);
        states.retain(|entry| entry["capability"] != "return-path");
        let found = differences(&settings, Side::Target, &json!(states), &parameters);
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["return-path", "multifd-channels"]);
        assert_eq!(found[1].to_string(), "multifd-channels of the target was set to 4 and is 2");
    }
}
