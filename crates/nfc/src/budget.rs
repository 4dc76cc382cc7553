//! What all programs of this machine have of the NFC memory of a host.
//!
//! A folder for each host and service has a file for each open disk, whose name says how many bytes of buffers it has.
//! Who has it holds the file's lock, which the kernel lets go of when the program dies. The host takes longer to notice that:
//! what a killed program had makes the shares of others smaller for a while, and keeps nobody from trying.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use drover_types::{Bytes, file_name};

/// NFC memory of a host with its default settings.
pub const BUDGET_BYTES: u64 = 48 << 20;

/// What the service of a vCenter's agents on hosts is called, whose memory cannot be configured.
const VPXA: &str = "vpxa";

/// Disks of a host that may be open at once, as VMware advises. Whether the 52 connections "through vCenter" of its documents
/// are those of one host or of the vCenter they leave open; the data passes through no vCenter.
pub const DISKS_MAX: u32 = 50;

/// A disk takes at most this part of what is free, so that one more always finds something: 51 disks fit into 48 MiB.
const FREE_PART: u64 = 6;

/// A host that refused a disk gets its budget back after this time: what took its memory may be gone.
const LOWERED_FOR: Duration = Duration::from_secs(15 * 60);

/// A host holds what a client had that vanished for about half an hour.
const HELD_FOR: Duration = Duration::from_secs(30 * 60);

/// Begins the names of files of programs that died.
const HELD: &str = "held-";

/// The smallest budget that is believed.
const LOWERED_MIN: u64 = 1 << 20;

const PAUSE: Duration = Duration::from_millis(100);

/// Disks of a host that are counted; more are a mistake.
const FILES_MAX: usize = 4096;

/// Buffers of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes of one.
    pub bytes: u32,
    /// How many.
    pub count: u32,
}

impl Buffers {
    /// Bytes of all.
    pub fn total(self) -> u64 {
        u64::from(self.bytes) * u64::from(self.count)
    }

    /// Those to try when the host refuses these.
    pub fn smaller(self) -> Option<Buffers> {
        LADDER.iter().copied().find(|it| it.total() < self.total())
    }
}

impl std::fmt::Display for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {}", Bytes(self.bytes.into()), self.count)
    }
}

const fn buffers(bytes: u32, count: u32) -> Buffers {
    Buffers { bytes, count }
}

/// What disks get, the best first. Hosts take 2 MiB at most.
const LADDER: &[Buffers] = &[
    buffers(2 << 20, 4),
    buffers(1 << 20, 4),
    buffers(1 << 20, 2),
    buffers(1 << 20, 1),
    buffers(64 << 10, 4),
    buffers(64 << 10, 1),
];

/// The budgets of hosts.
#[derive(Clone, Debug)]
pub struct Ledger {
    folder: PathBuf,
    budget: u64,
    disks_max: u32,
}

/// A disk's share; it ends when this is dropped, or its program dies.
#[derive(Debug)]
pub struct Grant {
    /// What it may open its session with.
    pub buffers: Buffers,
    /// Whether it had to wait.
    pub waited: bool,
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Drop for Grant {
    fn drop(&mut self) {
        // Who looks next removes it otherwise.
        let _ = fs::remove_file(&self.path);
    }
}

impl Ledger {
    /// The ledger in `folder`, which all programs share that are to share budgets.
    pub fn new(folder: impl Into<PathBuf>) -> Ledger {
        Ledger { folder: folder.into(), budget: BUDGET_BYTES, disks_max: DISKS_MAX }
    }

    /// With another budget of each host, as its administrator configured it. The agents of a vCenter have what they
    /// have: for them it is a lower limit only.
    pub fn with_budget(self, budget: u64) -> Ledger {
        Ledger { budget, ..self }
    }

    /// A share for one more disk of a host, of at most `most` bytes. Where nothing is free it waits.
    ///
    /// # Errors
    /// When nothing becomes free within `patience`, and when the folder cannot be used.
    pub fn reserve(&self, host: &str, service: &str, most: u64, patience: Duration) -> io::Result<Grant> {
        let until = Instant::now() + patience;
        let mut waited = false;
        loop {
            if let Some(grant) = self.try_reserve(host, service, most, waited)? {
                return Ok(grant);
            }
            if Instant::now() >= until {
                let text = format!(
                    "the NFC memory of {host} ({}, at most {} disks) is taken by other disks; lower limits.disks, or \
                     wait until they are done",
                    Bytes(self.budget(host, service)),
                    self.disks_max
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            waited = true;
            thread::sleep(PAUSE);
        }
    }

    fn try_reserve(&self, host: &str, service: &str, most: u64, waited: bool) -> io::Result<Option<Grant>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let place = self.place(host, service);
        fs::create_dir_all(&place)?;
        let _lock = lock(&place)?;
        let used = used(&place)?;
        let free = self.budget(host, service).saturating_sub(used.bytes);
        if used.disks >= self.disks_max {
            return Ok(None);
        }
        // Whether the host still holds what others had that died, only it knows.
        let least = || LADDER.last().copied().filter(|it| it.total() <= free);
        let Some(buffers) = share(free.saturating_sub(used.held), most).or_else(least) else {
            return Ok(None);
        };
        let name =
            format!("{}-{}-{}", buffers.total(), std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = place.join(name);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Some(Grant { buffers, waited, path, _file: file }))
    }

    /// The host refused one more disk with so many bytes of buffers: for a while its budget is lower. What others than
    /// drover have taken of it nobody tells, so the next disk gets half of that, as often as it takes.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub fn lower(&self, host: &str, service: &str, refused: u64) -> io::Result<u64> {
        let place = self.place(host, service);
        fs::create_dir_all(&place)?;
        let _lock = lock(&place)?;
        let left = refused / 2 * FREE_PART;
        let used = used(&place)?;
        let lowered = (used.bytes + used.held + left).max(LOWERED_MIN).min(self.budget(host, service));
        fs::write(place.join("lowered"), lowered.to_string())?;
        Ok(lowered)
    }

