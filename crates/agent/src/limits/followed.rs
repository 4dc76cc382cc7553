//! Keeping to limits on the way to a site: those of a run, and that of the site, shared with all who send there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use drover_link::{RateLimit, Used};
use drover_types::chain;

use super::{DayLimits, Part, Sent, Slot, share, wanted};
use crate::now;
use crate::trust::{DayLimit, Fingerprint, Folder, FolderError, Peer, Peers, limit_at};

/// How often limits are looked up, and shares found anew.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A part that was found is kept for so many looks at which nothing can be shared, before all of the limit is taken.
const LOOKS_FAILED_MAX: u32 = 10;

/// Limits of one run, beside that of the site.
pub struct Own {
    /// By the hours.
    pub limits: DayLimits,
    /// Bytes a second at every hour.
    pub rate: Option<u64>,
    /// How many runs share the limits.
    pub sharers: Sharers,
    /// Who is told that a limit cannot be shared.
    pub say: fn(&str),
}

impl Own {
    /// None.
    pub fn none(say: fn(&str)) -> Own {
        Own { limits: DayLimits::default(), rate: None, sharers: Sharers::default(), say }
    }

    fn at(&self, seconds: u64) -> Option<u64> {
        let of_all = self.limits.at(seconds).map(|rate| (rate / self.sharers.count()).max(1));
        [of_all, self.rate].into_iter().flatten().min()
    }
}

/// How many runs share a plan's limits on the way: one, unless somebody says more. It may change at any time.
#[derive(Clone, Default)]
pub struct Sharers(Arc<AtomicU64>);

impl Sharers {
    /// From now on it is so many.
    pub fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Relaxed).max(1)
    }
}

/// The limit on the way to a site. It changes as the day goes on, as the site's is set anew, and as others come and go
/// that send there, for as long as anybody keeps to it.
pub fn followed(folder: Folder, peer: &Peer, own: Own) -> Arc<RateLimit> {
    followed_within(None, Keeper::new(folder, peer, own))
}

fn followed_within(wider: Option<Arc<RateLimit>>, mut keeper: Keeper) -> Arc<RateLimit> {
    let limit = Arc::new(RateLimit::within(wider, None));
    keeper.look(&limit);
    let (site, say, alone) = (keeper.site.clone(), keeper.own.say, keeper.alone(now()));
    let kept = Arc::downgrade(&limit);
    let follow = move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            match kept.upgrade() {
                Some(limit) => keeper.look(&limit),
                None => return,
            }
        }
    };
    if let Err(error) = Builder::new().name("limits".to_string()).spawn(follow) {
        // A share would stay as small as it is now. The slot has gone with the keeper.
        say(&format!("{site}: its limit is not shared, and stays as it is at this hour: {error}"));
        limit.set(alone);
    }
    limit
}

/// Limits of what an agent sends to its peers: one for each that has sessions, within one for all.
pub struct OfPeers {
    all: Option<Arc<RateLimit>>,
    folder: Folder,
    of_each: Mutex<HashMap<Fingerprint, Weak<RateLimit>>>,
    say: fn(&str),
}

impl OfPeers {
    /// With so many bytes a second to all of them together.
    pub fn new(folder: Folder, rate: Option<u64>, say: fn(&str)) -> OfPeers {
        let all = rate.map(|rate| Arc::new(RateLimit::new(Some(rate))));
        OfPeers { all, folder, of_each: Mutex::default(), say }
    }

    /// The limit of all sessions of a key. One that is no peer's has no limit of its own.
    pub fn of(&self, key: Fingerprint) -> Option<Arc<RateLimit>> {
        let mut of_each = self.of_each.lock().unwrap_or_else(PoisonError::into_inner);
        of_each.retain(|_, limit| limit.strong_count() > 0);
        if let Some(limit) = of_each.get(&key).and_then(Weak::upgrade) {
            return Some(limit);
        }
        let keeper = match Peers::new(self.folder.clone()).with_key(key) {
            Ok(None) => return self.all.clone(),
            Ok(Some(peer)) => Keeper::new(self.folder.clone(), &peer, Own::none(self.say)),
            // It may be a peer: its limit holds as soon as it can be read.
            Err(_) => Keeper::of_key(self.folder.clone(), key, Own::none(self.say)),
        };
        let limit = followed_within(self.all.clone(), keeper);
        of_each.insert(key, Arc::downgrade(&limit));
        Some(limit)
    }
}

