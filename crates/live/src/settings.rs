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
    /// How the connections pack pages.
    pub compression: Compression,
    /// Bytes of memory in which the source keeps pages that it sent, to send only what changed in them when they come again
    /// (`xbzrle`).
    pub xbzrle_bytes: Option<u64>,
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
    /// A side takes post-copy together with many connections, and cannot do it.
    pub postcopy_goes_alone: bool,
    /// The guest stands at the source until drover says so: disks are handed over in between.
    pub pause_before_switchover: bool,
    /// Bitmaps of changed blocks go along.
    pub dirty_bitmaps: bool,
    /// Something between both sides takes bytes before the target has them: the source must hear of the target itself
    /// that all is there.
    pub is_carried: bool,
    /// Connections may come in another order than they were made, and the target cannot tell them apart.
    pub is_unordered: bool,
    /// QEMU's own encryption.
    pub tls: Option<Tls>,
    /// Memory goes past both kernels.
    pub rdma: Option<Rdma>,
}

impl Wish {
    /// What of it is out of the ordinary, in words for people.
    pub fn words(&self) -> Vec<String> {
        let compression = match self.compression {
            Compression::None => None,
            Compression::Zlib(level) => Some(format!("compressed by zlib (level {level})")),
            Compression::Zstd(level) => Some(format!("compressed by zstd (level {level})")),
        };
        let xbzrle =
            self.xbzrle_bytes.map(|bytes| format!("by what changed in {} MiB of pages", bytes >> 20));
        let tls = self.tls.as_ref().map(|tls| format!("encrypted by QEMU ({})", tls.credentials));
        let rdma = self.rdma.map(|rdma| match rdma.pin_all {
            true => "by RDMA, with all of it held in place".to_string(),
            false => "by RDMA".to_string(),
        });
        [compression, xbzrle, tls, rdma].into_iter().flatten().collect()
    }
}

/// How pages are packed on their way, with the effort in the compressor's own levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// They are not.
    #[default]
    None,
    /// Level 0 to 9.
    Zlib(u8),
    /// Level 0 to 20.
    Zstd(u8),
}

/// Encryption by both QEMUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Name of the credentials, an object in both.
    pub credentials: String,
    /// The target's name in its certificate; empty: QEMU takes it from the address.
    pub hostname: String,
}

/// How RDMA is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rdma {
    /// All of the guest's memory is held in place on both hosts from the begin on.
    pub pin_all: bool,
    /// Size of the pieces in which memory is registered, in bytes, where it is chosen.
    pub chunk_bytes: Option<u64>,
}

/// How a guest is slowed down that writes too fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttle {
    /// It is not.
    #[default]
    None,
    /// All its processors get less time (`auto-converge`), from [`slow_down`] on.
    AutoConverge,
    /// Each processor may write to so much in a second, from [`slow_down`] on (`dirty-limit`; KVM with a dirty ring).
    DirtyLimit,
}

impl Default for Wish {
    fn default() -> Self {
        Wish {
            channels: 1,
            compression: Compression::None,
            xbzrle_bytes: None,
            downtime_max: Duration::from_millis(300),
            rate_max: None,
            switchover_rate: None,
            throttle: Throttle::None,
            postcopy: false,
            postcopy_goes_alone: false,
            pause_before_switchover: false,
            dirty_bitmaps: false,
            is_carried: false,
            is_unordered: false,
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
    /// What concerns the source alone, which a target may not be able to take.
    pub of_source: Own,
    /// What was wished for and left out, because it only helps and one side does not know it.
    pub left_out: Vec<String>,
}

/// Settings of one side beyond those of both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Own {
    /// Capabilities.
    pub capabilities: BTreeMap<String, bool>,
    /// Parameters.
    pub parameters: Map<String, Value>,
}

impl Settings {
    /// The argument of `migrate-set-capabilities` for one side.
    pub fn capabilities_json(&self, side: Side) -> Value {
        let one = |(name, state)| json!({"capability": name, "state": state});
        json!({"capabilities": self.capabilities_of(side).into_iter().map(one).collect::<Vec<Value>>()})
    }

