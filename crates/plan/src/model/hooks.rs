//! What is called on a VM's way: hooks, and checks that decide whether it goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{SecretSource, Trust};

/// A moment of a VM's way at which hooks are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPoint {
    /// The VM was checked; nothing was done to it.
    BeforeCopy,
    /// The guest runs and is about to be shut down.
    BeforeShutdown,
    /// The guest is down at the source.
    AfterShutdown,
    /// All of the disks is at the target, and compared as far as the plan says.
    AfterCopy,
    /// The machine is defined and is about to be started.
    BeforeStart,
    /// The machine was started.
    AfterStart,
    /// The VM has arrived, and nothing is left to do at the source.
    AfterDone,
    /// The VM failed or was stopped, and what had to be undone is undone.
    AfterFailure,
}

impl HookPoint {
    /// All of them, in the order of a VM's way.
    pub const ALL: [HookPoint; 8] = [
        HookPoint::BeforeCopy,
        HookPoint::BeforeShutdown,
        HookPoint::AfterShutdown,
        HookPoint::AfterCopy,
        HookPoint::BeforeStart,
        HookPoint::AfterStart,
        HookPoint::AfterDone,
        HookPoint::AfterFailure,
    ];

    /// Its key in a plan, and its name in the state, in events and in what hooks are told.
    pub fn name(self) -> &'static str {
        match self {
            HookPoint::BeforeCopy => "before_copy",
            HookPoint::BeforeShutdown => "before_shutdown",
            HookPoint::AfterShutdown => "after_shutdown",
            HookPoint::AfterCopy => "after_copy",
            HookPoint::BeforeStart => "before_start",
            HookPoint::AfterStart => "after_start",
            HookPoint::AfterDone => "after_done",
            HookPoint::AfterFailure => "after_failure",
        }
    }

    /// Whether a hook here may have its VM left out: its guest is untouched.
    pub fn may_skip(self) -> bool {
        matches!(self, HookPoint::BeforeCopy | HookPoint::BeforeShutdown)
    }
}

/// Hooks by the moment at which they are called, each moment's in order.
pub type Hooks = BTreeMap<HookPoint, Vec<Hook>>;

/// What is called around a wave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaveHooks {
    /// When it is its turn, before a VM of it begins or moves over; one that fails keeps all of them from it.
    pub before: Vec<Hook>,
    /// When all its VMs have ended.
    pub after: Vec<Hook>,
}

/// Key and name of the hooks before a wave.
pub const BEFORE_WAVE: &str = "before_wave";
/// Key and name of the hooks after a wave.
pub const AFTER_WAVE: &str = "after_wave";

impl WaveHooks {
    /// Both lists, by their names.
    pub fn lists(&self) -> [(&'static str, &[Hook]); 2] {
        [(BEFORE_WAVE, &self.before), (AFTER_WAVE, &self.after)]
    }
}

/// Something that is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// What.
    pub call: Call,
    /// How long it may take.
    pub timeout: Duration,
    /// What a failure of it means.
    pub on_failure: OnFailure,
    /// Line in the plan file.
    pub line: u32,
}

/// What the failure of a hook means for its VM, or its wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// It fails.
    Stop,
    /// It is told, and the VM or the wave goes on.
    Warn,
}

/// What a hook calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// A program and its arguments.
    Command(Vec<String>),
    /// A line for `/bin/sh -c`.
    Shell(String),
    /// A POST of JSON.
    Http(HttpCall),
}

/// An address that is called by HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpCall {
    /// `https://host/path`; `http://` where that is allowed.
    pub url: String,
    /// Where a bearer token is, if one is sent.
    pub token: Option<SecretSource>,
    /// How the server's certificate is verified.
    pub trust: Trust,
}

/// What decides whether a VM goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// Before the guest is shut down at the source; all have to pass.
    pub pre_cutover: Vec<Check>,
    /// After it was started at the target; all have to pass.
    pub post_start: Vec<Check>,
    /// Whether the VM goes back to its source if one of the latter does not pass.
    pub roll_back: bool,
}

