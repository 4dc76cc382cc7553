//! A domain's move, from a look at both daemons to a look at both daemons. libvirt moves it; drover looks, sets, watches and
//! gives up in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_copy::converge::Estimate;
use drover_live::{
    Choice, Course, Deed, Domain, DomainDisk, DomainFound, DomainStand, DomainUnclear, Ease, Facts, Forecast,
    Handover, LOSES_WRITES, Phase, Room, Side, SoFar, Spot, Watch, Way, Why, choose, copy_obstacles,
    domain_found, domain_obstacles, tight_pools,
};

use super::ask::{Known, Processor};
use super::beforehand::Sharing;
use super::silence::{SILENCE_TIME_MAX, Silence};
use super::{DomainOptions, Ends};
use crate::error::{QemuError, QemuErrorKind};
use crate::live::disks::MirrorState;
use crate::live::guest::Told;
use crate::live::run::{
    DIRTY_SPREAD, LINE_ASSUMED, Plan, WATCH_S, channels_wanted, domain_at, downtime_of_qemu, excess_words,
    is_news, kept, known_on_the_way, overhead,
};
use crate::live::still::Still;
use crate::live::turn::at_once;
use crate::live::{Ending, Event, LiveError, Moved, Where};
use crate::virsh::Lasting;

/// Both daemons, and a domain that moves from one to the other.
pub(super) struct Move<'a> {
    pub(super) ends: &'a Ends,
    pub(super) options: &'a DomainOptions,
    pub(super) stop: &'a AtomicBool,
    pub(super) tell: &'a mut dyn FnMut(Event),
    pub(super) known: Known,
    /// Disks that are copied, with the pool of each at the target.
    pub(super) copied: Vec<(DomainDisk, String)>,
    /// Volumes that this run made at the target, as pool and name.
    made: Vec<(String, String)>,
    /// Milliseconds of downtime that were set before.
    downtime_before: Option<u64>,
    pub(super) was_running: bool,
    pub(super) was_persistent: bool,
    foreseen: Forecast,
    deeds: Vec<(Deed, Why)>,
    pub(super) last: Told,
    /// It stands still to be handed over.
    still: Still,
    /// Whether what carries the move did when it was looked at last.
    was_up: bool,
    has_been_up: bool,
    /// Bytes of memory that are free at the target.
    pub(super) free_bytes: Option<u64>,
    pub(super) sharing: Sharing,
    /// Sees to the end of its memory over a link.
    pub(super) easing: Option<Ease>,
    /// Of the source's daemon, while the guest's memory is sent.
    silence: Silence,
    /// It went ahead of its memory, and this run has begun to see after it.
    pub(super) is_seen_after: bool,
    /// The `virsh` that moves it.
    pub(super) moving: Option<Lasting>,
}

/// Between two looks at a move; each is a program that starts and connects.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// For which a domain stands still while both daemons hand it over, beside what QEMU takes: it stood for 100 ms at least where QEMU alone
/// takes 30, on a busy host for much longer.
const LIBVIRT: Estimate = Estimate { likely: 0.07, spread: 0.1 };
/// The same where its end is near.
const CLOSE_PAUSE: Duration = Duration::from_millis(20);
/// What does not become clear by itself so often is not clear.
const UNCLEAR_LOOKS: u32 = 6;
const UNCLEAR_PAUSE: Duration = Duration::from_secs(1);
/// Of a move that an earlier run began.
const MOVING: &str = "it is on its way: that is watched to its end; Ctrl-C cancels it";
const AHEAD: &str = "it went ahead of its memory in an earlier run: the rest is seen after it";
/// A move that was cancelled has ended, and one that broke is known to both sides.
pub(super) const SETTLE_TIME_MAX: Duration = SILENCE_TIME_MAX;

