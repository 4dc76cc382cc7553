//! One inventory of a source at a time, for all plans and processes of a state folder. Plans of one process that wait for each
//! other share one.
//!
//! Read all at once, the inventories of many plans make a vCenter slow for all of them, until its answers come too late.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use drover_disk::claim_file;
use drover_log::log;
use drover_types::file_name;
use drover_types::inventory::Inventory;

/// Folder, beside the state, by which processes take turns.
const FOLDER: &str = "inventories";
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Who waits longer does not wait any more.
const WAIT_MAX: Duration = Duration::from_secs(15 * 60);

/// Who asks what for an inventory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Asker {
    /// The source's instance UUID and address.
    pub source: String,
    /// The account, which decides what is seen.
    pub user: String,
}

/// An inventory, and what could not be read of it.
pub struct Read {
    /// What the source has.
    pub inventory: Inventory,
    /// What could not be read.
    pub warnings: Vec<String>,
}

/// What plans of this process wait for, and what was read while they did.
static SHARED: LazyLock<Mutex<HashMap<Asker, Waiting>>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Waiting {
    plans: usize,
    /// The last one, and when its reading began.
    read: Option<(Instant, Arc<Read>)>,
}

fn shared() -> MutexGuard<'static, HashMap<Asker, Waiting>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One plan that waits.
struct Place<'a>(&'a Asker);

impl Place<'_> {
    fn take(asker: &Asker) -> Place<'_> {
        shared().entry(asker.clone()).or_default().plans += 1;
        Place(asker)
    }

    /// What was read since then, if anything was.
    fn read_since(&self, asked: Instant) -> Option<Arc<Read>> {
        let shared = shared();
        let (began, read) = shared.get(self.0)?.read.as_ref()?;
        (*began >= asked).then(|| read.clone())
    }

    /// Keeps it for the others that wait.
    fn keep(&self, began: Instant, read: &Arc<Read>) {
        if let Some(waiting) = shared().get_mut(self.0).filter(|it| it.plans > 1) {
            waiting.read = Some((began, read.clone()));
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut shared = shared();
        if let Some(waiting) = shared.get_mut(self.0) {
            waiting.plans -= 1;
            if waiting.plans == 0 {
                shared.remove(self.0);
            }
        }
    }
}

/// Reads an inventory when it is this plan's turn, or takes the one that another plan of this process began to read after this one
/// asked; `None` if it was stopped before. All that take it hold the same one, for it is large: [`copied`] is for who changes it.
///
/// # Errors
/// As `read`.
pub(crate) fn in_turn<E>(
    state: &Path,
    asker: &Asker,
    is_stopped: &dyn Fn() -> bool,
    read: impl FnOnce() -> Result<Read, E>,
) -> Result<Option<Arc<Read>>, E> {
    let asked = Instant::now();
    let place = Place::take(asker);
    let Some(_turn) = Turn::take(state, &asker.source, is_stopped, WAIT_MAX) else { return Ok(None) };
    if let Some(read) = place.read_since(asked) {
        log!("inventory", "taken as another plan read it");
        return Ok(Some(read));
    }
    let began = Instant::now();
    let read = Arc::new(read()?);
    place.keep(began, &read);
    Ok(Some(read))
}

/// What `work` makes of a copy of an inventory, which is dropped with it but for what is no VM: one copy at a time, however many plans
/// of this process have the same one.
pub fn copied<T>(read: Arc<Read>, work: impl FnOnce(&mut Inventory) -> T) -> (T, Inventory) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut inventory = match Arc::try_unwrap(read) {
        Ok(read) => read.inventory,
        Err(read) => read.inventory.clone(),
    };
    let made = work(&mut inventory);
    inventory.vms = Vec::new();
    (made, inventory)
}

/// The turn; the next one's when dropped, or with the process.
struct Turn {
    /// Holds the lock. Absent where there is nothing to share: no state, or a folder that cannot be used.
    _file: Option<File>,
}

impl Turn {
    fn take(state: &Path, source: &str, is_stopped: &dyn Fn() -> bool, most: Duration) -> Option<Turn> {
        let folder = state.join(FOLDER);
        let path = folder.join(file_name(source));
        let began = Instant::now();
        let mut has_told = false;
        // Where no state was begun, nobody shares it.
        if let Err(error) = fs::create_dir(&folder)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Some(Turn { _file: None });
        }
        while !is_stopped() {
            match claim_file(&path) {
                Ok(file) => return Some(Turn { _file: Some(file) }),
                Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock && began.elapsed() < most => {}
                Err((what, error)) => {
                    log!("inventory", "{what} {}: {error}; read without waiting for others", path.display());
                    return Some(Turn { _file: None });
                }
            }
            if !has_told {
                log!("inventory", "waiting: another plan reads the inventory of this source");
                has_told = true;
            }
            thread::sleep(LOOK_PAUSE);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    const SHORT: Duration = Duration::from_millis(120);

    fn go_on() -> bool {
        false
    }

    fn turn(state: &Path, source: &str) -> Option<Turn> {
        Turn::take(state, source, &go_on, SHORT)
    }

    #[test]
    fn one_has_the_turn_at_a_source_and_the_next_one_when_it_is_over() {
        let state = tempfile::tempdir().unwrap();
        let holds = |turn: &Option<Turn>| turn.as_ref().is_some_and(|turn| turn._file.is_some());
        let first = turn(state.path(), "uuid-1");
        assert!(holds(&first) && holds(&turn(state.path(), "uuid-2")));
        let late = turn(state.path(), "uuid-1");
        assert!(late.is_some() && !holds(&late), "who waited too long goes without");
        assert!(Turn::take(state.path(), "uuid-1", &|| true, SHORT).is_none(), "stopped");
        drop(first);
        assert!(holds(&turn(state.path(), "uuid-1")));
    }

    #[test]
    fn a_state_that_is_not_there_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        assert!(turn(&state, "uuid-1").is_some_and(|turn| turn._file.is_none()));
        assert!(!state.exists());
    }

    #[test]
    fn plans_that_wait_take_what_was_read_since_they_asked_and_no_older_one() {
        let state = tempfile::tempdir().unwrap();
        let asker = Asker { source: "uuid-shared".into(), user: "ann".into() };
        let reads = AtomicUsize::new(0);
        let waiting = || shared().get(&asker).map_or(0, |waiting| waiting.plans);
        let ask = |meanwhile: &dyn Fn()| {
            let read = || -> Result<Read, String> {
                meanwhile();
                let warnings = vec![reads.fetch_add(1, Ordering::SeqCst).to_string()];
                Ok(Read { inventory: Inventory::default(), warnings })
            };
            in_turn(state.path(), &asker, &go_on, read).unwrap().unwrap().warnings.clone()
        };
        // The first reads until the others wait: what it reads is older than their question.
        let has_turn = AtomicBool::new(false);
        let until_others_wait = || {
            has_turn.store(true, Ordering::SeqCst);
            while waiting() < 4 {
                thread::sleep(LOOK_PAUSE);
            }
        };
        let told = thread::scope(|scope| {
            let first = scope.spawn(|| ask(&until_others_wait));
            while !has_turn.load(Ordering::SeqCst) {
                thread::sleep(LOOK_PAUSE);
            }
            let others: Vec<_> = (0..3).map(|_| scope.spawn(|| ask(&|| {}))).collect();
            let told = others.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>();
            assert_eq!(first.join().unwrap(), ["0"]);
            told
        });
        assert_eq!(told, [["1"], ["1"], ["1"]]);
        assert!(waiting() == 0 && ask(&|| {}) == ["2"], "nothing is kept when nobody waits");
    }
}
