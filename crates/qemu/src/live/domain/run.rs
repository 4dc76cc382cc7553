//! What is done with both daemons while a domain moves. libvirt moves it; drover looks, sets, watches and gives up in time.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use drover_live::{
    After, Allowed, By, Deed, Domain, DomainDisk, DomainJob, DomainStand, DomainUnclear, Event, Facts, Found,
    Half, Handover, LOSES_WRITES, MirrorState, Moved, Pause, Phase, RATE_UNLIMITED, Room, SILENCE_MAX,
    Sample, Side, Silence, Spot, Told, Unclear, Where, copy_obstacles, domain_found, domain_obstacles,
    tight_pools,
};

use super::ask::{Known, Processor};
use super::beforehand::{Findings, LookedDomain, Sharing};
use super::words::{begun_with, words_at_work};
use super::{DomainOptions, Ends};
use crate::error::QemuError;
use crate::live::core::{Adapter, Core, Glance, WATCH_S, channels_wanted, millis};
use crate::live::turn::Dated;
use crate::live::{Ending, LiveError};
use crate::virsh::Lasting;

/// Both daemons, and a domain that moves from one to the other.
pub(in crate::live) struct Move<'a> {
    pub(super) core: Core<'a>,
    pub(super) ends: &'a Ends,
    pub(super) options: &'a DomainOptions,
    pub(super) known: Known,
    /// Disks that are copied, with the pool of each at the target.
    pub(super) copied: Vec<(DomainDisk, String)>,
    /// Volumes that this run made at the target, as pool and name.
    made: Vec<(String, String)>,
    /// Milliseconds of downtime that were set before.
    downtime_before: Option<u64>,
    pub(super) was_persistent: bool,
    pub(super) last: Told,
    /// Bytes of memory that are free at the target.
    pub(super) free_bytes: Option<u64>,
    pub(super) sharing: Sharing,
    /// Of the source's daemon, while the guest's memory is sent.
    silence: Silence,
    /// It went ahead of its memory, and this run has begun to see after it.
    pub(super) after: Option<After>,
    /// How both sides stood then, when they were looked at last.
    pub(super) halves: [Half; 2],
    /// Until when it is waited for where it comes to no end, since it was to.
    pub(super) settle_until: Option<Instant>,
    /// The `virsh` that moves it.
    pub(super) moving: Option<Lasting>,
}

/// Between two looks at a move; each is a program that starts and connects.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// The same where its end is near.
const CLOSE_PAUSE: Duration = Duration::from_millis(20);
/// What does not become clear by itself so often is not clear.
const UNCLEAR_LOOKS: u32 = 6;
const UNCLEAR_PAUSE: Duration = Duration::from_secs(1);
/// From the moment that the daemon tells of until its QEMU goes slower, in times that a look takes: what is told is as old as one, it
/// is seen up to one later, and what is said takes one.
const LOOKS_LATE: u32 = 2;
/// Where looks take longer the end is begun too late: else moves would take seconds more.
const LATE_MAX: Duration = Duration::from_millis(300);
/// Of a move that an earlier run began.
const NO_VIRSH: &str = "no `virsh migrate` of it is at work on this host, so how it was begun is not known: --allow does nothing for it";
/// A move that was cancelled has ended, and one that broke is known to both sides.
pub(super) const SETTLE_TIME_MAX: Duration = SILENCE_MAX;

