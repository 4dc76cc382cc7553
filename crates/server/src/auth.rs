//! Who may ask and order what: bearer tokens, of which only hashes are kept, roles per project, and a limit for those who guess.
//! JWTs of an issuer are read in `oidc.rs`.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

/// Tokens that are kept.
pub const TOKENS_MAX: usize = 1_000;
/// Wrong tokens of one address before it has to wait, and how long one counts.
pub const BAD_MAX: u32 = 10;
const BAD_EACH: Duration = Duration::from_secs(6);
/// Addresses that are remembered for wrong tokens; beyond that the one that was seen longest ago is forgotten.
pub const ADDRESSES_MAX: usize = 1_024;

const FILE: &str = "tokens.json";
const FILE_BYTES_MAX: u64 = 4 << 20;
const PREFIX: &str = "drover-";
const SECRET_BYTES: usize = 32;
/// A bearer token is not longer.
const TOKEN_CHARS_MAX: usize = 200;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// To look.
    Viewer,
    /// To submit plans and give orders about them.
    Operator,
    /// To read the audit log, too.
    Admin,
}

impl Role {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

/// A role, and where it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// Role.
    pub role: Role,
    /// The project it is for; all if absent.
    pub project: Option<String>,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Name of the token, subject and issuer of a JWT, or `anonymous` without one.
    pub name: String,
    /// What it may do: one grant of a token, or those of a JWT, each for another project.
    pub grants: Vec<Grant>,
}

impl Caller {
    /// Who comes without a token, where that is allowed.
    pub fn anonymous() -> Caller {
        Caller { name: "anonymous".into(), grants: vec![Grant { role: Role::Viewer, project: None }] }
    }

    /// The highest role that it has anywhere.
    pub fn role(&self) -> Role {
        self.grants.iter().map(|grant| grant.role).max().unwrap_or(Role::Viewer)
    }

    /// Its role in a project, if it has one there.
    pub fn role_in(&self, project: &str) -> Option<Role> {
        let here = |grant: &&Grant| grant.project.as_deref().is_none_or(|own| own == project);
        self.grants.iter().filter(here).map(|grant| grant.role).max()
    }

    /// Whether it has this role in a project, or a higher one.
    pub fn may(&self, role: Role, project: &str) -> bool {
        self.role_in(project).is_some_and(|own| own >= role)
    }

    /// Whether it may see all projects, and what they share.
    pub fn sees_all(&self) -> bool {
        self.grants.iter().any(|grant| grant.project.is_none())
    }

    /// Whether it may see a project.
    pub fn sees(&self, project: &str) -> bool {
        self.may(Role::Viewer, project)
    }
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    /// Name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// Project; all if absent.
    pub project: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: i64,
    /// BLAKE3 of the token, in hex. A token has 256 random bits, so nothing slower is needed.
    hash: String,
}

/// The file of tokens could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{op} {}: {source}", path.display())]
pub struct TokenFileError {
    op: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The tokens in `STATE/serve/tokens.json`, which only its owner can read.
#[derive(Clone, Debug)]
pub struct TokenFile(PathBuf);

impl TokenFile {
    /// That of a state folder.
    pub fn of(state: &Path) -> TokenFile {
        TokenFile(state.join("serve").join(FILE))
    }

    fn error(&self, op: &'static str) -> impl Fn(io::Error) -> TokenFileError + '_ {
        move |source| TokenFileError { op, path: self.0.clone(), source }
    }

    /// The tokens.
    ///
    /// # Errors
    /// If the file cannot be read, or others may read it.
    pub fn read(&self) -> Result<Vec<TokenRow>, TokenFileError> {
        let file = match File::open(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file.map_err(self.error("reading"))?,
        };
        if file.metadata().map_err(self.error("reading"))?.mode() & 0o077 != 0 {
            let text = "others than its owner have rights to it (chmod 600)";
            return Err(self.error("using")(io::Error::new(io::ErrorKind::PermissionDenied, text)));
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(self.error("reading"))?;
        serde_json::from_str(&text).map_err(|error| self.error("reading")(error.into()))
    }

    fn write(&self, rows: &[TokenRow]) -> Result<(), TokenFileError> {
        let folder = self.0.parent().unwrap_or(Path::new("."));
        let new = self.0.with_extension(format!("new-{}", std::process::id()));
        let write = || -> io::Result<()> {
            DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(serde_json::to_string_pretty(rows)?.as_bytes())?;
            own_as(&file, &std::fs::metadata(folder)?)?;
            file.sync_all()?;
            std::fs::rename(&new, &self.0)?;
            File::open(folder)?.sync_all()
        };
        write().map_err(self.error("writing"))
    }

    /// Keeps others from changing the file until the lock is dropped.
    fn lock(&self) -> Result<File, TokenFileError> {
        let path = self.0.with_extension("lock");
        let lock = || -> io::Result<File> {
            let folder = self.0.parent().unwrap_or(Path::new("."));
            DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            own_as(&file, &std::fs::metadata(folder)?)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(self.error("locking"))
    }

    /// Makes a token and gives its text, which is kept nowhere.
    ///
    /// # Errors
    /// If there is one of that name, too many, or the file cannot be written.
    pub fn add(&self, name: &str, role: Role, project: Option<&str>) -> Result<String, TokenFileError> {
        let _lock = self.lock()?;
        let mut rows = self.read()?;
        let refuse =
            |text: String| self.error("adding to")(io::Error::new(io::ErrorKind::InvalidInput, text));
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            return Err(refuse(format!("'{name}' is no name: 1 to 64 letters, digits, '-', '_', '.', '@'")));
        }
        if rows.iter().any(|row| row.name == name) {
            return Err(refuse(format!("there is a token '{name}'; remove it first")));
        }
        if rows.len() >= TOKENS_MAX {
            return Err(refuse(format!("there are {TOKENS_MAX} tokens, and no more are kept")));
        }
        let secret = random_hex().ok_or_else(|| refuse("no random bytes can be had".into()))?;
        let text = format!("{PREFIX}{secret}");
        let made_ms =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |it| it.as_millis() as i64);
        let (name, project) = (name.to_string(), project.map(str::to_string));
        rows.push(TokenRow { name, role, project, made_ms, hash: hash(&text) });
        self.write(&rows)?;
        Ok(text)
    }

    /// Forgets a token; gives whether there was one.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn remove(&self, name: &str) -> Result<bool, TokenFileError> {
        let _lock = self.lock()?;
        let mut rows = self.read()?;
        let before = rows.len();
        rows.retain(|row| row.name != name);
        if rows.len() < before {
            self.write(&rows)?;
        }
        Ok(rows.len() < before)
    }