/// One that keeps to the limit of a site, with others.
struct Keeper {
    folder: Folder,
    key: Fingerprint,
    /// What the peer of this key is called now; empty until it could be read.
    site: String,
    of_site: Vec<DayLimit>,
    own: Own,
    /// Held while the site has a limit.
    slot: Option<Slot>,
    part: Part,
    /// Looks that may fail until the part holds no more.
    part_holds: u32,
    /// When it looked last, and what had been sent by then.
    looked: (Instant, u64),
    is_told: bool,
}

impl Keeper {
    fn new(folder: Folder, peer: &Peer, own: Own) -> Keeper {
        let mut keeper = Keeper::of_key(folder, peer.key, own);
        keeper.follow(peer.clone());
        keeper
    }

    fn of_key(folder: Folder, key: Fingerprint, own: Own) -> Keeper {
        Keeper {
            folder,
            key,
            site: String::new(),
            of_site: Vec::new(),
            own,
            slot: None,
            part: Part::default(),
            part_holds: 0,
            looked: (Instant::now(), 0),
            is_told: false,
        }
    }

    fn look(&mut self, limit: &RateLimit) {
        // What cannot be read at this moment is as it was.
        if let Ok(Some(peer)) = Peers::new(self.folder.clone()).with_key(self.key) {
            self.follow(peer);
        }
        let (sent, seconds) = (self.sent(limit.used()), now());
        let own = self.own.at(seconds);
        let whole = limit_at(&self.of_site, seconds);
        let of_site = whole.map(|whole| self.part_of(whole, own.unwrap_or(u64::MAX), sent));
        if whole.is_none() {
            (self.slot, self.part, self.part_holds) = (None, Part::default(), 0);
        }
        limit.set_share(self.alone(seconds), [of_site, own].into_iter().flatten().min());
    }

    /// The limit for one that shares with nobody.
    fn alone(&self, seconds: u64) -> Option<u64> {
        [limit_at(&self.of_site, seconds), self.own.at(seconds)].into_iter().flatten().min()
    }

    fn follow(&mut self, peer: Peer) {
        self.of_site = peer.limits;
        if self.site != peer.name {
            // Others look where the present name leads.
            (self.site, self.slot) = (peer.name, None);
        }
    }

    fn sent(&mut self, used: Used) -> Sent {
        let (then, before) = std::mem::replace(&mut self.looked, (Instant::now(), used.bytes));
        let time = then.elapsed().max(Duration::from_millis(1)).as_secs_f64();
        // The cast stops at the largest number.
        let bytes_per_second = (used.bytes.wrapping_sub(before) as f64 / time) as u64;
        Sent { bytes_per_second, debt: used.debt }
    }

    /// What this one may take of the site's limit.
    fn part_of(&mut self, whole: u64, own: u64, sent: Sent) -> u64 {
        let wants = wanted(whole, self.part, sent).min(own);
        let takes = match self.shared(whole, wants) {
            Ok(takes) => {
                (self.part_holds, self.is_told) = (LOOKS_FAILED_MAX, false);
                takes
            }
            Err(error) => self.unshared(whole, &error),
        };
        self.part = Part { wants, takes };
        takes
    }

    /// The part as it was, for some looks; then, and where nothing could ever be told to others, the whole.
    fn unshared(&mut self, whole: u64, error: &FolderError) -> u64 {
        if let Some(left) = self.part_holds.checked_sub(1) {
            self.part_holds = left;
            return self.part.takes.min(whole);
        }
        self.complain(error);
        whole
    }

    fn shared(&mut self, whole: u64, wants: u64) -> Result<u64, FolderError> {
        let found = |others: &[Part]| Part { wants, takes: share(whole, wants, others) };
        Ok(self.held_slot()?.exchange(found)?.takes)
    }

    fn held_slot(&mut self) -> Result<&Slot, FolderError> {
        let slot = match self.slot.take().filter(Slot::is_in_place) {
            Some(slot) => slot,
            None => Slot::claim(&self.folder, &self.site)?,
        };
        Ok(self.slot.insert(slot))
    }

