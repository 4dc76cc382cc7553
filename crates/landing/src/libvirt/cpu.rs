//! The CPU of domains: whether a host has it, and the one that all hosts of a plan have.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use drover_engine::{Cause, ProviderError};
use drover_plan::{PlannedVm, Problem, Resolution};
use drover_qemu::QemuError;
use drover_qemu::daemon::{CpuModel, Daemon, Offers};

use super::Domains;

impl Domains {
    /// What a host lacks of the CPU that the plan wants, in words.
    ///
    /// # Errors
    /// If its daemon does not tell.
    pub(super) fn lack_of_cpu(&self, daemon: &Daemon, offers: &Offers) -> Result<Option<String>, QemuError> {
        let Some(libvirt) = self.about.target.libvirt() else { return Ok(None) };
        let model = libvirt.cpu.as_deref().filter(|_| !libvirt.is_common_cpu());
        if let Some(lack) = model.and_then(|cpu| offers.lack_of_cpu(cpu)) {
            return Ok(Some(lack));
        }
        if libvirt.cpu_features.is_empty() {
            return Ok(None);
        }
        let has = daemon.cpu_features(self.is_kvm(daemon)?, self.machine(), offers)?;
        let lacking = libvirt.cpu_features.iter().filter(|feature| !has.contains(*feature));
        let lacking: Vec<&str> = lacking.map(String::as_str).collect();
        Ok((!lacking.is_empty()).then(|| format!("has no CPU with {}", lacking.join(", "))))
    }

    /// Finds the CPU that all hosts of the plan have, if it wants that: those that it names, and those of VMs that were begun.
    pub(super) fn find_common_cpu(&self, resolution: &mut Resolution) {
        let Some(libvirt) = self.about.target.libvirt().filter(|libvirt| libvirt.is_common_cpu()) else {
            return;
        };
        let named = libvirt.hosts.iter().map(|host| host.uri.as_str());
        let given = resolution.vms.iter().filter_map(|vm| vm.daemon.as_deref());
        let uris: BTreeSet<&str> = named.chain(given).collect();
        let found = self.common_cpu_of(&uris);
        if let Err(why) = &found {
            let text = format!("the CPU that all hosts have is not known: {why}");
            let advice = "see `virsh -c URI domcapabilities` of each host, or name a model by `cpu`";
            resolution.problems.push(Problem::error("target.cpu", text).advise(advice));
        }
        *self.common_cpu.lock().unwrap_or_else(PoisonError::into_inner) = found.ok();
    }

    fn common_cpu_of(&self, uris: &BTreeSet<&str>) -> Result<CpuModel, String> {
        let asked = uris.iter().map(|uri| -> Result<_, String> {
            let daemon = (self.dial)(uri);
            // One that is away may lack whatever the others have.
            let offers = self
                .is_kvm(&daemon)
                .and_then(|is_kvm| daemon.offers(is_kvm, self.machine()).map(|offers| (is_kvm, offers)));
            let (is_kvm, offers) = offers.map_err(|error| format!("{uri}: {}", error.chain()))?;
            Ok((daemon, is_kvm, offers))
        });
        let asked = asked.collect::<Result<Vec<_>, String>>()?;
        let Some((daemon, is_kvm, _)) = asked.first() else { return Err("no host takes a VM".into()) };
        if asked.iter().any(|(_, other, _)| other != is_kvm) {
            return Err("some have KVM, and some have not".into());
        }
        let offers: Vec<&Offers> = asked.iter().map(|(.., offers)| offers).collect();
        daemon.common_cpu(*is_kvm, self.machine(), &offers).map_err(|error| error.chain())
    }

    /// The CPU that all hosts have, if the plan wants that for its domains.
    ///
    /// # Errors
    /// If it is not known.
    pub(super) fn common_cpu(&self, vm: &PlannedVm) -> Result<Option<CpuModel>, ProviderError> {
        if !self.about.target.libvirt().is_some_and(|libvirt| libvirt.is_common_cpu()) {
            return Ok(None);
        }
        let found = self.common_cpu.lock().unwrap_or_else(PoisonError::into_inner).clone();
        found.map(Some).ok_or_else(|| {
            let what = format!("{}: the CPU that all hosts of the plan have is not known", vm.target_name);
            ProviderError::new(Cause::Target, what).advise("see `drover plan check`, then `drover resume`")
        })
    }
}