    /// What tells one content of the file from the next.
    fn stamp(&self) -> Option<(SystemTime, u64, u64)> {
        let meta = std::fs::metadata(&self.0).ok()?;
        Some((meta.modified().ok()?, meta.ino(), meta.len()))
    }
}

/// Gives a file to the owner of its folder: `sudo drover serve token add` must not make one that the daemon's user cannot read.
fn own_as(file: &File, folder: &Metadata) -> io::Result<()> {
    let meta = file.metadata()?;
    match (meta.uid(), meta.gid()) == (folder.uid(), folder.gid()) {
        true => Ok(()),
        // Another group is nothing to fail for: its members have no rights to the file.
        false if meta.uid() == folder.uid() => Ok(()),
        false => fchown(file, Some(folder.uid()), Some(folder.gid())),
    }
}

/// 256 random bits in hex: for tokens, and for keys that tell one order from the next.
pub fn random_hex() -> Option<String> {
    let mut bytes = [0; SECRET_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn hash(token: &str) -> String {
    blake3::hash(token.as_bytes()).to_hex().to_string()
}

/// Decides who a request is from.
#[derive(Debug)]
pub struct Gate {
    file: TokenFile,
    known: Mutex<Known>,
    bad: Mutex<BadTokens>,
}

#[derive(Debug, Default)]
struct Known {
    stamp: Option<(SystemTime, u64, u64)>,
    looked: Option<Instant>,
    rows: Vec<TokenRow>,
    /// Why they cannot be read.
    error: Option<String>,
}

/// How soon a token that was removed counts no more.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// Why a request gets nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It has no token.
    Missing,
    /// A token that is not known.
    Unknown,
    /// Too many of these from its address; seconds to wait.
    Guessing(u32),
    /// The tokens cannot be read, and why.
    Unreadable(String),
    /// A JWT that its issuer signed and that does not count, and why.
    Invalid(String),
    /// A JWT that counts, of somebody who has no role.
    NoRole(String),
    /// The issuer of JWTs cannot be asked for its keys, and why.
    Issuer(String),
}

impl Gate {
    /// A gate for the tokens of a file.
    pub fn new(file: TokenFile) -> Gate {
        Gate { file, known: Mutex::default(), bad: Mutex::default() }
    }

    /// Who has this token. A good one is never refused for the bad ones that came from the same address.
    ///
    /// # Errors
    /// Why it is nobody.
    pub fn caller(&self, token: &str, from: IpAddr, now: Instant) -> Result<Caller, Denied> {
        if token.len() <= TOKEN_CHARS_MAX
            && let Some(caller) = self.look_up(token, now).map_err(Denied::Unreadable)?
        {
            return Ok(caller);
        }
        Err(self.refuse(from, now))
    }

    /// Counts a wrong token of an address.
    pub fn refuse(&self, from: IpAddr, now: Instant) -> Denied {
        let mut bad = self.bad.lock().unwrap_or_else(PoisonError::into_inner);
        match bad.count(from, now) {
            None => Denied::Unknown,
            Some(wait) => Denied::Guessing(u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).max(1)),
        }
    }

    /// One that is not known may have been made a moment ago.
    fn look_up(&self, token: &str, now: Instant) -> Result<Option<Caller>, String> {
        let hash = hash(token);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_AFTER) {
            known.refresh(&self.file, now);
        }
        if let Some(caller) = known.find(&hash) {
            return Ok(Some(caller));
        }
        known.refresh(&self.file, now);
        match (known.find(&hash), &known.error) {
            (None, Some(error)) => Err(error.clone()),
            (found, _) => Ok(found),
        }
    }
}

