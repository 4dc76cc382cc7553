//! Logical volumes of a pool of this host's libvirt for peers, as its agent serves them.

use drover_agent::{Refusal, Volumes};
use drover_disk::DiskErrorKind;
use drover_qemu::QemuError;
use drover_qemu::daemon::Daemon;

/// The volumes of one pool.
pub struct PoolVolumes {
    daemon: Daemon,
    pool: String,
}

impl PoolVolumes {
    /// Those of the pool of this name.
    pub fn new(daemon: Daemon, pool: &str) -> PoolVolumes {
        PoolVolumes { daemon, pool: pool.to_string() }
    }
}

impl Volumes for PoolVolumes {
    fn uuid(&self, name: &str, anew: bool) -> Result<Option<String>, Refusal> {
        let known = || self.daemon.volume(&self.pool, name).map_err(|error| refusal(&error));
        if !anew && let Some(volume) = known()? {
            return Ok(Some(volume.key));
        }
        self.daemon.refresh(&self.pool).map_err(|error| refusal(&error))?;
        Ok(known()?.map(|volume| volume.key))
    }
}

/// A daemon that is away comes back.
fn refusal(error: &QemuError) -> Refusal {
    Refusal::new(DiskErrorKind::Transient, error.chain())
}