    /// The argument of `migrate-set-parameters` for one side.
    pub fn parameters_of(&self, side: Side) -> Map<String, Value> {
        let mut all = self.parameters.clone();
        all.extend(self.own(side).into_iter().flat_map(|own| own.parameters.clone()));
        all
    }

    /// What one side says now of all that these settings would change there: to have it back later.
    pub fn as_found(&self, side: Side, capabilities: &Value, parameters: &Value) -> Settings {
        let found = |name: String| Some((listed(capabilities, &name).as_bool()?, name));
        let before = self.capabilities_of(side).into_keys().filter_map(found);
        let capabilities = before.map(|(state, name)| (name, state)).collect();
        let names = self.parameters_of(side).into_iter().map(|(name, _)| name);
        let told = |name: String| Some((parameters.get(&name)?.clone(), name));
        let parameters = names.filter_map(told).map(|(value, name)| (name, value)).collect();
        Settings { capabilities, parameters, ..Settings::default() }
    }

    /// Whether there is nothing to set.
    pub fn is_empty(&self) -> bool {
        *self == Settings::default()
    }

    fn capabilities_of(&self, side: Side) -> BTreeMap<String, bool> {
        let mut all = self.capabilities.clone();
        all.extend(self.own(side).into_iter().flat_map(|own| own.capabilities.clone()));
        all
    }

    fn own(&self, side: Side) -> Option<&Own> {
        (side == Side::Source).then_some(&self.of_source)
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
pub const RATE_UNLIMITED: u64 = 100_000_000_000;
/// How a guest is slowed down before it must be: auto-converge can be switched on before a move begins only, so it is on
/// and as good as off.
const THROTTLE_IDLE: [(&str, u64); 3] =
    [("cpu-throttle-initial", 1), ("cpu-throttle-increment", 1), ("throttle-trigger-threshold", 100)];
/// And when it must be: QEMU's defaults (20 and 10 %) take minutes to take hold.
const THROTTLE_HARD: [(&str, u64); 3] =
    [("cpu-throttle-initial", 40), ("cpu-throttle-increment", 20), ("throttle-trigger-threshold", 50)];

/// What a processor may write to before it must be slowed down: no bound that any reaches.
const DIRTY_LIMIT_IDLE_MIB_PER_S: u64 = 1 << 20;
/// Share of what is sent that a guest may write to meanwhile: each pass is half as long as the one before.
const DIRTY_LIMIT_SHARE: f64 = 0.5;

/// What to set at the source, in a move under way, to slow the guest down from now on: one of so many processors, where so
/// many bytes a second are sent. Only what is known is set: what was there before is to be had back.
pub fn slow_down(
    throttle: Throttle,
    is_known: impl Fn(&str) -> bool,
    rate: f64,
    processors: usize,
) -> Map<String, Value> {
    let known = THROTTLE_HARD.into_iter().filter(|(name, _)| is_known(name));
    let mut parameters: Map<String, Value> =
        known.map(|(name, value)| (name.to_string(), value.into())).collect();
    if throttle == Throttle::DirtyLimit {
        let each = rate * DIRTY_LIMIT_SHARE / processors.max(1) as f64 / f64::from(1 << 20);
        // QEMU takes no less.
        parameters.insert("vcpu-dirty-limit".into(), (each as u64).max(1).into());
    }
    parameters
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
    made.connections(wish)?;
    if let Some(bytes) = wish.xbzrle_bytes {
        made.needs("xbzrle", "move without it")?;
        made.set("xbzrle-cache-size", bytes, "move without xbzrle")?;
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
    if let Some(tls) = &wish.tls {
        made.set("tls-creds", tls.credentials.as_str(), NO_TLS)?;
        made.set("tls-hostname", tls.hostname.as_str(), NO_TLS)?;
    }
    made.rdma(wish.rdma)?;
    Ok(made.settings)
}

const NO_TLS: &str = "send through drover's link, which is encrypted";

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
            Throttle::DirtyLimit => self.dirty_limit(),
        }
    }

