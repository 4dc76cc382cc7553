//! Disks of other sites: `agent://SITE/POOL/FILE` or `agent://SITE/DEVICE`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_agent::limits::DayLimits;
use drover_agent::opening::{How, Stat};
use drover_agent::sites::{ThisHost, dial_now};
use drover_agent::{AgentDisk, AgentOptions, Refusal, Site, Target};
use drover_disk::{Disk, DiskError, DiskErrorKind};
use drover_engine::{Cause, chain};
use drover_landing::{GIVE_UP_AFTER_MIN, tag_of};
use drover_mover::{Earlier, FoundTarget, Standing, earlier, judge};

use crate::errors::{EndError, disk_cause, disk_failure, failed, source_failure};
use crate::guard;
use crate::named::{NamedSource, NamedTarget};
use crate::path::{check_size, not_there, remove_if_there};
use crate::place::AgentPlace;
use crate::{End, TargetEnd};

/// Where the journal of a copy to this place lies: on the side that copies, by the name of the target.
fn journal_of_place(host: &ThisHost, place: &AgentPlace) -> PathBuf {
    drover_landing::journal_of_place(&host.state, &place.site, &place.disk)
}

/// Opens a disk to be read.
pub(crate) fn open_source(place: &AgentPlace, named: &NamedSource<'_>) -> Result<End, EndError> {
    let site = connected(place, &named.host, None)?;
    let pack = named.pack;
    let options = AgentOptions { give_up_after: GIVE_UP_AFTER_MIN, pack, ..AgentOptions::default() };
    let disk = AgentDisk::open_source(&site, &place.disk, options).map_err(source_failure)?;
    let notes = disk.opened().notes.clone();
    Ok(end(disk, notes))
}

fn end(disk: AgentDisk, notes: Vec<String>) -> End {
    let disk = Arc::new(disk);
    End { disk: disk.clone(), keep: Vec::new(), notes: notes.into(), link: Some(disk) }
}

fn connected(place: &AgentPlace, host: &ThisHost, rate: Option<u64>) -> Result<Arc<Site>, EndError> {
    let site = host.site(&place.site, rate, DayLimits::default())?;
    dial_now(&site)?;
    Ok(site)
}

/// How it ends that a target was not opened: by an agent that is away, or one that refused.
fn not_opened(error: &DiskError, is_up: bool) -> EndError {
    let cause = match error.kind {
        DiskErrorKind::Transient if !is_up => Cause::Connection,
        _ => disk_cause(error, &error.disk),
    };
    failed(cause, chain(error))
}

/// What a look at a target of a site came to.
enum Looked {
    /// A copy of ours that stopped.
    GoesOn(AgentDisk),
    /// Ours, to be copied to from the beginning, in this epoch.
    StartsAgain(u64),
    /// Not ours, and why if a journal says; the epoch in which it was looked at.
    Others(Option<String>, u64),
}