impl<'a> Move<'a> {
    pub(super) fn new(
        ends: &'a Ends,
        known: Known,
        options: &'a DomainOptions,
        stop: &'a AtomicBool,
        tell: &'a mut dyn FnMut(Event),
    ) -> Move<'a> {
        Move {
            core: Core::new(&options.wanted, By::Libvirt, stop, tell),
            ends,
            options,
            known,
            copied: Vec::new(),
            made: Vec::new(),
            downtime_before: None,
            was_persistent: true,
            last: Told::default(),
            free_bytes: None,
            sharing: Sharing::default(),
            silence: Silence::default(),
            after: None,
            halves: [Half::Silent; 2],
            settle_until: None,
            moving: None,
        }
    }

    pub(super) fn found(&self) -> Result<Found, QemuError> {
        found(self.ends, &self.known.uuid)
    }

    /// What the target's libvirt does not tell, somebody else has to see to.
    fn note_untold(&mut self, domain: &Domain, room: &Room) {
        if !domain.links.is_empty() && room.links.is_none() {
            self.note(format!(
                "the target's libvirt does not tell its bridges and cards: see that it has {}",
                domain.links.join(", ")
            ));
        }
        if domain.huge_pages.is_some() && room.free_pages.is_none() {
            self.note("the target's libvirt does not tell its free huge pages: see that there are enough");
        }
    }

    /// Starts a `virsh` that goes on without this run.
    pub(super) fn begin(&mut self, words: &[String]) -> Result<(), QemuError> {
        self.note(format!("virsh {}", words.join(" ")));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.moving = Some(self.ends.source.begin(&words)?);
        Ok(())
    }

    /// Watches it to its end. What is not to go on is cancelled.
    pub(super) fn follow(&mut self) -> Result<Moved, Ending> {
        if let Err(cause) = self.drive() {
            // One that went ahead is not cancelled.
            if self.after.is_none() {
                self.cancel();
            }
            return Err(cause);
        }
        self.arrive()
    }

    /// It has come to its end, as far as is known.
    pub(super) fn arrive(&mut self) -> Result<Moved, Ending> {
        let mut found = self.settled();
        if self.is_to_be_seen_after(&found) {
            // It went before anybody looked.
            self.after = Some(self.begin_to_see_after());
            self.drive()?;
            found = self.settled();
        }
        match found? {
            Found::Moved => self.arrived().map_err(|error| error.cause),
            found => Err(Ending::Failed(self.core.failed(found.settled().0))),
        }
    }

    /// Makes what disks are copied into. libvirt would do so by itself, and take what is there for its own.
    pub(super) fn make_volumes(&mut self) -> Result<(), QemuError> {
        for (disk, pool) in self.copied.clone() {
            let name = disk.place.rsplit('/').next().unwrap_or_default().to_string();
            let bytes = disk.bytes.to_string();
            let volume = ["--pool", &pool, "--name", &name, "--capacity", &bytes, "--allocation", "0"];
            let words = [&["vol-create-as"], &volume[..], &["--format", &disk.format]].concat();
            self.ends.target.ask(&words)?;
            self.made.push((pool, name));
        }
        Ok(())
    }

    pub(super) fn promise_downtime(&mut self) -> Result<(), QemuError> {
        let uuid = &self.known.uuid;
        self.downtime_before = Some(self.ends.source.downtime_max(uuid)?);
        // `virsh migrate --bandwidth` sets it. A daemon that does not tell has nothing to be put back.
        self.sharing.speed_before = self.ends.source.speed_max(uuid, &[]).ok();
        let counted = self.between().downtime_of_qemu(&self.core.promise());
        self.ends.source.set_downtime_max(uuid, millis(counted).max(1))
    }

    /// What may be done to keep the promise, as the `virsh` at work tells.
    pub(super) fn deeds_left(&mut self) -> Vec<Deed> {
        let Some(words) = words_at_work(&self.known.uuid) else {
            if self.core.wanted.allowed != Allowed::default() {
                self.note(NO_VIRSH);
            }
            return Vec::new();
        };
        self.core.deeds_left(begun_with(&words))
    }

    /// Where a move is, as far as that is known without its figures: it has ended, or went ahead.
    fn stage(&mut self) -> Result<Option<Phase>, Ending> {
        match self.moving.as_mut().map(Lasting::ended) {
            Some(None) => Ok(None),
            Some(Some(Ok(()))) => Ok(Some(Phase::Done)),
            // In post-copy a line that breaks ends `virsh`, and is made anew.
            Some(Some(Err(error))) => match self.found() {
                Ok(Found::Ahead | Found::Broken) => Ok(Some(Phase::Broken)),
                Ok(_) | Err(_) => Err(refused(error)),
            },
            // An earlier run began it.
            None => Ok(match self.found() {
                Ok(Found::Sending) => None,
                Ok(Found::Ahead | Found::Broken) => Some(Phase::PostCopy),
                Ok(_) => Some(Phase::Done),
                // A target that does not answer is not needed for it, as long as the source sends.
                Err(_) => match self.ends.source.job(&self.known.uuid, 0) {
                    Ok(job) if job.kind != DomainJob::Out => Some(Phase::Done),
                    Ok(_) | Err(_) => None,
                },
            }),
        }
    }

    /// A look at a guest that has not gone ahead, as far as is known.
    fn look_before(&mut self) -> Result<Option<Glance>, Ending> {
        if let Some(phase) = self.stage()? {
            return Ok(Some(self.is_in(phase)));
        }
        let asked = Instant::now();
        let looked = self.ends.source.look(&self.known.uuid);
        let Some((mut job, stands)) = self.silence.outlast(looked, self.core.now_ms())? else {
            return Ok(None);
        };
        let took = asked.elapsed();
        // It was told about in the middle of that.
        job.sample.at_ms = self.core.now_ms().saturating_sub(millis(took / 2));
        let told = job.told(stands.filter(|_| self.core.state.was_running));
        if job.disks[1] > 0 {
            let [done_bytes, all_bytes] = job.disks;
            let state = MirrorState { done_bytes, all_bytes, is_ready: done_bytes == all_bytes };
            self.core.tell(Event::Disk { name: "all together".into(), state });
        }
        // What the last looks of a move tell is nothing at all.
        if told.total_bytes > 0 {
            self.last = told.clone();
        }
        Ok(Some(Glance { is_told: told.sample.sent_bytes > 0, late: lateness(took), told }))
    }

    /// It is there by another word than that of its figures.
    pub(super) fn is_in(&self, phase: Phase) -> Glance {
        let sample = Sample { at_ms: self.core.now_ms(), phase, ..self.last.sample };
        let told = Told { sample, ..self.last.clone() };
        Glance { told, is_told: false, late: Duration::ZERO }
    }

    /// Sends as fast as it may, where that could not be set before.
    fn lift(&mut self) {
        if self.sharing.is_to_be_lifted {
            let rate_max = self.core.rate_max().unwrap_or(RATE_UNLIMITED);
            self.sharing.is_to_be_lifted = self.set_speed(rate_max).is_err();
        }
    }

    /// Who has it when nothing more comes by itself, or what only comes if it is seen after.
    pub(super) fn settled(&mut self) -> Result<Found, QemuError> {
        let until = *self.settle_until.get_or_insert_with(|| Instant::now() + SETTLE_TIME_MAX);
        loop {
            let found = self.found();
            let is_settled = matches!(&found, Ok(found) if !is_moving(found));
            if is_settled || self.is_to_be_seen_after(&found) || Instant::now() >= until {
                return found;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    pub(super) fn is_to_be_seen_after(&self, found: &Result<Found, QemuError>) -> bool {
        self.after.is_none() && matches!(found, Ok(Found::Ahead | Found::Broken))
    }

    /// It is at the target, and the source has let it go.
    pub(super) fn arrived(&mut self) -> Result<Moved, LiveError> {
        let (source, target) = (&self.ends.source, &self.ends.target);
        let uuid = self.known.uuid.clone();
        let total = self.core.began.elapsed();
        let halted = |error: QemuError| LiveError { cause: Ending::Failed(error), guest_at: Where::Target };
        let there = target.stand(&uuid).map_err(halted)?;
        if self.core.state.was_running && !there.runs() {
            let cause =
                self.core.failed(&format!("the guest is {:?} ({}) at the target", there.state, there.reason));
            return Err(LiveError { cause: Ending::Failed(cause), guest_at: Where::Halted });
        }
        let here = source.stand(&uuid).map_err(halted)?;
        if !here.state.is_empty() {
            self.keep_off(&uuid).map_err(halted)?;
            self.put_speed_back();
        }
        // What it was is told for a while; a move that nobody asked about in time has no figures.
        let job = self.completed();
        let mut last = self.last.clone();
        let mut stood_still = None;
        if let Some(job) = job {
            last = job.told(None);
            stood_still = last.downtime_ms.map(Duration::from_millis);
        }
        last.status = "completed".into();
        last.sample.phase = Phase::Done;
        last.sample.at_ms = millis(total);
        self.core.tell(Event::Memory(last.clone()));
        // The target's daemon counts from the stop at the source to the start there.
        Ok(self.core.moved(total, stood_still, last))
    }

    /// What the daemons tell of a move that is over.
    fn completed(&self) -> Option<super::read::Job> {
        let words = ["domjobinfo", &self.known.uuid, "--completed", "--rawstats"];
        let values = self.ends.target.values(&words).ok()?;
        values.contains_key("downtime").then(|| super::read::Job::of(&values, 0))
    }

    /// The source's definition is kept, and must not be started with its host any more: the target's is.
    fn keep_off(&mut self, uuid: &str) -> Result<(), QemuError> {
        if !self.ends.source.info(uuid)?.starts_with_host {
            return Ok(());
        }
        if self.ends.target.info(uuid)?.is_persistent {
            self.ends.target.ask(&["autostart", uuid])?;
        }
        self.ends.source.ask(&["autostart", uuid, "--disable"])?;
        self.note("it is started with the target's host from now on, and with the source's no more");
        Ok(())
    }

    /// What was set at the source is as it was.
    pub(super) fn tidy_source(&mut self) {
        self.put_speed_back();
        let Some(ms) = self.downtime_before.take() else { return };
        if let Err(error) = self.ends.source.set_downtime_max(&self.known.uuid, ms) {
            self.note(format!("the longest downtime is not what it was before, {ms} ms: {}", error.chain()));
        }
    }

    /// What this run made at the target for a guest that did not come.
    pub(super) fn remove_volumes(&mut self) {
        for (pool, name) in std::mem::take(&mut self.made) {
            let removed = self.ends.target.ask(&["vol-delete", "--pool", &pool, "--vol", &name]);
            if let Err(error) = removed {
                self.note(format!(
                    "the volume {name} of pool {pool} is left at the target: {}",
                    error.chain()
                ));
            }
        }
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.core.note(text);
    }
}

impl<'a> Adapter<'a> for Move<'a> {
    type Findings = Findings;

    fn core(&self) -> &Core<'a> {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core<'a> {
        &mut self.core
    }

    /// Changes nothing but the target's knowledge of its own pools.
    fn inspect(&mut self) -> Result<Facts, Ending> {
        let (source, target) = (&self.ends.source, &self.ends.target);
        let uuid = self.known.uuid.clone();
        let domain = source.domain(&uuid)?;
        let mut room = target.room(&domain)?;
        let xml = source.ask(&["dumpxml", &uuid, "--migratable"])?;
        match target.compare_processor(&domain, &xml)? {
            Processor::Fits => {}
            Processor::Refused(why) => room.processor_refused = Some(why),
            Processor::NotCompared(why) => self.note(format!(
                "its processors are not compared with the target's ({why}): see that both hosts have the same"
            )),
        }
        self.note_untold(&domain, &room);
        self.free_bytes = room.free_bytes;
        let mut found = domain_obstacles(&domain, &room);
        let private: Vec<&DomainDisk> = domain.disks.iter().filter(|disk| disk.is_private()).collect();
        if self.options.copies_disks {
            let spots = target.spots(&private)?;
            let pairs: Vec<(DomainDisk, Spot)> =
                private.iter().map(|disk| (*disk).clone()).zip(spots).collect();
            let free_bytes = target.pool_space(&pairs);
            found.extend(copy_obstacles(&pairs, &free_bytes));
            for (pool, needed, free) in tight_pools(&pairs, &free_bytes) {
                let (needed, free) = (needed >> 20, free >> 20);
                self.note(format!(
                    "its disks may come to take {needed} MiB, and {free} are free in pool {pool} at the target"
                ));
            }
            let pooled = |(disk, spot): (DomainDisk, Spot)| match spot {
                Spot::Free(pool) => Some((disk, pool)),
                Spot::Taken | Spot::NoPool => None,
            };
            self.copied = pairs.into_iter().filter_map(pooled).collect();
        }
        if !found.is_empty() {
            return Err(Ending::Obstacles(found));
        }
        if !self.options.copies_disks && !private.is_empty() {
            self.note(format!(
                "disks are taken to be shared ({}): libvirt sees whether they lie where that can be, not whether the target \
                 finds the same there",
                private.iter().map(|disk| disk.place.as_str()).collect::<Vec<_>>().join(", ")
            ));
        }
        if domain.is_persistent && target.stand(&uuid)?.state == "shut off" {
            self.note("the target has a definition of it, which is replaced by the source's");
        }
        self.core.state.was_running = source.stand(&uuid)?.runs();
        for (side, daemon) in [(Side::Source, source), (Side::Target, target)] {
            if daemon.loses_writes(&domain) {
                self.core.tell(Event::Note(format!("at the {side}: {LOSES_WRITES}")));
            }
        }
        self.was_persistent = domain.is_persistent;
        if !domain.is_persistent {
            self.note("it has no definition that outlasts its run, and gets none at the target");
        }
        let dirty = match self.core.state.was_running {
            true => source.dirty_rate(&uuid, WATCH_S),
            false => Some(0.0),
        };
        Ok(self.facts(domain.memory_bytes, dirty))
    }

    fn findings(&self, facts: Facts) -> Findings {
        Findings {
            facts,
            copied: self.copied.clone(),
            free_bytes: self.free_bytes,
            was_running: self.core.state.was_running,
            was_persistent: self.was_persistent,
        }
    }

    fn found_before(&self) -> Option<Dated<Findings>> {
        self.options.looked.clone().map(|LookedDomain(found)| found)
    }

    fn take(&mut self, found: Findings) -> Facts {
        let Findings { facts, copied, free_bytes, was_running, was_persistent } = found;
        (self.copied, self.free_bytes) = (copied, free_bytes);
        (self.core.state.was_running, self.was_persistent) = (was_running, was_persistent);
        facts
    }

    fn handover(&self) -> Handover {
        let carried = self.core.carried().map(|carried| carried.by.round_trip());
        Handover {
            round_trip: carried.unwrap_or_default(),
            has_disks: !self.copied.is_empty(),
            is_in_step: false,
            is_carried: carried.is_some(),
        }
    }

    fn channels(&self) -> u8 {
        // QEMU 10.0 does not take several with post-copy.
        let otherwise = self.core.wanted.allowed.postcopy.then_some(1);
        let wanted = channels_wanted(self.core.wanted.channels.or(otherwise), self.core.rate_max());
        // Carried connections may arrive in another order than they were made; under TLS none says what it is before its handshake.
        let can_tell = || self.ends.target.tells_connections_apart() && self.options.tls.is_none();
        let in_order = self.core.carried().is_none() || can_tell();
        if in_order { wanted } else { 1 }
    }

    fn disk_bytes(&self) -> u64 {
        self.copied.iter().map(|(disk, _)| disk.bytes).sum()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.free_bytes
    }

    fn look_on(&mut self) -> Result<Option<Glance>, Ending> {
        if self.after.is_none() {
            let looked = self.look_before()?;
            let is_ahead =
                |looked: &Glance| matches!(looked.told.sample.phase, Phase::PostCopy | Phase::Broken);
            if !looked.as_ref().is_some_and(is_ahead) {
                return Ok(looked);
            }
        }
        self.look_after().map(Some)
    }

    fn pause(&mut self, pause: Pause) -> Result<(), Ending> {
        // Once its end goes slower looks would only be in its way.
        let is_close = pause == Pause::Close && !self.core.state.follow.is_eased();
        std::thread::sleep(if is_close { CLOSE_PAUSE } else { LOOK_PAUSE });
        Ok(())
    }

    /// libvirt calls a guest back also while it is paused to be handed over.
    fn attend(&mut self, told: &Told) -> Result<(), Ending> {
        if told.sample.phase == Phase::Switchover { self.core.halt_if_stopped() } else { Ok(()) }
    }

    fn keep_share(&mut self, phase: Phase) -> Result<(), Ending> {
        self.lift();
        let kept = self.try_to_keep_share();
        // In post-copy nothing is given up for a share: it goes on with that which it had.
        if matches!(phase, Phase::PostCopy | Phase::Broken) { Ok(()) } else { Ok(kept?) }
    }

    /// libvirt has started it.
    fn let_go(&mut self) -> Result<(), Ending> {
        self.core.state.passage.give_leave();
        self.core.state.passage.runs_ahead();
        Ok(())
    }

    fn halves(&mut self, _: &Told) -> ([Half; 2], Option<String>) {
        (self.halves, None)
    }

    fn start_postcopy(&mut self) -> Result<(), Ending> {
        if let Some(why) = self.ends.target.cannot_resume() {
            self.note(format!("{why}; if the line breaks now, the guest waits until that is updated"));
        }
        let (source, uuid) = (&self.ends.source, &self.known.uuid);
        if self.core.state.was_running {
            // QEMU 10.0 starts a guest again that ran when it went ahead, if it has sent everything and the line breaks
            // before it has the target's word, although it runs there. One that stood is left standing; if the move is given
            // up before post-copy begins, libvirt starts it again. Two children, though the guest stands still meanwhile:
            // one `virsh` for both would go on after the first had failed.
            source.ask(&["suspend", uuid])?;
        }
        Ok(source.ask(&["migrate-postcopy", uuid]).map(drop)?)
    }

    /// QEMU does so by itself, as it was let when it began.
    fn slow_down(&mut self, _: f64) -> Result<(), Ending> {
        Ok(())
    }

    /// What the daemon refuses is no reason to end a move.
    fn send_eased(&mut self, (rate, is_eased): (u64, bool), words: Option<String>) -> Result<(), Ending> {
        self.sharing.eased = is_eased.then_some(rate);
        match self.set_speed(rate) {
            Ok(()) => words.into_iter().for_each(|words| self.note(words)),
            Err(error) => {
                self.note(format!("how fast the end of memory goes cannot be set: {}", error.chain()));
                self.core.state.follow.cannot_ease();
                self.sharing.eased = None;
                // What was refused may be set all the same: with each look it is tried to be lifted.
                self.sharing.is_to_be_lifted = true;
            }
        }
        Ok(())
    }

    /// libvirt has no word by which a target could be told.
    fn pause_line(&mut self, side: Side) -> bool {
        let words = ["domjobabort", &self.known.uuid, "--postcopy"];
        side == Side::Source && self.ends.source.ask(&words).is_ok()
    }

    /// Has libvirt make another line.
    fn try_line(&mut self, _: Half) -> Result<(), QemuError> {
        let words = self.resume_words();
        self.begin(&words)
    }
}

/// Who has a domain. What two daemons say one after the other may be of two moments of one move: what is unclear is looked at
/// again.
pub(super) fn found(ends: &Ends, uuid: &str) -> Result<Found, QemuError> {
    let mut looks = 0;
    loop {
        let [here, there] = stands(ends, uuid)?;
        let found = domain_found(&here, &there);
        looks += 1;
        if !matches!(found, Found::Unclear(_)) || is_moving(&found) || looks >= UNCLEAR_LOOKS {
            return Ok(found);
        }
        std::thread::sleep(UNCLEAR_PAUSE);
    }
}

/// How both daemons have a domain. The source first: what it has let go by then the target has.
pub(super) fn stands(ends: &Ends, uuid: &str) -> Result<[DomainStand; 2], QemuError> {
    let here = ends.source.stand(uuid)?;
    Ok([here, ends.target.stand(uuid)?])
}

/// Whether more is to come by itself.
fn is_moving(found: &Found) -> bool {
    // In the first moment the target has not begun to wait, and a daemon that cleans up has a job that is over soon.
    matches!(
        found,
        Found::Sending
            | Found::Ahead
            | Found::Unclear(Unclear::Domain(DomainUnclear::OtherMove | DomainUnclear::OtherJob))
    )
}

/// By which what is said comes late, where a look takes so long.
fn lateness(took: Duration) -> Duration {
    (took * LOOKS_LATE).min(LATE_MAX)
}

/// What libvirt says at once of disks is a reason that was found before anything was done.
fn refused(error: QemuError) -> Ending {
    let what = error.chain();
    if !what.contains("Unsafe migration") {
        return error.into();
    }
    let advice = "copy disks with --disks mirror, or put them where both hosts have them (and mend the cache mode that it names)";
    Ending::Obstacles(vec![drover_live::Obstacle { what, advice: advice.into() }])
}

#[cfg(test)]
mod tests;