    /// It concerns the source only. QEMU wants KVM with a dirty ring wherever it is switched on, which a target need not have.
    fn dirty_limit(&mut self) -> Result<(), SettingsError> {
        let lacks = !self.source.has("dirty-limit") || !self.source.takes("vcpu-dirty-limit");
        let lacking = lacks.then_some((Side::Source, self.source));
        self.refuse("the capability dirty-limit".into(), lacking, "slow the guest down by auto-converge")?;
        let own = &mut self.settings.of_source;
        own.capabilities.insert("dirty-limit".into(), true);
        own.parameters.insert("vcpu-dirty-limit".into(), DIRTY_LIMIT_IDLE_MIB_PER_S.into());
        let [_, _, (threshold, idle)] = THROTTLE_IDLE;
        own.parameters.insert(threshold.into(), idle.into());
        Ok(())
    }

    /// Packing is done by the connections of multifd, be it one.
    fn connections(&mut self, wish: &Wish) -> Result<(), SettingsError> {
        if wish.channels <= 1 && wish.compression == Compression::None {
            return Ok(());
        }
        let advice = match wish.compression {
            Compression::None => "move over a single channel",
            Compression::Zlib(_) | Compression::Zstd(_) => "move without compression",
        };
        self.needs("multifd", advice)?;
        self.set("multifd-channels", wish.channels.max(1), advice)?;
        match wish.compression {
            Compression::None => self.word("multifd-compression", "none")?,
            Compression::Zlib(level) => {
                self.word("multifd-compression", "zlib")?;
                self.set("multifd-zlib-level", level, advice)?;
            }
            Compression::Zstd(level) => {
                self.word("multifd-compression", "zstd")?;
                self.set("multifd-zstd-level", level, advice)?;
            }
        }
        self.helpful_word("zero-page-detection", "multifd");
        Ok(())
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
    fn rdma(&mut self, rdma: Option<Rdma>) -> Result<(), SettingsError> {
        let Some(rdma) = rdma else { return Ok(()) };
        if rdma.pin_all {
            self.needs("rdma-pin-all", "move without pinning")?;
        }
        let one_knows = self.source.takes(CHUNK) || self.target.takes(CHUNK);
        match rdma.chunk_bytes {
            Some(bytes) => self.chunk(bytes),
            // What it comes with on one side is not what the other has built in.
            None if one_knows => {
                self.set(CHUNK, CHUNK_BYTES_OLD, "use QEMU 11.1 or later on both sides, or none on either")
            }
            None => Ok(()),
        }
    }

    /// Where chunks are larger at the source than at the target, the move fails, and neither QEMU says why.
    fn chunk(&mut self, bytes: u64) -> Result<(), SettingsError> {
        let advice =
            "use QEMU 11.1 or later on both sides, or leave --rdma-chunk-size out on QEMUs before 11.1";
        self.set(CHUNK, bytes, advice).map_err(|error| {
            let (asked, has) = (bytes >> 20, CHUNK_BYTES_OLD >> 20);
            let what = format!(
                "chunks of {asked} MiB were asked for, and those of the {} are {has} MiB: {CHUNK}",
                error.side
            );
            SettingsError { what, ..error }
        })
    }
}

pub(crate) const CHUNK: &str = "x-rdma-chunk-size";
/// What every QEMU before 11.1 has, and 11.1 comes with.
pub(crate) const CHUNK_BYTES_OLD: u64 = 1 << 20;

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
    let set = settings.capabilities_of(side).into_iter().map(|(name, state)| (name, json!(state)));
    let set = set.map(|(name, state)| (listed(capabilities, &name), name, state));
    let values = settings.parameters_of(side).into_iter();
    let values = values.map(|(name, value)| (parameters[&name].clone(), name, value));
    set.chain(values)
        .filter(|(found, _, set)| set != found)
        .map(|(found, name, set)| Difference { side, name, set, found })
        .collect()
}

/// The state of a capability in the answer to `query-migrate-capabilities`; `null` where it is not in it.
fn listed(capabilities: &Value, name: &str) -> Value {
    let mut all = capabilities.as_array().into_iter().flatten();
    all.find(|entry| entry["capability"] == name).map(|entry| entry["state"].clone()).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests;