/// A copy that wants a disk of a site as its target.
pub(crate) struct Wanted<'a> {
    asked: &'a NamedTarget<'a>,
    source: &'a dyn Disk,
    place: &'a AgentPlace,
    site: Arc<Site>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn connect(
        asked: &'a NamedTarget<'a>,
        source: &'a dyn Disk,
        place: &'a AgentPlace,
    ) -> Result<Wanted<'a>, EndError> {
        let site = connected(place, &asked.host, asked.rate)?;
        Ok(Wanted { asked, source, place, site })
    }

    pub(crate) fn open(&self) -> Result<TargetEnd, EndError> {
        let journal = self.journal()?;
        if let Some(disk) = self.open_unseen(journal.as_deref())? {
            return Ok(self.end(disk, journal));
        }
        let stat = self.stat()?;
        let (how, epoch) = match self.look(&stat, journal.as_deref())? {
            Looked::GoesOn(disk) => return Ok(self.end(disk, journal)),
            Looked::StartsAgain(epoch) => (How::Force, epoch),
            // Higher than what a host whose clock is ahead, or was, has left there.
            Looked::Others(why, epoch) => {
                (self.how(&stat, why)?, drover_mover::new_epoch(stat.epoch.max(epoch)))
            }
        };
        if let Some(journal) = &journal {
            // What it says of the bytes that were there is not true any more.
            remove_if_there(journal)?;
        }
        let disk = self.open_with(how, self.source.size(), epoch).map_err(|error| self.not_opened(&error))?;
        Ok(self.end(disk, journal))
    }

    /// As [`Wanted::open`], where the disk holds all but a part of the source already.
    pub(crate) fn open_existing(&self) -> Result<TargetEnd, EndError> {
        let stat = self.stat()?;
        let Some(there) = stat.size else { return Err(not_there(self.asked.text)) };
        // A device may be larger than what is copied to it, as here.
        if self.place.disk.contains('/') {
            check_size(self.asked.text, there, self.source.size())?;
        }
        let beside = journal_of_place(&self.asked.host, self.place);
        let journal = self.asked.journal.unwrap_or(&beside);
        let before = match earlier(journal, &self.tag(&stat.tag), None) {
            Earlier::Half(found) => found.epoch,
            Earlier::Nothing | Earlier::Other(_) => 0,
        };
        let disk = self.open_as(How::Resume, before)?;
        Ok(self.end(disk, Some(beside)))
    }

    fn stat(&self) -> Result<Stat, EndError> {
        self.site.stat(&self.place.disk).map_err(|refusal| self.refused(&refusal))
    }

    /// Opens it without a look at what is there, which is a round trip less, if no journal tells of an earlier copy. The
    /// agent itself refuses a new disk where something is; `None` then, and the look tells what it is. One that another
    /// run is writing needs no look.
    fn open_unseen(&self, journal: Option<&Path>) -> Result<Option<AgentDisk>, EndError> {
        if journal.is_some_and(Path::exists) {
            return Ok(None);
        }
        let how = if self.asked.force { How::Force } else { How::New };
        match self.try_open_as(how, 0) {
            Ok(disk) => Ok(Some(disk)),
            Err(error) if self.asked.force && error.kind != DiskErrorKind::Denied => {
                Err(self.not_opened(&error))
            }
            Err(error) if matches!(error.kind, DiskErrorKind::Failed | DiskErrorKind::Transient) => {
                Err(self.not_opened(&error))
            }
            Err(_) => Ok(None),
        }
    }

    /// Goes on with a copy of ours that stopped, if there is one and the target still holds what it recorded. The agent has
    /// it locked while it is looked at.
    fn look(&self, stat: &Stat, journal: Option<&Path>) -> Result<Looked, EndError> {
        let tag = self.tag(&stat.tag);
        let (Some(journal), Some(there)) = (journal, stat.size) else { return Ok(Looked::Others(None, 0)) };
        let half = match earlier(journal, &tag, None) {
            Earlier::Nothing => return Ok(Looked::Others(None, 0)),
            Earlier::Other(why) => return Ok(Looked::Others(Some(why), 0)),
            Earlier::Half(half) => half,
        };
        let (size, epoch) = (half.header.size, drover_mover::new_epoch(half.epoch));
        let changed = || Looked::Others(Some("it was changed since its journal was made".to_string()), epoch);
        // A device may be larger than what is copied to it.
        if self.place.disk.contains('/') && there != size {
            return Ok(changed());
        }
        let opened = self.open_with(How::Resume, size, epoch);
        let disk = opened.map_err(|error| self.not_opened(&error))?;
        if self.tag(&disk.opened().tag) != tag {
            return Ok(changed());
        }
        // Whether it holds nothing was told before; the agent looks again if it is to be taken as new for that.
        let is_blank = || Ok(stat.holds_nothing);
        let found = FoundTarget {
            journal: Some(journal),
            tag: &tag,
            born: None,
            disk: Some(&disk),
            is_blank: &is_blank,
        };
        let standing = judge(&found, self.source).map_err(|error| disk_failure(&error, disk.name()))?;
        Ok(match standing {
            Standing::Half(_) if size == self.source.size() => Looked::GoesOn(disk),
            // Of a source that has another size now. Whoever comes between has a higher epoch.
            Standing::Half(_) => Looked::StartsAgain(epoch),
            Standing::Blank => Looked::Others(None, epoch),
            Standing::Others(why) => Looked::Others(why, epoch),
        })
    }

    /// How a target is opened that is not gone on with.
    fn how(&self, stat: &Stat, why: Option<String>) -> Result<How, EndError> {
        if self.asked.force {
            return Ok(How::Force);
        }
        if stat.holds_nothing {
            return Ok(How::New);
        }
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        let bytes = stat.size.unwrap_or_default();
        let text = format!("{} already holds something, {bytes} bytes{why}", self.asked.text);
        Err(failed(Cause::Target, text).advise("choose another name, or overwrite it with --force"))
    }

    fn open_as(&self, how: How, epoch_before: u64) -> Result<AgentDisk, EndError> {
        self.try_open_as(how, epoch_before).map_err(|error| self.not_opened(&error))
    }

    fn not_opened(&self, error: &DiskError) -> EndError {
        not_opened(error, self.site.is_up())
    }

    fn try_open_as(&self, how: How, epoch_before: u64) -> Result<AgentDisk, DiskError> {
        self.open_with(how, self.source.size(), drover_mover::new_epoch(epoch_before))
    }

    fn open_with(&self, how: How, size: u64, epoch: u64) -> Result<AgentDisk, DiskError> {
        let target = Target { size, how, epoch, volume: None };
        let options = AgentOptions {
            give_up_after: self.asked.retry_for.max(GIVE_UP_AFTER_MIN),
            pack: self.asked.pack,
            offer: self.asked.offer,
            waits: self.asked.host.say,
            ..AgentOptions::default()
        };
        AgentDisk::open_target(&self.site, &self.place.disk, &target, options)
    }

    fn refused(&self, refusal: &Refusal) -> EndError {
        let cause = match refusal.kind {
            DiskErrorKind::Transient => Cause::Connection,
            DiskErrorKind::OutOfSpace => Cause::TargetFull,
            _ => Cause::Target,
        };
        failed(cause, format!("{}: {refusal}", self.asked.text))
    }

    fn tag(&self, there: &str) -> String {
        tag_of(&self.place.site, there)
    }

    /// The journal lies on the side that copies, by the name of the target.
    fn journal(&self) -> Result<Option<PathBuf>, EndError> {
        if self.asked.no_journal {
            return Ok(None);
        }
        let path = self.asked.journal.map(Path::to_path_buf);
        let path = path.unwrap_or_else(|| journal_of_place(&self.asked.host, self.place));
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|error| {
                failed(Cause::Target, format!("folder {}: {error}", folder.display()))
                    .advise("name a journal with --journal FILE, or use --no-journal")
            })?;
        }
        guard::check_journal(&path)?;
        Ok(Some(path))
    }

    fn end(&self, disk: AgentDisk, journal: Option<PathBuf>) -> TargetEnd {
        let opened = disk.opened().clone();
        TargetEnd {
            end: end(disk, opened.notes),
            tag: self.tag(&opened.tag),
            is_new: opened.is_new,
            zeroed: opened.zeroed,
            journal,
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_disk::DiskOp;
    use drover_types::ByteSpan;

    use super::*;

    #[test]
    fn an_agent_that_is_away_ends_an_opening_otherwise_than_one_that_refuses() {
        let cause = |kind, is_up| {
            let why = std::io::Error::other("why");
            let error = DiskError::with_kind(kind, DiskOp::Open, ByteSpan::new(0, 0), "agent://b/vms/a", why);
            match not_opened(&error, is_up) {
                EndError::Provider(error) => error.cause,
                other => panic!("{other}"),
            }
        };
        assert_eq!(cause(DiskErrorKind::Transient, false), Cause::Connection);
        assert_eq!(cause(DiskErrorKind::Transient, true), Cause::Target, "busy with another run");
        assert_eq!(cause(DiskErrorKind::Failed, false), Cause::Target);
        assert_eq!(cause(DiskErrorKind::OutOfSpace, true), Cause::TargetFull);
    }

    #[test]
    fn places_of_agents_are_a_site_and_a_name() {
        let place = |text| AgentPlace::parse(text).map(|it| (it.site, it.disk));
        let found = place("//site-b/vms/web.raw");
        assert_eq!(found, Some(("site-b".to_string(), "vms/web.raw".to_string())));
        assert_eq!(place("//b/lun7"), Some(("b".to_string(), "lun7".to_string())));
        for text in ["", "//", "//b", "//b/", "b/vms/a", "//b/vms/../a", "//b c/vms/a", "//b/vms/.a"] {
            assert!(place(text).is_none(), "{text}");
        }
    }
}
