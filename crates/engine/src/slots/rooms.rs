//! Room at targets that is promised to VMs, by which plans and processes with one state folder keep out of each other's way.
//!
//! ```text
//! room/PLACE/lock              held for a moment, while somebody looks at what is promised and promises more
//! room/PLACE/PID-N.PLAN        a promise: its length is what the VM may still need, in blocks of 64 KiB; no byte is in it
//! ```
//!
//! A promise is held by the lock of its file, so that it ends with its process however that dies. Its length tells the bytes, because it
//! is changed in one step and read without a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_disk::claim_file;
use drover_mover::Progress;
use drover_schedule::Wait;
use drover_types::{BLOCK_BYTES, Bytes, file_name};

use crate::error::{Cause, ProviderError};
use crate::itinerary::full_words;
use crate::provider::TargetPlace;

/// Locks that are held by others are tried this often; after that they count as held for longer.
const LOCK_ATTEMPTS_MAX: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

const LOCK: &str = "lock";

/// Tells promises of one process apart.
static PROMISES: AtomicU64 = AtomicU64::new(0);

/// Promises of this process, by their folders and names, and the blocks that their files tell: what is known here is not asked of the
/// files, of which there is one for each VM that is at work.
static OWN: Mutex<Own> = Mutex::new(Own::new());

type Own = BTreeMap<PathBuf, BTreeMap<OsString, Arc<AtomicU64>>>;

/// Held, too, while somebody of this process looks at what is promised and promises more.
fn own() -> MutexGuard<'static, Own> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of all promises.
#[derive(Clone)]
pub(crate) struct Rooms {
    folder: PathBuf,
}

/// Who asks.
pub(crate) struct Asks<'a> {
    pub(crate) plan: &'a str,
    pub(crate) vm: &'a str,
    /// It goes on whatever is free: its guest is down.
    pub(crate) insists: bool,
    /// Bytes of each of its disks.
    pub(crate) disks: Vec<u64>,
}

/// What came of it.
pub(crate) enum Answer {
    /// What it may need is promised to it.
    Promised(Room),
    /// Others have what it may need.
    Wait(Wait),
    /// The place is full, although it may be overcommitted: this disk of the VM finds no room there for its first writes.
    Full(usize, Full),
    /// It never fits.
    Never(ProviderError),
}

/// How a place that is full is told.
pub(crate) struct Full {
    pub(crate) wait: Wait,
    pub(crate) why: String,
}

/// What is promised to a VM, at all places of its disks; free when dropped.
#[derive(Default)]
pub(crate) struct Room {
    promises: Vec<Promise>,
    disks: Vec<Filling>,
}

/// A disk on its way.
struct Filling {
    bytes: u64,
    copy: Option<Arc<Progress>>,
}

struct Promise {
    file: File,
    path: PathBuf,
    /// By the places of disks in their VM, what each may still need.
    needs: BTreeMap<usize, u64>,
    /// Blocks that the file tells.
    told: Arc<AtomicU64>,
}

/// What is promised at a place.
#[derive(Default)]
struct Promised {
    bytes: u64,
    plans: BTreeSet<String>,
}

impl Rooms {
    pub(super) fn new(folder: &Path) -> io::Result<Rooms> {
        fs::create_dir_all(folder)?;
        Ok(Rooms { folder: folder.to_path_buf() })
    }

    /// Asks for room at all places of a VM. It is promised first, which takes a moment, and given back where it turns out that it is not
    /// there: nobody waits for a place that is slow to tell what is free. That is asked for after what is promised was summed up: what
    /// is written between counts twice, never not at all.
    ///
    /// A folder that cannot be used any more keeps no VM back, and so does a place that does not tell what is free.
    pub(crate) fn ask(
        &self,
        asks: &Asks<'_>,
        places: Vec<TargetPlace>,
        free: &dyn Fn(&TargetPlace) -> Option<u64>,
    ) -> Answer {
        let disks = asks.disks.iter().map(|bytes| Filling { bytes: *bytes, copy: None }).collect();
        let mut room = Room { promises: Vec::new(), disks };
        for place in places.into_iter().filter(|place| place.needs_bytes() > 0) {
            let folder = self.folder.join(file_name(&place.key));
            let Ok(promised) = room.promise(&folder, asks.plan, &place) else { continue };
            if asks.insists {
                continue;
            }
            let Some(free_bytes) = free(&place) else { continue };
            if free_bytes.saturating_sub(promised.bytes) < place.needs_bytes() {
                return no_room(asks, &place, free_bytes, promised);
            }
        }
        Answer::Promised(room)
    }
}

impl Room {
    /// Promises what the VM may need in the folder of a place, and gives what was promised there before.
    fn promise(&mut self, folder: &Path, plan: &str, place: &TargetPlace) -> io::Result<Promised> {
        fs::create_dir_all(folder)?;
        let _locked = lock(folder)?;
        // Not while another process is waited for: who lets a promise go wants it, too.
        let mut own = own();
        let own = own.entry(folder.to_path_buf()).or_default();
        let promised = promised(folder, own)?;
        // One that cannot be written is not promised, and no VM is kept back.
        self.promises.extend(promise(folder, own, plan, place).ok());
        Ok(promised)
    }