impl<'a> Move<'a> {
    pub(super) fn new(
        ends: &'a Ends,
        known: Known,
        options: &'a DomainOptions,
        stop: &'a AtomicBool,
        tell: &'a mut dyn FnMut(Event),
    ) -> Move<'a> {
        Move {
            ends,
            options,
            stop,
            tell,
            known,
            copied: Vec::new(),
            made: Vec::new(),
            downtime_before: None,
            was_running: true,
            was_persistent: true,
            foreseen: Forecast::default(),
            deeds: Vec::new(),
            last: Told::default(),
            still: Still::default(),
            was_up: true,
            has_been_up: false,
            free_bytes: None,
            sharing: Sharing::default(),
            easing: None,
            silence: Silence::default(),
            is_seen_after: false,
            moving: None,
        }
    }

    /// Moves it, or sees an earlier move to its end.
    pub(super) fn run(&mut self) -> Result<Moved, LiveError> {
        let at_source = |cause| LiveError { cause, guest_at: Where::Source };
        match self.found() {
            Err(error) => Err(LiveError { cause: error.into(), guest_at: Where::Unknown }),
            Ok(DomainFound::AtSource) => {
                let plan = self.look_in_turn().map_err(|cause| self.unsent(cause))?;
                let began = Instant::now();
                match self.go(&plan, began) {
                    Ok(()) => self.settle(None, began),
                    Err(cause) => self.settle(Some(cause), began),
                }
            }
            Ok(found @ (DomainFound::Moving | DomainFound::Ahead | DomainFound::Broken)) => {
                self.note(if found == DomainFound::Moving { MOVING } else { AHEAD });
                let began = Instant::now();
                let ended = self.watched(began);
                self.settle(ended.err(), began)
            }
            Ok(DomainFound::AtTarget) => {
                self.note("it has moved already");
                self.settle(None, Instant::now())
            }
            Ok(DomainFound::Nowhere) => Err(at_source(nowhere(&self.known.name))),
            Ok(DomainFound::Unclear(why)) => {
                Err(LiveError { cause: Ending::Obstacles(vec![why.obstacle()]), guest_at: domain_at(why) })
            }
        }
    }

    /// What a look ended in: the domain is at the source, unless that says otherwise or nothing.
    fn unsent(&self, cause: Ending) -> LiveError {
        let failed = matches!(cause, Ending::Failed(_));
        let guest_at = match failed.then(|| self.found()) {
            Some(Ok(DomainFound::Nowhere)) => Where::Ended,
            Some(Err(_)) => Where::Unknown,
            Some(Ok(_)) | None => Where::Source,
        };
        LiveError { cause, guest_at }
    }

    /// Looks, and says what a move would take.
    pub(super) fn foresee(&mut self) -> Result<(), Ending> {
        match self.found()? {
            DomainFound::AtSource => self.look().map(drop),
            DomainFound::Moving => {
                self.note("it is on its way: that would be watched to its end");
                Ok(())
            }
            DomainFound::Ahead | DomainFound::Broken => {
                self.note("it went ahead of its memory: the rest would be seen after it");
                Ok(())
            }
            DomainFound::AtTarget => {
                self.note("it has moved already");
                Ok(())
            }
            DomainFound::Nowhere => Err(nowhere(&self.known.name)),
            DomainFound::Unclear(why) => Err(Ending::Obstacles(vec![why.obstacle()])),
        }
    }

    pub(super) fn found(&self) -> Result<DomainFound, QemuError> {
        found(self.ends, &self.known.uuid)
    }

    /// Looks at both daemons, measures, chooses. Changes nothing but the target's knowledge of its own pools.
    fn look(&mut self) -> Result<Plan, Ending> {
        let facts = self.inspect()?;
        self.plan(&facts)
    }

    /// What is done with a domain of which this is known.
    pub(super) fn plan(&mut self, facts: &Facts) -> Result<Plan, Ending> {
        let rate = self.within_share(self.options.line.unwrap_or(LINE_ASSUMED));
        let facts = Facts { rate, overhead: self.overhead(), ..*facts };
        let choice = kept(self.choose(&facts))?;
        Ok(Plan { choice, facts })
    }

    /// Looks at both daemons, and measures.
    pub(super) fn inspect(&mut self) -> Result<Facts, Ending> {
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
        self.was_running = source.stand(&uuid)?.runs();
        for (side, daemon) in [(Side::Source, source), (Side::Target, target)] {
            if daemon.loses_writes(&domain) {
                (self.tell)(Event::Note(format!("at the {side}: {LOSES_WRITES}")));
            }
        }
        self.was_persistent = domain.is_persistent;
        if !domain.is_persistent {
            self.note("it has no definition that outlasts its run, and gets none at the target");
        }
        Ok(self.facts(&domain))
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

    fn facts(&mut self, domain: &Domain) -> Facts {
        let told = match self.was_running {
            true => self.ends.source.dirty_rate(&self.known.uuid, WATCH_S),
            false => Some(0.0),
        };
        if told.is_none() {
            self.note("this libvirt does not tell how fast the guest writes: it is seen on the way");
        }
        let dirty = told.map(|rate| Estimate { likely: rate, spread: rate * DIRTY_SPREAD });
        Facts {
            used_bytes: domain.memory_bytes,
            memory_bytes: domain.memory_bytes,
            dirty: dirty.unwrap_or_default(),
            working_set_bytes: domain.memory_bytes,
            rate: LINE_ASSUMED,
            overhead: self.overhead(),
            so_far: SoFar::default(),
        }
    }

    /// So many moves go at once.
    fn at_once(&self) -> usize {
        at_once(self.options.turn.as_ref())
    }

    /// For which the guest stands still beside the last pass.
    fn overhead(&self) -> Estimate {
        let of_qemu =
            overhead(self.options.carried.as_ref(), &self.options.promise, self.at_once(), self.handover());
        Estimate { likely: of_qemu.likely + LIBVIRT.likely, spread: of_qemu.spread + LIBVIRT.spread }
    }

    /// What the way takes of the downtime beside the last pass.
    fn handover(&self) -> Handover {
        let carried = self.options.carried.as_ref().map(|carried| carried.by.round_trip());
        Handover {
            round_trip: carried.unwrap_or_default(),
            has_disks: !self.copied.is_empty(),
            is_in_step: false,
            is_carried: carried.is_some(),
        }
    }

    /// Connections for its memory.
    pub(super) fn channels(&self) -> u8 {
        // QEMU 10.0 does not take several with post-copy.
        let otherwise = self.options.allowed.postcopy.then_some(1);
        let wanted = channels_wanted(self.options.channels.or(otherwise), self.rate_max());
        // Carried connections may arrive in another order than they were made; under TLS none says what it is before its handshake.
        let can_tell = || self.ends.target.tells_connections_apart() && self.options.tls.is_none();
        let in_order = self.options.carried.is_none() || can_tell();
        if in_order { wanted } else { 1 }
    }

    fn choose(&mut self, facts: &Facts) -> Choice {
        let choice = self.choice(facts);
        (self.tell)(Event::Chosen(Box::new(choice.clone())));
        choice
    }

    fn choice(&self, facts: &Facts) -> Choice {
        let channels = self.channels();
        let way = Way { channels: vec![(channels, facts.rate)], channels_max: channels, zstd: None };
        choose(&self.options.promise, facts, &way, self.options.allowed)
    }

    fn go(&mut self, plan: &Plan, began: Instant) -> Result<(), Ending> {
        let Some(course) = &plan.choice.course else {
            return Err(Ending::Promise(Box::new(plan.choice.clone())));
        };
        self.foreseen = plan.choice.forecast;
        self.halt_if_stopped()?;
        self.make_volumes()?;
        self.promise_downtime()?;
        let excess = self.rate_max().and_then(|rate| excess_words(course.channels, rate));
        excess.into_iter().for_each(|words| self.note(words));
        self.take_share();
        self.easing = self.eases(course, &plan.facts);
        let words = self.words(course.channels);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.note(format!("virsh {}", words.join(" ")));
        self.moving = Some(self.ends.source.begin(&words)?);
        let ended = self.follow(began, course, &plan.facts);
        let Err(cause) = ended else { return Ok(()) };
        self.cancel();
        Err(cause)
    }

    /// Makes what disks are copied into. libvirt would do so by itself, and take what is there for its own.
    fn make_volumes(&mut self) -> Result<(), QemuError> {
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

    fn promise_downtime(&mut self) -> Result<(), QemuError> {
        let uuid = &self.known.uuid;
        self.downtime_before = Some(self.ends.source.downtime_max(uuid)?);
        // `virsh migrate --bandwidth` sets it. A daemon that does not tell has nothing to be put back.
        self.sharing.speed_before = self.ends.source.speed_max(uuid, &[]).ok();
        let (carried, promise) = (self.options.carried.as_ref(), &self.options.promise);
        let counted = downtime_of_qemu(carried, promise, self.at_once(), self.handover());
        // What both daemons take is not in what QEMU counts.
        let of_libvirt = Duration::from_secs_f64(LIBVIRT.likely).min(counted / 2);
        let counted = counted.saturating_sub(of_libvirt);
        self.ends.source.set_downtime_max(uuid, millis(counted).max(1))
    }

    /// Watches it to the end of `virsh`.
    fn follow(&mut self, began: Instant, course: &Course, facts: &Facts) -> Result<(), Ending> {
        let mut to_look_at = self.options.line.is_none().then_some(facts);
        let mut watch = Watch::new(self.options.promise, &course.deeds);
        let mut goes_at_once = course.at_once == Some(Deed::PostCopy);
        loop {
            match self.moving.as_mut().and_then(Lasting::ended) {
                None => {}
                // In post-copy a line that breaks ends `virsh`, and is made anew.
                Some(Err(_)) if self.went_ahead() => return self.see_after(began),
                Some(ended) => return ended.map_err(refused),
            }
            let phase = self.look_on(&mut watch, began)?;
            if matches!(phase, Some(Phase::PostCopy | Phase::Broken)) {
                return self.see_after(began);
            }
            if goes_at_once && phase == Some(Phase::Precopy) && self.last.sample.passes > 1 {
                goes_at_once = false;
                self.start_postcopy()?;
            }
            if let (Some(known), Some(rate)) = (to_look_at, watch.rate()) {
                to_look_at = None;
                self.look_again(known, rate.likely)?;
            }
            if let Some(rate) = watch.full_swing() {
                self.foresee_anew(facts, rate);
            }
            let is_close = phase.is_some() && self.is_close();
            std::thread::sleep(if is_close { CLOSE_PAUSE } else { LOOK_PAUSE });
        }
    }

    fn went_ahead(&self) -> bool {
        matches!(self.found(), Ok(DomainFound::Ahead | DomainFound::Broken))
    }

    /// Watches a move that an earlier run began, to its end.
    fn watched(&mut self, began: Instant) -> Result<(), Ending> {
        self.was_persistent = self.ends.source.info(&self.known.uuid).is_ok_and(|info| info.is_persistent);
        let mut watch = Watch::new(self.options.promise, &[]);
        loop {
            match self.found()? {
                DomainFound::Moving => {}
                DomainFound::Ahead | DomainFound::Broken => return self.see_after(began),
                _ => return Ok(()),
            }
            if let Err(cause) = self.look_on(&mut watch, began) {
                self.cancel();
                return Err(cause);
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// One look at a move: tells, and says if it has to end, else where it is; nothing where the daemon does not answer.
    fn look_on(&mut self, watch: &mut Watch, began: Instant) -> Result<Option<Phase>, Ending> {
        let uuid = &self.known.uuid;
        let asked = Instant::now();
        let looked = self.ends.source.look(uuid);
        let Some((mut job, stands)) = self.silence.outlast(looked, Instant::now())? else {
            self.halt_if_stopped()?;
            return Ok(None);
        };
        let took = asked.elapsed();
        // It was told about in the middle of that.
        job.sample.at_ms = millis(began.elapsed().saturating_sub(took / 2));
        let told = job.told(stands.filter(|_| self.was_running));
        let phase = told.sample.phase;
        if matches!(phase, Phase::PostCopy | Phase::Broken) {
            return Ok(Some(phase));
        }
        self.halt_if_stopped()?;
        self.keep_share()?;
        if job.disks[1] > 0 {
            let [done_bytes, all_bytes] = job.disks;
            let state = MirrorState { done_bytes, all_bytes, is_ready: done_bytes == all_bytes };
            (self.tell)(Event::Disk { name: "all together".into(), state });
        }
        (self.tell)(Event::Memory(told.clone()));
        // What the last looks of a move tell is nothing at all.
        if told.total_bytes > 0 {
            self.last = told.clone();
        }
        self.halt_if_still_for_long(phase)?;
        let is_up = self.look_at_link();
        self.ease(&told, is_up, took);
        let is_telling = told.sample.sent_bytes > 0 && is_up && self.sharing.eased.is_none();
        let advised = match is_telling {
            true => watch.see(told.sample),
            false => watch.see_interrupted(told.sample),
        };
        if let Some((deed, why)) = advised {
            self.act(deed, why)?;
        }
        Ok(Some(phase))
    }

    /// Whether what carries the move does; tells when that changes.
    pub(super) fn look_at_link(&mut self) -> bool {
        let Some(carried) = &self.options.carried else { return true };
        let (site, is_up) = (carried.by.site().to_string(), carried.by.is_up());
        self.has_been_up |= is_up;
        if !self.has_been_up {
            // It begins with the first connection.
            return true;
        }
        if std::mem::replace(&mut self.was_up, is_up) != is_up {
            (self.tell)(Event::Link { site, is_up });
        }
        is_up
    }

    fn act(&mut self, deed: Deed, why: Why) -> Result<(), Ending> {
        (self.tell)(Event::Did(deed, why));
        self.deeds.push((deed, why));
        match deed {
            Deed::GiveUp => Err(Ending::GivenUp(why)),
            Deed::PostCopy => self.start_postcopy(),
            // QEMU does so by itself, as it was let when it began.
            Deed::Throttle => Ok(()),
        }
    }

    /// The line is known now: is the promise still one?
    fn look_again(&mut self, facts: &Facts, rate: f64) -> Result<(), Ending> {
        let choice = self.choose(&known_on_the_way(facts, rate, &self.last));
        self.foreseen = choice.forecast;
        kept(choice).map(drop)
    }

    /// The line is in full swing. That ends nothing: whether the promise is kept is watched.
    fn foresee_anew(&mut self, facts: &Facts, rate: f64) {
        let choice = self.choice(&known_on_the_way(facts, rate, &self.last));
        if is_news(&self.foreseen, &choice.forecast) {
            self.foreseen = choice.forecast;
            (self.tell)(Event::Chosen(Box::new(choice)));
        }
    }

    /// A guest that stands still and does not arrive is better off where it was.
    fn halt_if_still_for_long(&mut self, phase: Phase) -> Result<(), Ending> {
        if phase != Phase::Switchover {
            self.still.is_over(phase);
            return Ok(());
        }
        let goes_on = self.still.goes_on(self.options.carried.as_ref(), self.options.promise.downtime_max);
        goes_on.map_err(|why| Ending::Failed(failed(why)))
    }

    fn halt_if_stopped(&self) -> Result<(), Ending> {
        if self.stop.load(Ordering::Relaxed) { Err(Ending::Stopped) } else { Ok(()) }
    }

    /// Sees where it is, whatever was told of its move, and tidies up there.
    fn settle(&mut self, cause: Option<Ending>, began: Instant) -> Result<Moved, LiveError> {
        self.still = Still::default();
        let found = self.settled();
        if self.is_to_be_seen_after(&found) {
            // It went before anybody looked, or while it was to be cancelled.
            let ended = self.see_after(began);
            return self.settle(ended.err().or(cause), began);
        }
        let cause = |text: &str| cause.unwrap_or_else(|| Ending::Failed(failed(text)));
        let at = |cause, guest_at| Err(LiveError { cause, guest_at });
        match found {
            Ok(DomainFound::AtTarget) => self.arrived(began),
            Ok(DomainFound::AtSource) => {
                let cause = cause("the move ended, and the guest is still at the source");
                self.tidy_source();
                self.remove_volumes();
                at(cause, Where::Source)
            }
            Ok(DomainFound::Nowhere) => {
                at(cause("neither daemon runs the domain any more: it ended on its way"), Where::Unknown)
            }
            Ok(DomainFound::Moving) => at(cause("the move does not come to its end"), Where::Unknown),
            Ok(DomainFound::Ahead) => {
                self.note("the rest of its memory follows, and nobody sees after it any more: say `drover live` again");
                at(cause("the guest went ahead, and the move does not come to its end"), Where::Between)
            }
            Ok(DomainFound::Broken) => at(
                cause("the guest went ahead, and the line to the rest of its memory is gone"),
                Where::Between,
            ),
            Ok(DomainFound::Unclear(why)) => {
                self.note(why.obstacle().to_string());
                if domain_at(why) == Where::Source {
                    self.tidy_source();
                }
                at(cause("the move ended halfway"), domain_at(why))
            }
            Err(error) => {
                self.note(error.chain());
                at(cause("a daemon cannot be asked any more"), Where::Unknown)
            }
        }
    }

    /// Who has it when nothing more comes by itself, or what only comes if it is seen after.
    fn settled(&self) -> Result<DomainFound, QemuError> {
        let until = Instant::now() + SETTLE_TIME_MAX;
        loop {
            let found = self.found();
            let is_settled = matches!(&found, Ok(found) if !is_moving(found));
            if is_settled || self.is_to_be_seen_after(&found) || Instant::now() >= until {
                return found;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn is_to_be_seen_after(&self, found: &Result<DomainFound, QemuError>) -> bool {
        !self.is_seen_after && matches!(found, Ok(DomainFound::Ahead | DomainFound::Broken))
    }

    /// It is at the target, and the source has let it go.
    fn arrived(&mut self, began: Instant) -> Result<Moved, LiveError> {
        let (source, target) = (&self.ends.source, &self.ends.target);
        let uuid = self.known.uuid.clone();
        let total = began.elapsed();
        let halted = |error: QemuError| LiveError { cause: Ending::Failed(error), guest_at: Where::Target };
        let there = target.stand(&uuid).map_err(halted)?;
        if self.was_running && !there.runs() {
            let cause = failed(&format!("the guest is {:?} ({}) at the target", there.state, there.reason));
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
        (self.tell)(Event::Memory(last.clone()));
        Ok(Moved {
            foreseen: self.foreseen,
            // libvirt alone takes longer than a line to be measured.
            foreseen_below_s: None,
            total,
            downtime_by_qemu: last.downtime_ms.map(Duration::from_millis),
            // The target's daemon counts from the stop at the source to the start there.
            stood_still,
            last,
            deeds: std::mem::take(&mut self.deeds),
        })
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
    fn tidy_source(&mut self) {
        self.put_speed_back();
        let Some(ms) = self.downtime_before.take() else { return };
        if let Err(error) = self.ends.source.set_downtime_max(&self.known.uuid, ms) {
            self.note(format!("the longest downtime is not what it was before, {ms} ms: {}", error.chain()));
        }
    }

    /// What this run made at the target for a guest that did not come.
    fn remove_volumes(&mut self) {
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
        (self.tell)(Event::Note(text.into()));
    }
}

/// Who has a domain. What two daemons say one after the other may be of two moments of one move: what is unclear is looked at
/// again.
pub(super) fn found(ends: &Ends, uuid: &str) -> Result<DomainFound, QemuError> {
    let mut looks = 0;
    loop {
        let [here, there] = stands(ends, uuid)?;
        let found = domain_found(&here, &there);
        looks += 1;
        if !matches!(found, DomainFound::Unclear(_)) || is_moving(&found) || looks >= UNCLEAR_LOOKS {
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
fn is_moving(found: &DomainFound) -> bool {
    // In the first moment the target has not begun to wait, and a daemon that cleans up has a job that is over soon.
    matches!(
        found,
        DomainFound::Moving
            | DomainFound::Ahead
            | DomainFound::Unclear(DomainUnclear::OtherMove | DomainUnclear::OtherJob)
    )
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

pub(super) fn nowhere(name: &str) -> Ending {
    let advice = "start it first; a domain that is switched off needs no live move";
    let what = format!("{name} runs at neither daemon");
    Ending::Obstacles(vec![drover_live::Obstacle { what, advice: advice.into() }])
}

pub(super) fn failed(why: &str) -> QemuError {
    QemuError::new(QemuErrorKind::Failed, "the move of the domain").because(why.to_string())
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
