//! The trust of an agent that is made for one peer and one purpose: its key and that peer, told to it as files before it starts.

use std::path::Path;

use rcgen::{KeyPair, PKCS_ED25519};

use super::folder::{Folder, FolderError};
use super::identity::{Fingerprint, Identity, IdentityError, KEY_FILE};
use super::peers::{FILE as PEERS_FILE, Peer, file_of};
use drover_types::Secret;

/// A file of a seed is not longer.
const SEED_BYTES_MAX: u64 = 64 << 10;

/// What an agent is to start with.
pub struct Seed {
    /// What it will be known by.
    pub agent: Fingerprint,
    /// Its files: names, and what is in them. The key among them is a secret.
    pub files: Vec<(&'static str, Secret)>,
}

impl Seed {
    /// A new key, and one peer.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new(peer: &Peer) -> Result<Seed, IdentityError> {
        let pair = KeyPair::generate_for(&PKCS_ED25519)?;
        let agent = Identity::of(&pair)?.fingerprint();
        let files =
            vec![(KEY_FILE, Secret::new(pair.serialize_pem())), (PEERS_FILE, Secret::new(file_of(peer)))];
        Ok(Seed { agent, files })
    }

    /// Puts the files of a seed in a folder's place of trust, each unless there is one already.
    ///
    /// # Errors
    /// When they cannot be read or written.
    pub fn sow(from: &Path, folder: &Folder) -> Result<(), FolderError> {
        for name in [KEY_FILE, PEERS_FILE] {
            if folder.read(name)?.is_some() {
                continue;
            }
            let path = from.join(name);
            let read = || -> std::io::Result<Vec<u8>> {
                use std::io::Read;
                let mut bytes = Vec::new();
                std::fs::File::open(&path)?.take(SEED_BYTES_MAX).read_to_end(&mut bytes)?;
                Ok(bytes)
            };
            let bytes = read().map_err(|source| FolderError::new("reading", path.clone(), source))?;
            folder.write(name, &bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Peers;
    use super::*;

    #[test]
    fn an_agent_starts_with_the_key_and_the_peer_of_its_seed_and_keeps_them() {
        let (from, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let peer = Peer::new("here", Fingerprint([7; 32]), Vec::new(), 1);
        let put = |seed: &Seed| {
            for (name, bytes) in &seed.files {
                std::fs::write(from.path().join(name), bytes.reveal()).unwrap();
            }
        };
        let seed = Seed::new(&peer).unwrap();
        put(&seed);
        let folder = Folder::open(state.path()).unwrap();
        Seed::sow(from.path(), &folder).unwrap();
        assert_eq!(Identity::open(&folder).unwrap().fingerprint(), seed.agent);
        assert_eq!(Peers::new(folder.clone()).list().unwrap(), std::slice::from_ref(&peer));
        put(&Seed::new(&peer).unwrap());
        Seed::sow(from.path(), &folder).unwrap();
        assert_eq!(Identity::open(&folder).unwrap().fingerprint(), seed.agent);
    }

    #[test]
    fn a_seed_that_is_not_there_is_told() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::open(state.path()).unwrap();
        let error = Seed::sow(Path::new("/no/such"), &folder).unwrap_err();
        assert!(error.to_string().contains("/no/such/key.pem"), "{error}");
    }
}