    /// Bytes in use, and by how many disks.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub fn used(&self, host: &str, service: &str) -> io::Result<(u64, u32)> {
        let place = self.place(host, service);
        fs::create_dir_all(&place)?;
        let _lock = lock(&place)?;
        used(&place).map(|used| (used.bytes, used.disks))
    }

    /// The budget of a host now.
    pub fn budget(&self, host: &str, service: &str) -> u64 {
        let path = self.place(host, service).join("lowered");
        let since = fs::metadata(&path).and_then(|meta| meta.modified()).ok();
        let age = since.and_then(|since| SystemTime::now().duration_since(since).ok());
        let told = age.filter(|age| *age < LOWERED_FOR).and_then(|_| fs::read_to_string(&path).ok());
        let fixed = if service.starts_with(VPXA) { BUDGET_BYTES } else { u64::MAX };
        let budget = self.budget.min(fixed);
        told.and_then(|text| text.trim().parse().ok()).unwrap_or(budget).min(budget)
    }

    fn place(&self, host: &str, service: &str) -> PathBuf {
        self.folder.join(format!("{}@{}", file_name(service), file_name(host)))
    }
}

fn share(free: u64, most: u64) -> Option<Buffers> {
    let fits = |it: &&Buffers| it.total() <= (free / FREE_PART).min(most);
    let least = LADDER.last().filter(|it| it.total() <= free);
    LADDER.iter().find(fits).or(least).copied()
}

/// Bytes of buffers for each of so many disks of one more program, which knows nothing of what the other programs have: what the last of
/// them would get if they came one after the other.
pub fn each_of(mut free: u64, disks: u32) -> u64 {
    let mut least = LADDER.last().map_or(0, |it| it.total());
    for _ in 0..disks {
        let Some(buffers) = share(free, u64::MAX) else { break };
        least = buffers.total();
        free -= least;
    }
    least
}

fn lock(place: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(place.join("lock"))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// What the files of a host say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Used {
    /// Bytes that somebody has.
    bytes: u64,
    /// Disks that somebody has open.
    disks: u32,
    /// Bytes that programs had that died, and the host may hold still.
    held: u64,
}

/// Counts, and removes what is over. Call under the lock.
fn used(place: &Path) -> io::Result<Used> {
    let mut used = Used::default();
    for entry in fs::read_dir(place)?.take(FILES_MAX) {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str() else { continue };
        let size = |name: &str| name.split_once('-')?.0.parse::<u64>().ok();
        if let Some(size) = name.strip_prefix(HELD).and_then(size) {
            let since = entry.metadata()?.modified()?;
            match SystemTime::now().duration_since(since).is_ok_and(|age| age > HELD_FOR) {
                true => fs::remove_file(&path)?,
                false => used.held += size,
            }
            continue;
        }
        let Some(size) = size(name) else { continue };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                used.bytes += size;
                used.disks += 1;
            }
            Err(error) => return Err(error.into()),
            Ok(()) => used.held += died(place, &path, name, size)?,
        }
    }
    Ok(used)
}