    /// Once, until it can be shared again: it would be the same each time.
    fn complain(&mut self, error: &FolderError) {
        if !std::mem::replace(&mut self.is_told, true) {
            (self.own.say)(&format!(
                "{}: its limit is not shared with other runs of this host: {}",
                self.site,
                chain(error)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parts;
    use super::*;

    const WHOLE: u64 = 1_000_000;

    /// A site with a limit that always holds, and the state that it is kept in.
    struct Here {
        folder: Folder,
        peer: Peer,
        _state: tempfile::TempDir,
    }

    impl Here {
        fn new() -> Here {
            let state = tempfile::tempdir().unwrap();
            let folder = Folder::open(state.path()).unwrap();
            let peer = Peer::new("site-b", Fingerprint([1; 32]), vec!["b:1".to_string()], 0);
            Peers::new(folder.clone()).add(peer.clone()).unwrap().unwrap();
            let here = Here { folder, peer, _state: state };
            here.set(Some(WHOLE));
            here
        }

        fn set(&self, rate: Option<u64>) {
            let limits = rate.map(DayLimit::always);
            let peers = Peers::new(self.folder.clone());
            assert!(peers.set_limits("site-b", limits.into_iter().collect()).unwrap());
        }

        fn keeper(&self, rate: Option<u64>) -> (Keeper, RateLimit) {
            let own = Own { rate, ..Own::none(|_| {}) };
            (Keeper::new(self.folder.clone(), &self.peer, own), RateLimit::new(None))
        }
    }

    /// Sends more than any limit lets through, and looks.
    fn busy((keeper, limit): &mut (Keeper, RateLimit)) -> u64 {
        let _ = limit.take(100 * WHOLE);
        keeper.look(limit);
        limit.bytes_per_second().unwrap()
    }

    #[test]
    fn runs_that_share_a_plans_limit_have_a_part_each() {
        let limits = DayLimits::new(vec![DayLimit::always(WHOLE)]);
        let own = Own { limits: limits.clone(), ..Own::none(|_| {}) };
        let at = |count: u64| {
            own.sharers.set(count);
            own.at(now()).unwrap()
        };
        assert_eq!([0, 1, 4, u64::MAX].map(at), [WHOLE, WHOLE, WHOLE / 4, 1]);
        limits.set(vec![DayLimit::always(8 * WHOLE)]);
        assert_eq!(at(4), 2 * WHOLE, "changed while it is kept to");
        limits.set(Vec::new());
        assert_eq!(own.at(now()), None);
    }

    #[test]
    fn two_busy_ones_have_half_each_and_one_that_is_left_has_all() {
        let here = Here::new();
        let (mut one, mut other) = (here.keeper(None), here.keeper(None));
        one.0.look(&one.1);
        assert_eq!(one.1.bytes_per_second(), Some(WHOLE));
        let looks: Vec<u64> = (0..3).flat_map(|_| [busy(&mut one), busy(&mut other)]).collect();
        assert_eq!(looks[4..], [WHOLE / 2; 2], "{looks:?}");
        assert_eq!(one.1.least_whole(), Some(WHOLE));
        let told = parts(&here.folder, "site-b").unwrap();
        assert_eq!(told, [Part { wants: WHOLE, takes: WHOLE / 2 }; 2]);
        drop(other);
        assert_eq!(busy(&mut one), WHOLE);
    }

    #[test]
    fn the_rate_of_one_run_is_its_own_and_the_others_have_what_it_leaves() {
        let here = Here::new();
        let (mut slow, mut other) = (here.keeper(Some(WHOLE / 10)), here.keeper(None));
        let looks: Vec<u64> = (0..3).flat_map(|_| [busy(&mut slow), busy(&mut other)]).collect();
        assert_eq!(looks[4..], [WHOLE / 10, WHOLE / 10 * 9], "{looks:?}");
    }

    #[test]
    fn a_limit_that_is_set_anew_or_taken_away_holds_from_the_next_look() {
        let here = Here::new();
        let (mut keeper, limit) = here.keeper(Some(700));
        for (set, expected) in [(Some(500), 500), (Some(9000), 700), (None, 700)] {
            here.set(set);
            keeper.look(&limit);
            assert_eq!(limit.bytes_per_second(), Some(expected));
            let held = parts(&here.folder, "site-b").unwrap();
            assert_eq!(held.len(), usize::from(set.is_some()), "no slot without a limit");
        }
    }

    #[test]
    fn all_sessions_of_a_peer_have_one_limit_within_that_of_the_agent() {
        let here = Here::new();
        let of_peers = OfPeers::new(here.folder.clone(), Some(2 * WHOLE), |_| {});
        let (one, other) = (of_peers.of(here.peer.key).unwrap(), of_peers.of(here.peer.key).unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!(one.bytes_per_second(), Some(WHOLE));
        let stranger = of_peers.of(Fingerprint([2; 32])).unwrap();
        assert_eq!(stranger.bytes_per_second(), Some(2 * WHOLE), "that of all");
        one.take(5).unwrap();
        assert_eq!(stranger.used().bytes, 5);
        // Copies of this host to the same site are counted with the agent's sessions.
        let (mut copy, limit) = here.keeper(None);
        copy.look(&limit);
        assert_eq!(parts(&here.folder, "site-b").unwrap().len(), 2);
    }

    #[test]
    fn a_peer_that_gets_another_name_keeps_its_limit_and_shares_it_under_that_name() {
        let here = Here::new();
        let (mut one, mut other) = (here.keeper(None), here.keeper(None));
        busy(&mut one);
        let renamed = Peer { name: "elsewhere".to_string(), ..here.peer.clone() };
        Peers::new(here.folder.clone()).add(renamed).unwrap().unwrap();
        let looks: Vec<u64> = (0..3).flat_map(|_| [busy(&mut one), busy(&mut other)]).collect();
        assert_eq!(looks[4..], [WHOLE / 2; 2], "{looks:?}");
        assert!(parts(&here.folder, "site-b").unwrap().is_empty());
        assert_eq!(parts(&here.folder, "elsewhere").unwrap().len(), 2);
        // Another peer that takes the old name over has a limit of its own.
        let other = Peer::new("site-b", Fingerprint([7; 32]), Vec::new(), 0);
        Peers::new(here.folder.clone()).add(other).unwrap().unwrap();
        here.set(Some(5));
        assert_eq!(busy(&mut one), WHOLE / 2);
    }

    #[test]
    fn a_peer_that_cannot_be_read_is_no_stranger() {
        let here = Here::new();
        let file = here._state.path().join("link/peers.json");
        let kept = std::fs::read(&file).unwrap();
        std::fs::write(&file, "{").unwrap();
        let of_peers = OfPeers::new(here.folder.clone(), Some(2 * WHOLE), |_| {});
        let limit = of_peers.of(here.peer.key).unwrap();
        assert!(!Arc::ptr_eq(&limit, of_peers.all.as_ref().unwrap()));
        let mut keeper = Keeper::of_key(here.folder.clone(), here.peer.key, Own::none(|_| {}));
        let of_it = RateLimit::new(None);
        keeper.look(&of_it);
        assert_eq!(of_it.bytes_per_second(), None);
        std::fs::write(&file, kept).unwrap();
        keeper.look(&of_it);
        assert!(of_it.bytes_per_second().is_some_and(|rate| rate <= WHOLE));
    }

    #[test]
    fn where_nothing_can_be_told_the_whole_limit_is_kept_and_shared_as_soon_as_it_can() {
        let here = Here::new();
        let blocked = here._state.path().join("link/limits");
        std::fs::write(&blocked, "no folder").unwrap();
        let (mut keeper, limit) = here.keeper(None);
        keeper.look(&limit);
        assert_eq!((limit.bytes_per_second(), keeper.is_told), (Some(WHOLE), true));
        std::fs::remove_file(&blocked).unwrap();
        keeper.look(&limit);
        assert_eq!((parts(&here.folder, "site-b").unwrap().len(), keeper.is_told), (1, false));
        std::fs::remove_dir_all(&blocked).unwrap();
        keeper.look(&limit);
        assert_eq!(parts(&here.folder, "site-b").unwrap().len(), 1, "removed by somebody");
    }

    #[test]
    fn one_that_follows_no_more_has_the_whole_of_the_hour() {
        let here = Here::new();
        let (mut free, mut slow) = (here.keeper(None), here.keeper(Some(700)));
        for _ in 0..2 {
            let _ = (busy(&mut free), busy(&mut slow));
        }
        let now = now();
        assert_eq!((free.0.alone(now), slow.0.alone(now)), (Some(WHOLE), Some(700)));
    }

    #[test]
    fn a_part_outlasts_looks_that_fail_and_a_slot_is_not_given_up_for_one() {
        let here = Here::new();
        let (mut one, mut other) = (here.keeper(None), here.keeper(None));
        for _ in 0..3 {
            let _ = (busy(&mut one), busy(&mut other));
        }
        let (limits, aside) = (here._state.path().join("link/limits"), here._state.path().join("link/aside"));
        std::fs::rename(&limits, &aside).unwrap();
        std::fs::write(&limits, "no folder").unwrap();
        let looks: Vec<u64> = (0..=LOOKS_FAILED_MAX).map(|_| busy(&mut one)).collect();
        let (last, held) = looks.split_last().unwrap();
        assert!(held.iter().all(|takes| *takes == WHOLE / 2), "{looks:?}");
        assert_eq!((*last, one.0.is_told), (WHOLE, true));
        std::fs::remove_file(&limits).unwrap();
        std::fs::rename(&aside, &limits).unwrap();
        for _ in 0..2 {
            let _ = (busy(&mut one), busy(&mut other));
        }
        assert_eq!((busy(&mut one), one.0.is_told), (WHOLE / 2, false));
    }
}
