//! What `virsh migrate` is told.

use super::run::Move;
use crate::live::carried::Carried;
use crate::live::disks::NbdAt;

impl Move<'_> {
    /// For a move of so many connections.
    pub(super) fn words(&self, channels: u8) -> Vec<String> {
        let mut words = self.begin_words();
        let mut add = |more: &[&str]| words.extend(more.iter().map(|word| word.to_string()));
        add(&["--abort-on-error"]);
        if self.rate_max().is_none() {
            // Else the daemon takes what was set for this domain last, perhaps the share of a run that was killed.
            add(&["--bandwidth", MIB_UNLIMITED]);
        }
        if let (Some((_, ends)), false) =
            (Carried::of_data(self.options.carried.as_ref()), self.copied.is_empty())
            && let NbdAt::Unix(path) = &ends.disks
        {
            add(&["--disks-uri", &format!("unix://{}", path.display())]);
        }
        if let (Some(port), false) = (self.options.disks_port, self.copied.is_empty()) {
            add(&["--disks-port", &port.to_string()]);
        }
        if channels > 1 {
            add(&["--parallel", "--parallel-connections", &channels.to_string()]);
        }
        if self.options.allowed.throttle {
            add(&["--auto-converge"]);
        }
        if self.options.allowed.postcopy {
            add(&["--postcopy"]);
        }
        if !self.copied.is_empty() {
            let disks: Vec<&str> = self.copied.iter().map(|(disk, _)| disk.target.as_str()).collect();
            add(&["--copy-storage-all", "--migrate-disks", &disks.join(",")]);
        }
        words
    }

    /// For another line of one that went ahead.
    pub(super) fn resume_words(&self) -> Vec<String> {
        let mut words = self.begin_words();
        words.extend(["--postcopy", "--postcopy-resume"].map(str::to_string));
        words
    }

    fn begin_words(&self) -> Vec<String> {
        let mut words =
            ["migrate", &self.known.uuid, self.ends.target.uri(), "--live"].map(str::to_string).to_vec();
        let mut add = |more: &[&str]| words.extend(more.iter().map(|word| word.to_string()));
        if self.was_persistent {
            add(&["--persistent"]);
        }
        if self.options.p2p {
            add(&["--p2p"]);
        }
        if let Some(name) = &self.options.tls {
            add(&["--tls"]);
            if !name.is_empty() {
                add(&["--tls-destination", name]);
            }
        }
        match (Carried::of_data(self.options.carried.as_ref()), &self.options.uri) {
            (Some((_, ends)), _) => add(&["--migrateuri", &ends.memory.replacen("unix:", "unix://", 1)]),
            (None, Some(uri)) => add(&["--migrateuri", uri]),
            (None, None) => {}
        }
        if let Some(rate) = self.rate_max() {
            let mib = (rate >> 20).max(1).to_string();
            add(&["--bandwidth", &mib]);
            if self.options.allowed.postcopy {
                add(&["--postcopy-bandwidth", &mib]);
            }
        }
        words
    }
}

/// What no line carries, in MiB a second.
const MIB_UNLIMITED: &str = "100000";
