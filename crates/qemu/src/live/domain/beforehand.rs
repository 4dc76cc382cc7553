//! A domain that moves with others: what is known of it before any of them begins, and its share of what all may send.

use drover_live::{DomainDisk, Facts, Silence};

use super::run::Move;
use crate::error::{QemuError, QemuErrorKind};
use crate::live::turn::Dated;
use crate::virsh::Virsh;

/// What a look at both daemons found: a move that begins soon after does not look again.
#[derive(Clone, Debug)]
pub struct LookedDomain(pub(in crate::live) Dated<Findings>);

#[derive(Clone, Debug)]
pub struct Findings {
    pub(super) facts: Facts,
    pub(super) copied: Vec<(DomainDisk, String)>,
    pub(super) free_bytes: Option<u64>,
    pub(super) was_running: bool,
    pub(super) was_persistent: bool,
}

/// What a move has of a budget, by libvirt's count, which is in whole MiB a second.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Bytes a second that its end goes at.
    pub(super) eased: Option<u64>,
    /// Bytes a second that the source's daemon was told last; nothing where that is not known.
    set: Option<u64>,
    /// The slower end could not be ended.
    pub(super) is_to_be_lifted: bool,
    /// MiB a second that were the most at the source's daemon before.
    pub(super) speed_before: Option<u64>,
    /// Of what was to be set.
    silence: Silence,
}

impl Move<'_> {
    /// It begins with the share that it has now.
    pub(super) fn take_share(&mut self) {
        self.sharing.set = self.core.rate_max();
        self.core.tell_share(self.core.rate_max());
    }

    /// Sends no more than its share, which may be another than it was. One that cannot be set is tried again for a while; the
    /// others have nothing of it before this one says that it keeps it.
    pub(super) fn try_to_keep_share(&mut self) -> Result<(), QemuError> {
        let kept = self.set_share();
        if let (Err(error), false) = (&kept, self.sharing.silence.is_on()) {
            self.note(format!("its share is tried to be set again: {}", error.chain()));
        }
        self.sharing.silence.outlast(kept, self.core.now_ms()).map(drop)
    }

    fn set_share(&mut self) -> Result<(), QemuError> {
        let Some(share) = self.core.wanted.share.as_ref().map(crate::live::Share::rate) else {
            return Ok(());
        };
        let rate = self.sharing.eased.map_or(share, |eased| eased.min(share));
        let is_another = self.core.new_share().is_some();
        if self.sharing.set == Some(rate) && !is_another {
            return Ok(());
        }
        // There is no job yet that could be slower, or none any more.
        if self.ends.source.job(&self.known.uuid, 0)?.sample.sent_bytes == 0 {
            return Ok(());
        }
        if self.sharing.set != Some(rate) {
            self.set_speed(rate)?;
        }
        if is_another && (self.core.wanted.allowed.postcopy || self.after.is_some()) {
            // libvirt sets it back with the end of the move.
            self.ends.source.set_speed_max(&self.known.uuid, mib(share), &AHEAD)?;
        }
        if is_another {
            self.core.tell_share(Some(share));
        }
        Ok(())
    }

    /// Sends no more from now on.
    pub(super) fn set_speed(&mut self, rate: u64) -> Result<(), QemuError> {
        let (source, uuid) = (&self.ends.source, &self.known.uuid);
        if self.sharing.speed_before.is_none() {
            self.sharing.speed_before = Some(source.speed_max(uuid, &[])?);
        }
        // What fails may be done all the same.
        self.sharing.set = None;
        source.set_speed_max(uuid, mib(rate), &[])?;
        self.sharing.set = Some(rate);
        Ok(())
    }

    /// What was set at the source's daemon is as it was.
    pub(super) fn put_speed_back(&mut self) {
        let Some(mib) = self.sharing.speed_before.take() else { return };
        if let Err(error) = self.ends.source.set_speed_max(&self.known.uuid, mib, &[]) {
            self.note(format!(
                "the most that it may send is not what it was before, {mib} MiB/s: {}",
                error.chain()
            ));
        }
    }
}

/// In libvirt's unit.
fn mib(rate: u64) -> u64 {
    (rate >> 20).max(1)
}

/// Of what goes in post-copy and nobody waits for.
const AHEAD: [&str; 1] = ["--postcopy"];

impl Virsh {
    /// MiB a second that a move of the domain may send; of what is left when it went ahead, with that word.
    pub(super) fn speed_max(&self, uuid: &str, more: &[&str]) -> Result<u64, QemuError> {
        let said = self.ask(&[&["migrate-getspeed", uuid], more].concat())?;
        said.trim().parse().map_err(|_| {
            let what =
                format!("reading {:?} as the most that a move may send at {}", said.trim(), self.uri());
            QemuError::new(QemuErrorKind::Failed, what)
        })
    }

    /// Sets it, and reads it back.
    fn set_speed_max(&self, uuid: &str, mib: u64, more: &[&str]) -> Result<(), QemuError> {
        self.ask(&[&["migrate-setspeed", uuid, &mib.to_string()], more].concat())?;
        let set = self.speed_max(uuid, more)?;
        if set != mib {
            let what = format!(
                "the most that a move may send at {} is {set} MiB/s after it was set to {mib}",
                self.uri()
            );
            return Err(QemuError::new(QemuErrorKind::Failed, what));
        }
        Ok(())
    }
}