/// A file that nobody holds: its program died, at the latest now. Gives the bytes that count from now on.
fn died(place: &Path, path: &Path, name: &str, size: u64) -> io::Result<u64> {
    let held = place.join(format!("{HELD}{name}"));
    match fs::rename(path, &held) {
        // It ended in order just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other?,
    }
    OpenOptions::new().write(true).open(&held)?.set_modified(SystemTime::now())?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "esx1.lab";

    fn reserve(ledger: &Ledger, most: u64) -> io::Result<Grant> {
        ledger.reserve(HOST, "nfc", most, Duration::ZERO)
    }

    #[test]
    fn fifty_disks_of_a_host_fit_and_get_less_the_more_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(folder.path());
        let grants: Vec<Grant> = (0..DISKS_MAX).map(|_| reserve(&ledger, u64::MAX).unwrap()).collect();
        assert_eq!(grants[0].buffers, buffers(2 << 20, 4));
        assert_eq!(grants[49].buffers, buffers(64 << 10, 1));
        assert!(grants.windows(2).all(|pair| pair[0].buffers.total() >= pair[1].buffers.total()));
        let (used, disks) = ledger.used(HOST, "nfc").unwrap();
        assert!(used <= BUDGET_BYTES && disks == 50);
        let error = reserve(&ledger, u64::MAX).unwrap_err();
        assert!(error.to_string().contains("esx1.lab"), "{error}");
        assert!(
            ledger.reserve(HOST, "vpxa-nfc", u64::MAX, Duration::ZERO).is_ok(),
            "vpxa has memory of its own"
        );
        drop(grants);
        assert_eq!(ledger.used(HOST, "nfc").unwrap(), (0, 0));
    }

    #[test]
    fn programs_that_share_no_ledger_have_together_what_a_host_has() {
        for disks in [1, 2, 5, 50] {
            let mut free = BUDGET_BYTES;
            for program in 0..DISKS_MAX / disks {
                let each = each_of(free, disks);
                assert!(each >= 64 << 10, "program {program} of {disks} disks gets {each} of {free}");
                free = free.checked_sub(each * u64::from(disks)).unwrap();
            }
        }
        assert_eq!((each_of(BUDGET_BYTES, 1), each_of(BUDGET_BYTES, 4)), (8 << 20, 4 << 20));
        assert_eq!((each_of(0, 1), each_of(3 << 20, 3)), (64 << 10, 256 << 10));
    }

    #[test]
    fn the_memory_of_hostd_is_configured_that_of_vpxa_only_lowered() {
        let folder = tempfile::tempdir().unwrap();
        let budget = |bytes, service| Ledger::new(folder.path()).with_budget(bytes).budget(HOST, service);
        assert_eq!((budget(96 << 20, "nfc"), budget(96 << 20, "vpxa-nfc")), (96 << 20, BUDGET_BYTES));
        assert_eq!((budget(8 << 20, "nfc"), budget(8 << 20, "vpxa-nfc")), (8 << 20, 8 << 20));
    }

    /// As a program leaves it that was killed: the file, and no lock.
    fn kill(ledger: &Ledger, grant: Grant, number: usize) {
        let name = format!("{}-1-{number}", grant.buffers.total());
        drop(grant);
        fs::write(ledger.place(HOST, "nfc").join(name), "").unwrap();
    }

    #[test]
    fn what_killed_programs_had_makes_shares_smaller_for_a_while_and_keeps_nobody_out() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(folder.path());
        let mut taken = 0;
        for number in 0..100 {
            let grant = reserve(&ledger, u64::MAX).unwrap();
            assert_eq!(
                ledger.used(HOST, "nfc").unwrap(),
                (grant.buffers.total(), 1),
                "only the living have disks"
            );
            taken += grant.buffers.total();
            // The host may hold all of it: what is asked for next still fits, as long as anything does.
            assert!(taken <= BUDGET_BYTES || grant.buffers == buffers(64 << 10, 1), "{number}: {taken}");
            assert!(number < 40 || taken > BUDGET_BYTES / 2);
            kill(&ledger, grant, number);
        }
        let place = ledger.place(HOST, "nfc");
        let long_ago = SystemTime::now() - HELD_FOR - Duration::from_secs(1);
        for entry in fs::read_dir(&place).unwrap() {
            let file = OpenOptions::new().write(true).open(entry.unwrap().path()).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        // The last one's death is noticed only now.
        assert_eq!(used(&place).unwrap(), Used { bytes: 0, disks: 0, held: 64 << 10 });
        assert_eq!(reserve(&ledger, u64::MAX).unwrap().buffers, buffers(1 << 20, 4));
    }

    #[test]
    fn a_host_that_refuses_has_a_lower_budget_for_all() {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, other) = (Ledger::new(folder.path()), Ledger::new(folder.path()));
        let _grant = reserve(&ledger, u64::MAX).unwrap();
        assert_eq!(ledger.lower(HOST, "nfc", 4 << 20).unwrap(), 20 << 20, "8 MiB are in use");
        assert_eq!(other.budget(HOST, "nfc"), 20 << 20);
        assert_eq!(
            reserve(&other, u64::MAX).unwrap().buffers,
            buffers(1 << 20, 2),
            "half of what was refused"
        );
        // Down to the least, however often it is refused.
        for _ in 0..20 {
            other.lower(HOST, "nfc", 64 << 10).unwrap();
        }
        assert_eq!(reserve(&other, u64::MAX).unwrap().buffers, buffers(64 << 10, 1));
        assert_eq!(other.budget("esx2.lab", "nfc"), BUDGET_BYTES);
    }
}
