//! How memory is to go: what is in the way of it, what is set on both sides for it, and set back after.

use std::path::PathBuf;

use drover_live::{
    Ability, Compression, Obstacle, Rdma, Settings, Side, Throttle, Tls, Wish, conflicts, settings,
    tls_left_set, tls_name_obstacle, tls_obstacles,
};

use super::{Ending, Move};
use crate::error::QemuError;
use crate::live::carried::Carried;
use crate::live::core::Adapter;
use crate::live::guest::Before;
use crate::live::tls::OWN;

/// How memory goes, where that was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryOptions {
    /// How the connections pack pages.
    pub compression: Compression,
    /// Bytes of memory for pages that the source sent, of which it then sends only what changed.
    pub xbzrle_bytes: Option<u64>,
    /// A guest that must be slowed down has its processors' writes bounded, not their time.
    pub limits_writes: bool,
    /// QEMU's own encryption, also of disks that are mirrored.
    pub tls: Option<TlsOptions>,
    /// How RDMA is used, where memory goes by it.
    pub rdma: Option<Rdma>,
}

/// Encryption by both QEMUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// What proves who both are.
    pub by: TlsBy,
    /// The target's name in its certificate; empty: QEMU takes it from the address.
    pub hostname: String,
}

/// What proves to both sides who the other is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsBy {
    /// An object of this name that both have.
    Object(String),
    /// Certificates and keys in this folder of each host, by the names that QEMU gives them.
    X509(PathBuf),
    /// A key that both have, in `keys.psk` in this folder of each host.
    Psk {
        /// The folder.
        folder: PathBuf,
        /// Whose key it is.
        username: String,
    },
}