impl Known {
    /// Each hash is compared as a whole, and all of them, so that the time tells nothing.
    fn find(&self, hash: &str) -> Option<Caller> {
        let mut found = None;
        for row in &self.rows {
            if aws_lc_rs::constant_time::verify_slices_are_equal(row.hash.as_bytes(), hash.as_bytes()).is_ok()
            {
                found = Some(row);
            }
        }
        found.map(|row| Caller {
            name: row.name.clone(),
            grants: vec![Grant { role: row.role, project: row.project.clone() }],
        })
    }

    /// Reads the file anew if it changed.
    fn refresh(&mut self, file: &TokenFile, now: Instant) {
        self.looked = Some(now);
        let stamp = file.stamp();
        if stamp.is_none() || stamp != self.stamp || self.error.is_some() {
            // Tokens that cannot be read let nobody in.
            (self.rows, self.error) = match file.read() {
                Ok(rows) => (rows, None),
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            self.stamp = stamp;
        }
    }
}

/// Wrong tokens by address: each has a bucket that fills by one with each, and empties by one in six seconds.
#[derive(Debug, Default)]
struct BadTokens(BTreeMap<IpAddr, (Instant, Duration)>);

impl BadTokens {
    /// Takes one in; gives how long the address has to wait if there were too many.
    fn count(&mut self, from: IpAddr, now: Instant) -> Option<Duration> {
        if !self.0.contains_key(&from) && self.0.len() >= ADDRESSES_MAX {
            let oldest = self.0.iter().min_by_key(|(_, (seen, _))| *seen).map(|(address, _)| *address);
            oldest.map(|address| self.0.remove(&address));
        }
        let (seen, level) = self.0.entry(from).or_insert((now, Duration::ZERO));
        *level = level.saturating_sub(now.saturating_duration_since(*seen)).min(BAD_EACH * BAD_MAX);
        *seen = now;
        let full = BAD_EACH * (BAD_MAX - 1);
        if *level > full {
            return Some(*level - full);
        }
        *level += BAD_EACH;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(number.to_be_bytes().into())
    }

    #[test]
    fn a_token_is_known_by_its_hash_and_forgotten_when_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::of(folder.path());
        let token = file.add("ann", Role::Operator, Some("web")).unwrap();
        let text = std::fs::read_to_string(&file.0).unwrap();
        assert!(token.starts_with(PREFIX) && !text.contains(&token[PREFIX.len()..]), "{text}");
        assert!(file.add("ann", Role::Viewer, None).is_err() && file.add("a b", Role::Viewer, None).is_err());
        let gate = Gate::new(file.clone());
        let now = Instant::now();
        let caller = gate.caller(&token, address(1), now).unwrap();
        assert_eq!((caller.name.as_str(), caller.role()), ("ann", Role::Operator));
        assert!(caller.sees("web") && !caller.sees("db"));
        assert_eq!(gate.caller(&token[..token.len() - 1], address(1), now), Err(Denied::Unknown));
        assert!(file.remove("ann").unwrap() && !file.remove("ann").unwrap());
        assert_eq!(gate.caller(&token, address(1), now + LOOK_AFTER * 2), Err(Denied::Unknown));
    }

    #[test]
    fn tokens_that_others_could_read_let_nobody_in() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::of(folder.path());
        let token = file.add("ann", Role::Admin, None).unwrap();
        std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(file.read().unwrap_err().to_string().contains("chmod 600"));
        let denied = Gate::new(file).caller(&token, address(1), Instant::now());
        assert!(matches!(denied, Err(Denied::Unreadable(why)) if why.contains("chmod 600")));
    }

    #[test]
    fn who_guesses_waits_and_who_has_a_token_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::of(folder.path());
        let token = file.add("ann", Role::Viewer, None).unwrap();
        let (gate, now) = (Gate::new(file), Instant::now());
        for _ in 0..BAD_MAX {
            assert_eq!(gate.caller("wrong", address(1), now), Err(Denied::Unknown));
        }
        assert_eq!(gate.caller("wrong", address(1), now), Err(Denied::Guessing(6)));
        assert!(gate.caller(&token, address(1), now).is_ok());
        assert_eq!(gate.caller("wrong", address(2), now), Err(Denied::Unknown));
        assert_eq!(gate.caller("wrong", address(1), now + BAD_EACH), Err(Denied::Unknown));
    }

    #[test]
    fn a_flood_from_many_addresses_takes_bounded_memory() {
        let mut bad = BadTokens::default();
        let now = Instant::now();
        for number in 0..100_000u32 {
            bad.count(address(number), now + Duration::from_micros(number.into()));
        }
        assert_eq!(bad.0.len(), ADDRESSES_MAX);
    }
}
