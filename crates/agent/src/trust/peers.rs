use std::net::IpAddr;

use drover_link::RdmaMode;
use drover_types::DayLimit;
use serde::{Deserialize, Serialize};

use super::folder::{Folder, FolderError};
use super::identity::Fingerprint;
use crate::error::printable;

pub(super) const FILE: &str = "peers.json";

/// Peers that are kept; further ones are refused.
const PEERS_MAX: usize = 1000;

const NAME_CHARS_MAX: usize = 64;

/// A host that is trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// What this host calls it.
    pub name: String,
    /// Its key.
    pub key: Fingerprint,
    /// Where its agent listens, `HOST:PORT` each; empty for a host that only dials here.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Addresses here to go out from when it is dialled; all are used. None: the kernel chooses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<IpAddr>,
    /// Whether it is dialled over RDMA.
    #[serde(default, skip_serializing_if = "is_usual", with = "as_text")]
    pub rdma: RdmaMode,
    /// When it became a peer, in seconds since 1970.
    pub since: u64,
    /// How much may go to it, by the time.
    #[serde(default)]
    pub limits: Vec<DayLimit>,
}

fn is_usual(rdma: &RdmaMode) -> bool {
    *rdma == RdmaMode::default()
}

/// A mode as the command line has it.
mod as_text {
    use drover_link::RdmaMode;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(rdma: &RdmaMode, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(rdma)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<RdmaMode, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Peer {
    /// A peer without limits.
    pub fn new(name: impl Into<String>, key: Fingerprint, addresses: Vec<String>, since: u64) -> Peer {
        let (name, rdma) = (name.into(), RdmaMode::default());
        Peer { name, key, addresses, sources: Vec::new(), rdma, since, limits: Vec::new() }
    }
}

/// A name that no peer can have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Too long, empty, or with other characters.
    #[error(
        "'{0}' is no name for a peer: 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.', beginning with a letter or digit"
    )]
    Senseless(String),
    /// Another key has it.
    #[error("another peer is called '{0}'; choose another name, or revoke that one first")]
    Taken(String),
    /// There are too many.
    #[error("there are {PEERS_MAX} peers; revoke some first")]
    TooMany,
}

/// Checks a name.
///
/// # Errors
/// [`NameError::Senseless`].
pub fn check_name(name: &str) -> Result<(), NameError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= NAME_CHARS_MAX && name.chars().all(allowed) {
        return Ok(());
    }
    Err(NameError::Senseless(printable(name.chars().take(NAME_CHARS_MAX).collect())))
}

/// The peers of this host. Each look reads the file anew, so that a revocation by another process counts at once.
#[derive(Clone, Debug)]
pub struct Peers {
    folder: Folder,
}

#[derive(Default, Serialize, Deserialize)]
struct File {
    peers: Vec<Peer>,
}

/// The file of one peer.
pub(super) fn file_of(peer: &Peer) -> String {
    serde_json::json!({"peers": [peer]}).to_string()
}

impl Peers {
    /// The peers kept in a folder.
    pub fn new(folder: Folder) -> Peers {
        Peers { folder }
    }

    /// All of them.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn list(&self) -> Result<Vec<Peer>, FolderError> {
        Ok(self.folder.read_json::<File>(FILE)?.peers)
    }

    /// The peer with this key.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn with_key(&self, key: Fingerprint) -> Result<Option<Peer>, FolderError> {
        Ok(self.list()?.into_iter().find(|peer| peer.key == key))
    }

    /// The peer of this name.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn named(&self, name: &str) -> Result<Option<Peer>, FolderError> {
        Ok(self.list()?.into_iter().find(|peer| peer.name == name))
    }

    /// Adds a peer, or gives the one with this key its new name and addresses.
    ///
    /// # Errors
    /// When it cannot be kept; the inner error when its name cannot be taken.
    pub fn add(&self, peer: Peer) -> Result<Result<(), NameError>, FolderError> {
        if let Err(error) = check_name(&peer.name) {
            return Ok(Err(error));
        }
        self.folder.change_json(FILE, |file: &mut File| {
            if file.peers.iter().any(|it| it.name == peer.name && it.key != peer.key) {
                return Err(NameError::Taken(peer.name));
            }
            let is_full = file.peers.len() >= PEERS_MAX;
            match file.peers.iter_mut().find(|it| it.key == peer.key) {
                // Limits stay; addresses, too, where none are told: by who only dials in.
                Some(known) => {
                    let Peer { limits, addresses, sources, rdma, .. } = known.clone();
                    let (addresses, sources, rdma) = match peer.addresses.is_empty() {
                        true => (addresses, sources, rdma),
                        false => (peer.addresses, peer.sources, peer.rdma),
                    };
                    *known = Peer { limits, addresses, sources, rdma, ..peer };
                }
                None if is_full => return Err(NameError::TooMany),
                None => file.peers.push(peer),
            }
            Ok(())
        })
    }

    /// Sets how much may go to a peer. `false` if there is none of this name.
    ///
    /// # Errors
    /// When that cannot be kept.
    pub fn set_limits(&self, name: &str, limits: Vec<DayLimit>) -> Result<bool, FolderError> {
        self.folder.change_json(FILE, |file: &mut File| {
            let peer = file.peers.iter_mut().find(|peer| peer.name == name);
            peer.map(|peer| peer.limits = limits).is_some()
        })
    }

    /// Trusts a peer no more. `false` if there was none of this name.
    ///
    /// # Errors
    /// When that cannot be kept.
    pub fn revoke(&self, name: &str) -> Result<bool, FolderError> {
        self.folder.change_json(FILE, |file: &mut File| {
            let before = file.peers.len();
            file.peers.retain(|peer| peer.name != name);
            file.peers.len() < before
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, key: u8, addresses: &[&str]) -> Peer {
        let addresses = addresses.iter().map(|it| it.to_string()).collect();
        Peer::new(name, Fingerprint([key; 32]), addresses, 1)
    }

    #[test]
    fn peers_are_kept_renamed_and_revoked() {
        let state = tempfile::tempdir().unwrap();
        let peers = Peers::new(Folder::open(state.path()).unwrap());
        assert_eq!(peers.list().unwrap(), []);
        peers.add(peer("site-b", 1, &["b:1"])).unwrap().unwrap();
        let taken = peers.add(peer("site-b", 2, &[])).unwrap();
        assert_eq!(taken, Err(NameError::Taken("site-b".to_string())));
        peers.add(peer("west", 1, &[])).unwrap().unwrap();
        assert_eq!(peers.with_key(Fingerprint([1; 32])).unwrap(), Some(peer("west", 1, &["b:1"])));
        assert_eq!(peers.named("site-b").unwrap(), None);
        let limits = vec!["Sat 00:00-01:00 Europe/Berlin=56m".parse().unwrap()];
        assert!(
            peers.set_limits("west", limits.clone()).unwrap()
                && !peers.set_limits("east", Vec::new()).unwrap()
        );
        peers.add(peer("west", 1, &["c:1"])).unwrap().unwrap();
        let west = peers.named("west").unwrap().unwrap();
        assert_eq!((west.limits, west.addresses), (limits, vec!["c:1".to_string()]));
        assert!(!peers.revoke("site-b").unwrap());
        assert!(peers.revoke("west").unwrap());
        assert_eq!(peers.list().unwrap(), []);
    }

    #[test]
    fn names_are_such_as_fit_a_uri_and_a_terminal() {
        for name in ["a", "site-b.example", "9", &"x".repeat(64)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "-a", ".", "a/b", "a b", "ä", "a\u{1b}[1m", &"x".repeat(65)] {
            let error = check_name(name).unwrap_err().to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