impl Checks {
    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        self.pre_cutover.is_empty() && self.post_start.is_empty()
    }
}

/// A question that is asked until the answer is good, or time is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What is asked.
    pub probe: Probe,
    /// How long it is tried.
    pub within: Duration,
    /// Time from one try to the next.
    pub every: Duration,
    /// How long one try may take.
    pub timeout: Duration,
    /// Line in the plan file.
    pub line: u32,
}

/// What a check asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// Whether a TCP connection is taken.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// Whether a GET is answered with a good status.
    Http {
        /// The address.
        url: String,
        /// The status; absent: any from 200 to 299.
        status: Option<u16>,
        /// How the server's certificate is verified.
        trust: Trust,
    },
    /// Whether the guest wrote a line with this text to its first serial port since it was started.
    Serial(String),
    /// Whether a program ends with 0.
    Command(Vec<String>),
    /// Whether a line for `/bin/sh -c` ends with 0.
    Shell(String),
}

/// What one place of the plan says of checks; the rest is told elsewhere, or left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckKeys {
    /// See [`Checks::pre_cutover`].
    pub pre_cutover: Option<Vec<Check>>,
    /// See [`Checks::post_start`].
    pub post_start: Option<Vec<Check>>,
    /// See [`Checks::roll_back`].
    pub roll_back: Option<bool>,
}

impl CheckKeys {
    /// This, and where it says nothing what `other` says.
    #[must_use]
    pub fn or(self, other: CheckKeys) -> CheckKeys {
        CheckKeys {
            pre_cutover: self.pre_cutover.or(other.pre_cutover),
            post_start: self.post_start.or(other.post_start),
            roll_back: self.roll_back.or(other.roll_back),
        }
    }

    /// The checks of a VM of this name at the target.
    pub fn of(self, name: &str) -> Checks {
        let named = |checks: Option<Vec<Check>>| -> Vec<Check> {
            checks.unwrap_or_default().into_iter().map(|check| check.of(name)).collect()
        };
        Checks {
            pre_cutover: named(self.pre_cutover),
            post_start: named(self.post_start),
            roll_back: self.roll_back.unwrap_or(false),
        }
    }
}

/// Stands for the VM's name at the target in the addresses of checks.
const NAME: &str = "{name}";

impl Check {
    /// With the VM's name in its addresses.
    fn of(self, name: &str) -> Check {
        let put = |text: String| text.replace(NAME, name);
        let probe = match self.probe {
            Probe::Tcp { host, port } => Probe::Tcp { host: put(host), port },
            Probe::Http { url, status, trust } => Probe::Http { url: put(url), status, trust },
            other => other,
        };
        Check { probe, ..self }
    }

    /// What it asks, in a few words and without what may be secret.
    pub fn words(&self) -> String {
        match &self.probe {
            Probe::Tcp { host, port } if host.contains(':') => format!("tcp [{host}]:{port}"),
            Probe::Tcp { host, port } => format!("tcp {host}:{port}"),
            Probe::Http { url, .. } => format!("GET {}", without_query(url)),
            Probe::Serial(text) => format!("serial line '{}'", shortened(text)),
            Probe::Command(words) => command_words(words),
            Probe::Shell(line) => format!("shell: {}", shortened(line)),
        }
    }
}

impl Hook {
    /// What it calls, in a few words and without what may be secret.
    pub fn words(&self) -> String {
        match &self.call {
            Call::Command(words) => command_words(words),
            Call::Shell(line) => format!("shell: {}", shortened(line)),
            Call::Http(call) => format!("POST {}", without_query(&call.url)),
        }
    }
}

/// Arguments are told, as they stand in the plan, which holds no secrets.
fn command_words(words: &[String]) -> String {
    shortened(&words.join(" "))
}

/// The query of an address may be a key.
fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(WORDS_CHARS_MAX) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}

/// Of a command in a message; the plan has the whole.
const WORDS_CHARS_MAX: usize = 120;
