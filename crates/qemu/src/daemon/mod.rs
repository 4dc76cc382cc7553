//! A libvirt daemon as the place where machines land: its pools and volumes, and domains that are drover's own.
//!
//! Each domain that is defined here says in its metadata whose it is, and nothing is done to one that does not.

mod cpu;
mod domain;
mod offers;
mod pool;
mod rbd;

use std::fs::File;

pub use cpu::CpuModel;
pub use domain::{DomainDisk, FoundDomain, Owner};
pub use offers::Offers;
pub use pool::{NewVolume, Pool, PoolKind, Volume};
pub(crate) use rbd::{KEY, escaped};
pub use rbd::{RbdAuth, RbdPool, SecretName};
use roxmltree::Document;

use crate::error::{QemuError, QemuErrorKind};
use crate::virsh::Virsh;

/// A daemon by its address.
#[derive(Clone, Debug)]
pub struct Daemon {
    virsh: Virsh,
}

impl Daemon {
    /// The daemon at an address in libvirt's form.
    pub fn new(uri: &str) -> Daemon {
        Daemon { virsh: Virsh::new(uri) }
    }

    /// The daemon that `virsh` asks where no address is said.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn of_this_host() -> Result<Daemon, QemuError> {
        // An empty address is none to libvirt.
        Ok(Daemon::new(Virsh::new("").ask(&["uri"])?.trim()))
    }

    /// The daemon that this asks.
    pub fn of(virsh: Virsh) -> Daemon {
        Daemon { virsh }
    }

    /// Its address.
    pub fn uri(&self) -> &str {
        self.virsh.uri()
    }

    /// Whether it answers.
    ///
    /// # Errors
    /// Why it does not.
    pub fn reach(&self) -> Result<(), QemuError> {
        self.virsh.reach()
    }

    /// Its networks, by name, and whether each is active.
    ///
    /// # Errors
    /// If it does not tell, as one without a driver for networks does.
    pub fn networks(&self) -> Result<Vec<(String, bool)>, QemuError> {
        let active = self.virsh.lines(&["net-list", "--name"])?;
        let all = self.virsh.lines(&["net-list", "--all", "--name"])?;
        Ok(all.into_iter().map(|name| (name.clone(), active.contains(&name))).collect())
    }

    /// Memory of its host that is free, or that the kernel gives back when it is wanted, in bytes.
    ///
    /// # Errors
    /// If it does not tell.
    pub fn free_memory_bytes(&self) -> Result<u64, QemuError> {
        let told = self.virsh.values(&["nodememstats"])?;
        let kib = |name: &str| -> Option<u64> { told.get(name)?.split_whitespace().next()?.parse().ok() };
        let Some(free) = kib("free") else {
            return Err(QemuError::new(
                QemuErrorKind::Failed,
                format!("reading the memory of {}", self.uri()),
            )
            .because("it does not say what is free"));
        };
        let held = kib("buffers").unwrap_or_default().saturating_add(kib("cached").unwrap_or_default());
        Ok(free.saturating_add(held).saturating_mul(1024))
    }

    /// Free huge pages of this size of its host, in bytes.
    ///
    /// # Errors
    /// If it does not tell.
    pub fn free_pages_bytes(&self, page_bytes: u64) -> Result<u64, QemuError> {
        let told = self.virsh.lines(&["freepages", "--all"])?;
        Ok(pages(&told, page_bytes / 1024).saturating_mul(page_bytes))
    }

    /// UUIDs and names of all its domains.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn domains(&self) -> Result<Vec<(String, String)>, QemuError> {
        self.virsh.domains()
    }

    /// What it offers to domains of this machine type.
    ///
    /// # Errors
    /// If it offers no such machine, or cannot be asked.
    pub fn offers(&self, is_kvm: bool, machine: &str) -> Result<Offers, QemuError> {
        let kind = if is_kvm { "kvm" } else { "qemu" };
        let words = ["domcapabilities", "--virttype", kind, "--arch", "x86_64", "--machine", machine];
        Offers::read(&self.virsh.ask(&words)?)
    }

    /// Starts a domain. The file is open for as long as the start is under way, also if drover is not.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(&self, uuid: &str, held: File) -> Result<(), QemuError> {
        self.virsh.ask_with(&["start", uuid], held.into()).map(drop)
    }

    /// Whether a start of a domain that somebody asked for is under way.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn is_starting(&self, uuid: &str) -> Result<bool, QemuError> {
        Ok(self.virsh.ask(&["domstate", uuid, "--reason"])?.trim() == "paused (starting up)")
    }

    /// Asks a guest to shut down.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn shut_down(&self, uuid: &str) -> Result<(), QemuError> {
        self.virsh.ask(&["shutdown", uuid]).map(drop)
    }

    /// Pulls a domain's plug.
    ///
    /// # Errors
    /// If it cannot be done.
    pub fn destroy(&self, uuid: &str) -> Result<(), QemuError> {
        self.virsh.ask(&["destroy", uuid]).map(drop)
    }
}

/// Pages of this size on all nodes together, as virsh tells them: `2048KiB: 7`.
fn pages(told: &[String], page_kib: u64) -> u64 {
    let size = format!("{page_kib}KiB");
    let of_size = told.iter().filter_map(|line| line.split_once(':')).filter(|(name, _)| *name == size);
    of_size.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).fold(0, u64::saturating_add)
}

fn parsed<'a>(xml: &'a str, what: &str) -> Result<Document<'a>, QemuError> {
    Document::parse(xml)
        .map_err(|error| QemuError::new(QemuErrorKind::Failed, format!("reading {what}")).because(error))
}

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::rbd::tests::pool as ceph;
    use super::*;

    #[test]
    fn pages_are_those_of_all_nodes() {
        let told = ["Node 0:", "4KiB: 900", "2048KiB: 7", "Node 1:", "2048KiB: 5", "1048576KiB: 1"];
        let told = told.map(str::to_string);
        assert_eq!((pages(&told, 2048), pages(&told, 1 << 20), pages(&told, 8)), (12, 1, 0));
    }
}