    /// A disk, by its place in the VM, is copied from now on.
    pub(super) fn fill(&mut self, disk: usize, copy: Arc<Progress>) {
        if let Some(filling) = self.disks.get_mut(disk) {
            filling.copy = Some(copy);
        }
    }

    /// Lets go what is written, or proved to be zero, since this was called last.
    pub(super) fn let_go(&mut self) {
        for (number, filling) in self.disks.iter().enumerate() {
            let Some(copy) = filling.copy.as_ref().map(|copy| copy.snapshot()) else { continue };
            for promise in &mut self.promises {
                let Some(needs) = promise.needs.get_mut(&number) else { continue };
                *needs = filling.bytes.saturating_sub(copy.done()).min(*needs);
            }
        }
        self.promises.iter_mut().for_each(Promise::tell);
    }
}

impl Promise {
    fn tell(&mut self) {
        let blocks = blocks(self.needs.values().sum());
        // One that cannot be made smaller holds others up, and no more.
        if blocks != self.told.load(Relaxed) && self.file.set_len(blocks).is_ok() {
            self.told.store(blocks, Relaxed);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // One that stays is held by nobody, and goes when the next one asks.
        let _ = fs::remove_file(&self.path);
        let (Some(folder), Some(name)) = (self.path.parent(), self.path.file_name()) else { return };
        if let Some(promises) = own().get_mut(folder) {
            promises.remove(name);
        }
    }
}

fn lock(folder: &Path) -> io::Result<File> {
    let path = folder.join(LOCK);
    for _ in 0..LOCK_ATTEMPTS_MAX {
        match claim_file(&path) {
            Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LOCK_PAUSE),
            result => return result.map_err(|(_, error)| error),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Sums up what is promised, and removes what was promised to processes that are no more. The place is locked.
fn promised(folder: &Path, own: &BTreeMap<OsString, Arc<AtomicU64>>) -> io::Result<Promised> {
    let mut sum = Promised::default();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(text) = name.to_str().filter(|name| *name != LOCK) else { continue };
        let blocks = match own.get(&name) {
            Some(told) => told.load(Relaxed),
            None => match promised_elsewhere(&entry.path())? {
                Some(blocks) => blocks,
                None => continue,
            },
        };
        sum.bytes = sum.bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
        if let Some((_, plan)) = text.split_once('.').filter(|(_, plan)| !sum.plans.contains(*plan)) {
            sum.plans.insert(plan.to_string());
        }
    }
    Ok(sum)
}

/// The blocks of another process's promise; nothing if that is no more, and then it is removed.
fn promised_elsewhere(path: &Path) -> io::Result<Option<u64>> {
    // For writing, too: NFS locks nothing else.
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else { return Ok(None) };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(Some(file.metadata()?.len())),
        Err(TryLockError::Error(_)) => Ok(None),
        Ok(()) => {
            let _ = fs::remove_file(path);
            Ok(None)
        }
    }
}

fn promise(
    folder: &Path,
    own: &mut BTreeMap<OsString, Arc<AtomicU64>>,
    plan: &str,
    place: &TargetPlace,
) -> io::Result<Promise> {
    let number = PROMISES.fetch_add(1, Relaxed);
    let name = format!("{}-{number}.{}", std::process::id(), file_name(plan));
    let path = folder.join(&name);
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    if let Err(error) = file.try_lock() {
        let _ = fs::remove_file(&path);
        return Err(error.into());
    }
    let mut promise = Promise { file, path, needs: place.needs.clone(), told: Arc::default() };
    promise.tell();
    own.insert(name.into(), promise.told.clone());
    Ok(promise)
}

fn no_room(asks: &Asks<'_>, at: &TargetPlace, free_bytes: u64, promised: Promised) -> Answer {
    let (place, needs_bytes) = (at.label.clone(), at.needs_bytes());
    // Others that write there may come to less than was promised to them.
    if !promised.plans.is_empty() {
        let plans = promised.plans.into_iter().collect();
        return Answer::Wait(Wait::Room {
            place,
            needs_bytes,
            free_bytes,
            promised_bytes: promised.bytes,
            plans,
        });
    }
    if at.overcommits {
        let wait = Wait::Room { place, needs_bytes, free_bytes, promised_bytes: 0, plans: Vec::new() };
        let disk = at.needs.keys().next().copied().unwrap_or_default();
        return Answer::Full(disk, Full { wait, why: full_words(free_bytes, asks.vm, needs_bytes) });
    }
    let what = format!(
        "{place} has {} left, and {} may need {} there",
        Bytes(free_bytes),
        asks.vm,
        Bytes(needs_bytes)
    );
    Answer::Never(ProviderError::new(Cause::TargetFull, what).advise(MAKE_ROOM))
}

fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

const MAKE_ROOM: &str = "make room there or choose another place; or, as thin disks take only what they hold, allow it with \
                         `target.overcommit: true`; then `drover resume`";

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn asks(plan: &str) -> Asks<'_> {
        Asks { plan, vm: "web", insists: false, disks: vec![40 * MIB] }
    }

    fn at(key: &str, needs: u64) -> Vec<TargetPlace> {
        let needs = BTreeMap::from([(0, needs * MIB)]);
        let (label, at) = (format!("/{key}"), PathBuf::from("/"));
        vec![TargetPlace { key: key.into(), label, at, needs, overcommits: false }]
    }

    fn promised_to(rooms: &Rooms, plan: &str, needs: u64) -> Room {
        match rooms.ask(&asks(plan), at("a", needs), &|_| Some(100 * MIB)) {
            Answer::Promised(room) => room,
            Answer::Wait(wait) | Answer::Full(_, Full { wait, .. }) => panic!("{wait}"),
            Answer::Never(error) => panic!("{error}"),
        }
    }

    fn waits(rooms: &Rooms, needs: u64) -> Option<String> {
        match rooms.ask(&asks("other"), at("a", needs), &|_| Some(100 * MIB)) {
            Answer::Wait(wait) => Some(wait.to_string()),
            Answer::Promised(_) => None,
            Answer::Full(_, full) => panic!("{}", full.why),
            Answer::Never(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_is_promised_to_one_is_not_promised_to_another_until_it_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (Rooms::new(folder.path()).unwrap(), Rooms::new(folder.path()).unwrap());
        let held = promised_to(&one, "first", 60);
        assert_eq!(
            waits(&other, 60).unwrap(),
            "room in /a: it may need 60 MiB, and of 100 MiB free 60 MiB are promised to plan first"
        );
        assert_eq!(waits(&other, 40), None, "there is room for less");
        drop(held);
        assert_eq!(waits(&other, 60), None);
    }

    #[test]
    fn a_promise_becomes_smaller_by_what_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let rooms = Rooms::new(folder.path()).unwrap();
        let mut room = promised_to(&rooms, "first", 40);
        let copy = Arc::new(Progress::default());
        room.fill(0, copy.clone());
        copy.tell(30 * MIB, 40 * MIB);
        assert!(waits(&rooms, 90).is_some());
        room.let_go();
        assert_eq!(waits(&rooms, 90), None);
        assert!(waits(&rooms, 91).is_some());
    }

    #[test]
    fn what_never_fits_is_told_with_what_to_try_and_what_goes_on_is_not_refused() {
        let folder = tempfile::tempdir().unwrap();
        let rooms = Rooms::new(folder.path()).unwrap();
        let ask = |asks: &Asks<'_>, free| rooms.ask(asks, at("a", 60), &|_| free);
        let Answer::Never(error) = ask(&asks("p"), Some(40 * MIB)) else { panic!("it does not fit") };
        assert_eq!(error.to_string(), "/a has 40 MiB left, and web may need 60 MiB there");
        assert!(error.advice.unwrap().contains("make room"));
        let insists = Asks { insists: true, ..asks("p") };
        assert!(matches!(ask(&insists, Some(40 * MIB)), Answer::Promised(_)));
        assert!(matches!(ask(&asks("p"), None), Answer::Promised(_)), "nobody knows what is free");
    }

    #[test]
    fn a_place_that_may_be_overcommitted_and_is_full_is_told_as_such_and_refuses_nobody_for_good() {
        let folder = tempfile::tempdir().unwrap();
        let rooms = Rooms::new(folder.path()).unwrap();
        let ask = |plan, free| {
            let places =
                at("a", 16).into_iter().map(|place| TargetPlace { overcommits: true, ..place }).collect();
            rooms.ask(&asks(plan), places, &|_| Some(free * MIB))
        };
        let Answer::Full(disk, full) = ask("p", 3) else { panic!("it has no room") };
        assert_eq!((disk, full.why.as_str()), (0, "it is full: 3 MiB free, and web may need 16 MiB"));
        let Answer::Promised(held) = ask("p", 20) else { panic!("its first writes fit") };
        assert!(matches!(ask("q", 20), Answer::Wait(_)), "others have what is left");
        drop(held);
        assert!(matches!(ask("q", 20), Answer::Promised(_)));
    }

    #[test]
    fn a_promise_that_nobody_holds_any_more_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let rooms = Rooms::new(folder.path()).unwrap();
        let left = folder.path().join("a/1-0.dead");
        fs::create_dir_all(left.parent().unwrap()).unwrap();
        File::create(&left).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(waits(&rooms, 60), None);
        assert!(!left.exists());
    }

    #[test]
    fn a_place_that_is_slow_to_tell_what_is_free_holds_nobody_up_and_is_promised_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (Rooms::new(folder.path()).unwrap(), Rooms::new(folder.path()).unwrap());
        let meanwhile = |_: &TargetPlace| {
            assert!(waits(&other, 60).is_some());
            assert_eq!(waits(&other, 40), None);
            Some(50 * MIB)
        };
        let answer = one.ask(&asks("first"), at("a", 60), &meanwhile);
        assert!(matches!(answer, Answer::Never(_)));
        assert_eq!(waits(&other, 100), None, "what it did not get is nobody's");
    }
}