impl Move<'_> {
    /// What of the way that was asked for cannot be: it does not go together, or a side is not prepared for it.
    /// `credentials_set` are those that the source and the target are set to use.
    pub(super) fn memory_obstacles(
        &mut self,
        credentials_set: [String; 2],
    ) -> Result<Vec<Obstacle>, QemuError> {
        let mut found = conflicts(&self.wish(self.channels()));
        let memory = &self.options.memory;
        if memory.limits_writes && self.core.wanted.allowed.throttle && !self.source.has_dirty_ring()? {
            found.push(Obstacle {
                what: "writes are bounded by a dirty ring of KVM, which the source's QEMU does not have".into(),
                advice: "start it with -accel kvm,dirty-ring-size=4096 the next time; for now leave --throttle-by out".into(),
            });
        }
        found.extend(self.credentials_obstacles(credentials_set)?);
        Ok(found)
    }

    fn credentials_obstacles(&mut self, set: [String; 2]) -> Result<Vec<Obstacle>, QemuError> {
        let Some(tls) = &self.options.memory.tls else {
            let set = [Side::Source, Side::Target].into_iter().zip(set);
            let by_others = set.filter(|(_, name)| !name.is_empty() && name != OWN);
            return Ok(by_others.map(|(side, name)| tls_left_set(side, &name)).collect());
        };
        let mut found = Vec::new();
        let kind = match &tls.by {
            TlsBy::X509(_) => "tls-creds-x509".to_string(),
            TlsBy::Psk { .. } => "tls-creds-psk".to_string(),
            TlsBy::Object(name) => {
                let (here, there) = (self.source.credentials(name)?, self.target.credentials(name)?);
                found.extend(tls_obstacles(name, here.as_ref(), there.as_ref()));
                here.map(|here| here.kind).unwrap_or_default()
            }
        };
        found.extend(tls_name_obstacle(&kind, &tls.hostname, self.goes_to(&self.options.uri)));
        Ok(found)
    }

    /// Carried connections may arrive in another order than they were made. Under TLS none says what it is before its
    /// handshake, and QEMU goes by their order again.
    pub(super) fn is_unordered(&self) -> bool {
        let can_tell = self.can[1].tells_connections_apart() && self.options.memory.tls.is_none();
        Carried::of_data(self.core.carried()).is_some() && !can_tell
    }

    pub(super) fn postcopy_goes_alone(&self) -> bool {
        self.core.wanted.allowed.postcopy && !self.can.iter().all(Ability::judges_postcopy_after_many)
    }

    fn wish(&self, channels: u8) -> Wish {
        let (promise, memory) = (self.core.wanted.promise, &self.options.memory);
        Wish {
            channels,
            compression: memory.compression,
            xbzrle_bytes: memory.xbzrle_bytes,
            downtime_max: self.between().downtime_of_qemu(&promise),
            rate_max: self.core.rate_max(),
            switchover_rate: self.core.wanted.line.map(|_| self.core.line().likely as u64),
            throttle: self.throttle(),
            postcopy: self.core.wanted.allowed.postcopy,
            postcopy_goes_alone: self.postcopy_goes_alone(),
            pause_before_switchover: !self.pairs.is_empty() || self.starts_by_link_alone(),
            dirty_bitmaps: false,
            is_carried: self.core.carried().is_some(),
            is_unordered: self.is_unordered(),
            tls: self.tls(),
            rdma: self.rdma(),
        }
    }

    /// How RDMA is used, also where that was left open.
    fn rdma(&self) -> Option<Rdma> {
        let [here, there] = &self.can;
        Some(self.options.memory.rdma?.with_chunk(here, there, self.said_to_carry()))
    }

    /// Bytes a second that the line was said to carry, of which no more are sent than may be.
    fn said_to_carry(&self) -> Option<f64> {
        let line = self.core.wanted.line?.likely;
        Some(self.core.rate_max().map_or(line, |rate| line.min(rate as f64)))
    }

    /// Tells how RDMA is used, and what of the guest's memory is sent then.
    pub(super) fn tell_rdma(&mut self) {
        let (Some(asked), Some(rdma)) = (self.options.memory.rdma, self.rdma()) else { return };
        self.note(rdma.words(asked, self.said_to_carry(), self.machine.memory_bytes));
    }

    /// How a guest is slowed down that must be.
    pub(super) fn throttle(&self) -> Throttle {
        match (self.core.wanted.allowed.throttle, self.options.memory.limits_writes) {
            (false, _) => Throttle::None,
            (true, false) => Throttle::AutoConverge,
            (true, true) => Throttle::DirtyLimit,
        }
    }

    /// QEMU's own encryption, of memory and of disks.
    pub(super) fn tls(&self) -> Option<Tls> {
        let tls = self.options.memory.tls.as_ref()?;
        let credentials = match &tls.by {
            TlsBy::Object(name) => name.clone(),
            TlsBy::X509(_) | TlsBy::Psk { .. } => OWN.to_string(),
        };
        Some(Tls { credentials, hostname: tls.hostname.clone() })
    }

    /// What is set on both sides for so many connections.
    pub(super) fn settings(&self, channels: u8) -> Result<Settings, Ending> {
        settings(&self.wish(channels), &self.can[0], &self.can[1]).map_err(Ending::Settings)
    }

    /// Makes credentials of the files that were named. What a host lacks for that is in the way, and no failure.
    pub(super) fn make_credentials(&mut self) -> Result<(), Ending> {
        let Some(tls) = &self.options.memory.tls else { return Ok(()) };
        let made = [self.target.make_credentials(&tls.by), self.source.make_credentials(&tls.by)];
        let sides = [Side::Target, Side::Source].into_iter().zip(made);
        let mut found = Vec::new();
        for (side, made) in sides {
            match made {
                Ok(()) => {}
                Err(error) if error.is_of_connection() => return Err(error.into()),
                Err(error) => found.push(Obstacle {
                    what: format!("the {side}'s QEMU cannot make TLS credentials: {}", error.chain()),
                    advice: "each host has its own files in that folder, which its QEMU must be able to read"
                        .into(),
                }),
            }
        }
        if found.is_empty() { Ok(()) } else { Err(Ending::Obstacles(found)) }
    }

    /// QEMU names the call that failed, and not what the host lacks for it.
    pub(super) fn with_rdma(&self, side: Side, error: QemuError) -> QemuError {
        if self.options.memory.rdma.is_none() || error.is_of_connection() {
            return error;
        }
        let what = format!(
            "RDMA at the {side}, whose host has no RDMA device, or one that its QEMU may not use (`rdma link` there tells)"
        );
        QemuError::new(error.kind, what).because(error.chain())
    }

    /// Sets what was chosen on both sides.
    pub(super) fn set(&mut self, channels: u8) -> Result<(), Ending> {
        self.core.note_excess(channels);
        let rate_max = self.core.rate_max();
        let found = self.settings(channels)?;
        let ways = self.wish(channels).words();
        if !ways.is_empty() {
            self.note(format!("memory goes {}", ways.join(", ")));
        }
        if self.core.wanted.allowed.postcopy && self.can.iter().any(Ability::was_seen_to_lose_writes_ahead) {
            self.note("QEMU 11.1 was seen to lose a guest's latest writes in post-copy, under software emulation; see docs/reference/limits.md");
        }
        if !found.left_out.is_empty() {
            self.note(format!(
                "left out, since one of these QEMUs does not know it: {}",
                found.left_out.join(", ")
            ));
        }
        let packs = self.options.memory.compression != Compression::None;
        match self.set_both(&found) {
            Err(error) if packs && self.core.wanted.allowed.postcopy && error.is_refusal() => {
                let what = format!("these QEMUs do not compress with post-copy ({})", error.chain());
                let advice = "leave --compress or --allow postcopy out".to_string();
                return Err(Ending::Obstacles(vec![Obstacle { what, advice }]));
            }
            // Together they came late, and the schema does not tell when. A side that did not answer may take them still.
            Err(error) if channels > 1 && self.core.wanted.allowed.postcopy && error.is_refusal() => {
                self.note(format!(
                    "one connection, since these QEMUs do not take many with post-copy ({})",
                    error.chain()
                ));
                let found = self.settings(1)?;
                self.set_both(&found)?;
            }
            other => other?,
        }
        self.core.tell_share(rate_max);
        Ok(())
    }

    /// Sets it on the target and then on the source, and keeps what was set on them before.
    fn set_both(&mut self, found: &Settings) -> Result<(), QemuError> {
        let [of_source, of_target] = &mut self.before;
        self.target.set_from(found, of_target)?;
        self.source.set_from(found, of_source)
    }

    pub(super) fn put_target_back(&mut self) -> Result<(), QemuError> {
        if self.options.memory.tls.is_some() {
            // The source's QEMU has no guest any more, and is mostly ended next.
            let _ = self.source.drop_credentials();
        }
        let [_, before] = std::mem::take(&mut self.before);
        if !before.settings.is_empty() {
            self.target.set(&before.settings)?;
        }
        self.target.drop_credentials()
    }

    pub(super) fn put_source_back(&mut self) -> Result<(), QemuError> {
        let [before, of_target] = std::mem::take(&mut self.before);
        self.put_left_target_back(&of_target);
        if !before.settings.is_empty() {
            self.source.set(&before.settings)?;
        }
        self.source.drop_credentials()
    }

    /// A target whose guest did not come has mostly ended by itself, so what fails there is not told; but where its answers
    /// broke off while it was set, it may be there, and set.
    fn put_left_target_back(&mut self, before: &Before) {
        let is_known = !before.settings.is_empty();
        let is_tried = !self.is_link_away() && (is_known || self.options.memory.tls.is_some());
        let is_done = is_tried
            && self.target.set(&before.settings).and_then(|()| self.target.drop_credentials()).is_ok();
        if before.is_cut && !(is_known && is_done) {
            self.note(format!(
                "what was set for this move may stay set at the target, whose answers broke off then: look at {LOOK_AT} there \
                 before a guest comes to it"
            ));
        }
    }
}

/// What tells how a side is set.
pub(super) const LOOK_AT: &str = "`query-migrate-capabilities` and `query-migrate-parameters`";
