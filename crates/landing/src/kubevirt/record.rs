//! What is kept beside the journals of a VM: which cluster it went to, and which claims drover made.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use drover_engine::{Cause, ProviderError};

/// Records are a line.
const BYTES_MAX: u64 = 4096;

/// What tells a cluster from another: the UID of one of its namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub namespace: String,
    pub uid: String,
}

impl Recorded {
    pub fn write(&self, path: &Path) -> Result<(), ProviderError> {
        write(path, &format!("{} {}", self.namespace, self.uid))
    }

    /// Refuses a cluster whose namespace of that name is another, or is not there.
    pub fn check(&self, vm: &str, server: &str, found: Option<&str>) -> Result<(), ProviderError> {
        if found == Some(&self.uid) {
            return Ok(());
        }
        let what = format!(
            "{vm} went to another cluster than the one at {server}: namespace {} has the UID {} there, not {}",
            self.namespace,
            found.unwrap_or("of none"),
            self.uid
        );
        Err(ProviderError::new(Cause::Plan, what).advise(
            "name the cluster that it went to in `target.kubeconfig` and `target.context`; to move it elsewhere, `drover cancel` it there first",
        ))
    }
}

/// The cluster that a VM went to, if it did.
pub(super) fn cluster(path: &Path) -> Result<Option<Recorded>, ProviderError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let Some((namespace, uid)) = text.split_once(' ') else {
        let what = format!("{} does not tell which cluster it is about", path.display());
        return Err(ProviderError::new(Cause::Internal, what).advise("put it back from a copy"));
    };
    Ok(Some(Recorded { namespace: namespace.into(), uid: uid.into() }))
}

/// A record; nothing if there is none.
pub(super) fn read(path: &Path) -> Result<Option<String>, ProviderError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("reading", path, error)),
        Ok(_) => Ok(Some(text.trim().to_string())),
    }
}

/// Writes a record, whole and on the disk or not at all.
pub(super) fn write(path: &Path, text: &str) -> Result<(), ProviderError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || {
        std::fs::create_dir_all(folder)?;
        let beside = path.with_extension("new");
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|error| failed("writing", path, error))
}

fn failed(doing: &str, path: &Path, error: std::io::Error) -> ProviderError {
    ProviderError::new(Cause::Internal, format!("{doing} {}", path.display())).because(error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn another_cluster_is_told_from_the_one_that_was_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journals/a.drover-journal");
        assert_eq!(cluster(&path).unwrap(), None);
        let recorded = Recorded { namespace: "kube-system".into(), uid: "1".into() };
        recorded.write(&path).unwrap();
        assert_eq!(cluster(&path).unwrap().as_ref(), Some(&recorded));
        let check = |found| recorded.check("web01", "https://a", found);
        assert!(check(Some("1")).is_ok());
        for other in [Some("2"), None] {
            let error = check(other).unwrap_err();
            assert!(error.what.contains("web01 went to another cluster"), "{}", error.what);
        }
        std::fs::write(&path, "half").unwrap();
        assert!(cluster(&path).is_err(), "not taken for none");
    }
}
