//! The engine's target, of whatever type: a folder on this machine, one of another site through its agent, domains of libvirt, or virtual
//! machines of KubeVirt.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use drover_agent::sites::SiteError;
use drover_disk::Disk;
use drover_engine::{
    Cause, Converted, OneWay, OpenedTarget, ProviderError, Started, TargetPlace, TargetProvider, chain,
};
use drover_mover::StopSignal;
use drover_plan::{At, Begun, Kubevirt, PlannedDisk, PlannedVm, Problem, Resolution};
use drover_qemu::MachineSpec;
use drover_types::guest::Inside;
use drover_types::{count, some_of};

use crate::conversion::{self, DueInside, OnThisMachine};
use crate::far_copy::FarCopy;
use crate::here::Here;
use crate::kubevirt::Claims;
use crate::libvirt::{self, ConvertedBy, Domains};
use crate::served_copy::ServedCopy;
use crate::setting::{NAMED_MAX, Setting};
use crate::sites::Sites;
use crate::there::{self, There};

/// The target of one plan. VMs that an earlier plan brought elsewhere are looked at there.
pub struct PlanTarget {
    here: Arc<Here>,
    domains: Arc<Domains>,
    claims: Option<Arc<Claims>>,
    about: Setting,
    sites: Arc<Sites>,
}

impl PlanTarget {
    /// The target of a plan; one at a site is not dialled yet.
    pub fn new(about: Setting) -> Self {
        let here = Arc::new(Here::new(&about));
        let sites = Arc::new(Sites::new(&about));
        let domains = Arc::new(Domains::new(here.clone(), sites.clone(), &about));
        let claims = about.target.kubevirt().map(|kubevirt| Arc::new(Claims::new(&about, kubevirt)));
        PlanTarget { here, domains, claims, about, sites }
    }

    /// The site of the plan, if it goes to a folder of one.
    pub fn site(&self) -> Option<Result<Arc<There>, SiteError>> {
        let via = self.about.target.via.as_deref().filter(|_| self.about.target.libvirt().is_none());
        via.map(|site| self.sites.there(site))
    }

    /// Asks the daemons of VMs that become domains, gives those their places, and adds what stands in the way; touches nothing.
    /// VMs that were begun keep the hosts that they had.
    pub fn survey(&self, resolution: &mut Resolution, begun: &[Begun]) {
        self.domains.place_on_hosts(resolution, begun);
        self.domains.survey(resolution);
        if let Some(claims) = &self.claims {
            claims.survey(resolution);
        }
    }

    /// What stands in the way of single VMs that come to this machine, or become domains; touches nothing.
    pub fn problems(&self, vms: &[PlannedVm]) -> Vec<Problem> {
        // One whose daemon did not answer has no place, and that was told.
        let is_libvirt = self.about.target.libvirt().is_some();
        let has_place = |vm: &&PlannedVm| match vm.daemon {
            Some(_) => vm.folder.is_absolute(),
            // No host takes it, and that was told.
            None => !is_libvirt,
        };
        let here = vms.iter().filter(|vm| vm.site.is_none() || vm.daemon.is_some()).filter(has_place);
        let problem = |vm: &PlannedVm| {
            let ahead = match vm.daemon {
                Some(_) => self.domains.look_ahead(vm),
                None => self.here.look_ahead(vm),
            };
            let error = ahead.err()?;
            let problem = Problem::error("target", format!("{}: {}", vm.vm.name, chain(&error)));
            let problem = problem.at(At { line: vm.line, column: 1 });
            Some(error.advice.into_iter().fold(problem, Problem::advise))
        };
        here.clone().filter_map(problem).chain(self.over_link(here)).collect()
    }

    /// Warnings about VMs that are due to be converted over a link.
    fn over_link<'a>(&self, vms: impl Iterator<Item = &'a PlannedVm>) -> Vec<Problem> {
        let mut found: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
        for vm in vms.filter(|vm| conversion::is_due(vm, self.here.boot_bus(vm))) {
            if let Ok(ConvertedBy::OverLink { site, why }) = self.domains.converted_by(vm) {
                found.entry((site, why)).or_default().push(&vm.vm.name);
            }
        }
        found.iter().map(|((site, why), names)| conversion::over_link(names, site, why)).collect()
    }

    /// What `drover plan check` tells of the way that data takes to libvirt's pools, and of conversions where volumes are.
    pub fn told_ways(&self, vms: &[PlannedVm]) -> String {
        libvirt::told_ways(vms) + &self.told_converters(vms)
    }

    fn told_converters(&self, vms: &[PlannedVm]) -> String {
        let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for vm in vms.iter().filter(|vm| conversion::is_due(vm, self.here.boot_bus(vm))) {
            if vm.daemon.is_some()
                && let Ok(ConvertedBy::ItsHost { there, .. }) = self.domains.converted_by(vm)
            {
                found.entry(there.name().to_string()).or_default().push(&vm.vm.name);
            }
        }
        let line = |(site, names): (&String, &Vec<&str>)| {
            format!("converted by the agent of {site}, beside their volumes: {}\n", some_of(names, NAMED_MAX))
        };
        found.iter().map(line).collect()
    }

    /// What stands in the way of converting a VM that was looked into, where its guest id did not tell of it; touches nothing.
    pub(crate) fn check_inside(&self, vm: &PlannedVm, inside: &Inside, stop: &StopSignal) -> Option<Problem> {
        match self.converts_at(vm) {
            ConvertsAt::Here => self.here.converter.check_inside(vm, self.here.boot_bus(vm), inside, stop),
            ConvertsAt::OverLink { site, why } => {
                let boot_bus = self.here.boot_bus(vm);
                let warning = || {
                    DueInside::of(vm, boot_bus, inside)
                        .map(|_| conversion::over_link(&[&vm.vm.name], &site, &why))
                };
                self.here.converter.check_inside(vm, boot_bus, inside, stop).or_else(warning)
            }
            ConvertsAt::Volumes { there, machine } => there.check_inside(&machine, inside, stop),
            ConvertsAt::Claims(claims) => claims.check_inside(vm, inside, stop),
            ConvertsAt::Site(there) => there.check_inside(vm, inside, stop),
            ConvertsAt::Nowhere => None,
        }
    }

    /// Warnings about VMs that may need conversion, which guest ids do not tell, where nothing converts them.
    pub fn unsure<'a>(
        &self,
        vms: impl Iterator<Item = &'a PlannedVm>,
        were_looked_into: bool,
    ) -> Vec<Problem> {
        let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for vm in vms {
            let lack = match self.converts_at(vm) {
                ConvertsAt::Here | ConvertsAt::OverLink { .. }
                    if conversion::may_be_due(vm, self.here.boot_bus(vm)) =>
                {
                    conversion::lack_here()
                }
                ConvertsAt::Claims(claims) => claims.lack_if_due(vm),
                // A site that does not answer was told of already.
                ConvertsAt::Site(there) => there.lack_if_due(vm).ok().flatten(),
                ConvertsAt::Here | ConvertsAt::OverLink { .. } => None,
                ConvertsAt::Volumes { .. } | ConvertsAt::Nowhere => None,
            };
            if let Some(lack) = lack {
                found.entry(lack.what).or_default().push(&vm.vm.name);
            }
        }
        let advice = match were_looked_into {
            true => "their initramfs could not be read: look yourself whether it has virtio's drivers",
            false => "`drover plan check --inspect` looks into them",
        };
        let problem = |(lack, names): (String, Vec<&str>)| {
            let text = format!(
                "{} may not boot without conversion ({}), which guest ids do not tell, and {lack}",
                count(names.len(), "VM"),
                some_of(&names, NAMED_MAX),
            );
            Problem::warning("convert", text).advise(advice)
        };
        found.into_iter().map(problem).collect()
    }

    /// Where a VM's guest is converted.
    fn converts_at(&self, vm: &PlannedVm) -> ConvertsAt {
        match &vm.site {
            _ if vm.daemon.is_some() => match self.domains.converted_by(vm) {
                Ok(ConvertedBy::ThisMachine) => ConvertsAt::Here,
                Ok(ConvertedBy::OverLink { site, why }) => ConvertsAt::OverLink { site, why },
                Ok(ConvertedBy::ItsHost { there, machine }) => ConvertsAt::Volumes { there, machine },
                // A site that does not answer was told of.
                Err(_) => ConvertsAt::Nowhere,
            },
            // No host takes it, and that was told.
            None if self.about.target.libvirt().is_some() => ConvertsAt::Nowhere,
            None => ConvertsAt::Here,
            Some(site) if Kubevirt::is_site(site) => {
                self.claims.clone().map_or(ConvertsAt::Nowhere, ConvertsAt::Claims)
            }
            // One that is not known was told, too.
            Some(site) => self.sites.there(site).map_or(ConvertsAt::Nowhere, ConvertsAt::Site),
        }
    }

    /// The machine of a VM, to be rehearsed here, and what serves its copy if that is another host's or in Ceph.
    pub fn rehearsed(&self, vm: &PlannedVm) -> Result<(MachineSpec, Option<ServedCopy>), ProviderError> {
        if let Some(why) = self.why_not_rehearsed(vm) {
            let what = format!("{} cannot be rehearsed: {why}", vm.target_name);
            return Err(ProviderError::new(Cause::Plan, what));
        }
        let there = vm.site.as_deref().map(|site| self.sites.of(site)).transpose()?;
        let spec = match (&vm.daemon, &there) {
            (Some(_), _) => self.domains.rehearsed(vm)?,
            (None, Some(there)) => there.rehearsed(vm)?,
            (None, None) => self.here.spec(vm)?,
        };
        let served = match &there {
            Some(there) => Some(ServedCopy::Far(FarCopy::open(there, vm)?)),
            None if vm.daemon.is_some() => self.domains.served(vm)?.map(ServedCopy::Ceph),
            None => None,
        };
        Ok((spec, served))
    }

    /// Why a VM cannot be rehearsed on this machine, whatever became of its copy.
    pub fn why_not_rehearsed(&self, vm: &PlannedVm) -> Option<String> {
        match &vm.site {
            Some(site) if Kubevirt::is_site(site) => {
                Some(format!("its disks are at {site}, where nothing serves them to a rehearsal"))
            }
            // A host that is away is told at once, and fails its own VMs only.
            Some(site) => {
                self.sites.there(site).and_then(|there| there.dial()).err().map(|it| it.to_string())
            }
            None if vm.daemon.is_none() && self.about.target.libvirt().is_some() => {
                Some("no host takes it".into())
            }
            None => None,
        }
    }

    /// Converts the guest of a machine, as a run would, on overlays of its copy.
    pub fn convert_on(
        &self,
        spec: &MachineSpec,
        vm: &PlannedVm,
        served: Option<&ServedCopy>,
    ) -> Result<Converted, ProviderError> {
        let served = served.map(ServedCopy::disks).unwrap_or_default();
        conversion::convert(&OnThisMachine { spec, vm, stop: &self.about.stop, served }, vm)
    }

    /// Why the host of a VM, one of several, was away when it was asked.
    pub fn is_away(&self, vm: &PlannedVm) -> Option<String> {
        self.domains.is_away(vm)
    }

    fn at(&self, vm: &PlannedVm) -> Result<Arc<dyn TargetProvider>, ProviderError> {
        match &vm.site {
            _ if vm.daemon.is_some() => Ok(self.domains.clone()),
            None if self.about.target.libvirt().is_some() => {
                let what = format!("{} has no host", vm.target_name);
                Err(ProviderError::new(Cause::Plan, what).advise("see what `drover plan check` says of it"))
            }
            None => Ok(self.here.clone()),
            Some(site) if Kubevirt::is_site(site) => match &self.claims {
                Some(claims) if self.about.target.kubevirt().is_some_and(|it| it.site() == *site) => {
                    Ok(claims.clone())
                }
                _ => {
                    let what =
                        format!("{} went to {site}, and the plan does not go there any more", vm.target_name);
                    Err(ProviderError::new(Cause::Plan, what).advise("put the target back into the plan"))
                }
            },
            Some(site) => Ok(self.sites.of(site)?),
        }
    }
}

/// Whose converter a guest is given to.
enum ConvertsAt {
    /// That of this machine.
    Here,
    /// That of this machine, if the cluster lets it.
    Claims(Arc<Claims>),
    /// That of this machine, of volumes at a site.
    OverLink {
        site: String,
        why: String,
    },
    /// That of an agent, of volumes whose domain a daemon has.
    Volumes {
        there: Arc<There>,
        machine: Box<PlannedVm>,
    },
    /// That of an agent.
    Site(Arc<There>),
    Nowhere,
}

impl TargetProvider for PlanTarget {
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.at(vm)?.prepare(vm)
    }

    fn places(&self, vm: &PlannedVm, is_left: bool) -> Result<Vec<TargetPlace>, ProviderError> {
        self.at(vm)?.places(vm, is_left)
    }

    fn free_bytes(&self, vm: &PlannedVm, place: &TargetPlace) -> Result<Option<u64>, ProviderError> {
        self.at(vm)?.free_bytes(vm, place)
    }

    fn open_disk(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
    ) -> Result<OpenedTarget, ProviderError> {
        self.at(vm)?.open_disk(disk, vm, size)
    }

    fn is_one_way(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        self.at(vm)?.is_one_way(vm)
    }

    fn one_way(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Box<dyn OneWay>, ProviderError> {
        self.at(vm)?.one_way(disk, vm)
    }

    fn journal(&self, disk: &PlannedDisk, vm: &PlannedVm) -> PathBuf {
        match &vm.site {
            None if vm.daemon.is_some() => self.domains.journal(disk, vm),
            None => self.here.journal(disk, vm),
            Some(site) => there::journal(self.about.state(), site, disk),
        }
    }

    fn has_image(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<bool, ProviderError> {
        self.at(vm)?.has_image(disk, vm)
    }

    fn open_for_verify(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Arc<dyn Disk>, ProviderError> {
        self.at(vm)?.open_for_verify(disk, vm)
    }

    fn convert(&self, vm: &PlannedVm) -> Result<Converted, ProviderError> {
        self.at(vm)?.convert(vm)
    }

    fn forget_conversion(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.at(vm)?.forget_conversion(vm)
    }

    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        self.at(vm)?.define(vm)
    }

    fn settle(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.at(vm)?.settle(vm)
    }

    fn undo_define(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.at(vm)?.undo_define(vm)
    }

    fn make_ready(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.at(vm)?.make_ready(vm)
    }

    fn start(&self, vm: &PlannedVm) -> Result<Started, ProviderError> {
        self.at(vm)?.start(vm)
    }

    fn is_running(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        self.at(vm)?.is_running(vm)
    }

    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.at(vm)?.stop(vm)
    }

    fn remove_images(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.at(vm)?.remove_images(vm)
    }

    fn give_back(&self, vm: &PlannedVm) -> Result<Vec<String>, ProviderError> {
        self.at(vm)?.give_back(vm)
    }

    fn forget(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        match &vm.site {
            _ if vm.daemon.is_some() => self.domains.forget(vm),
            Some(site) if Kubevirt::is_site(site) => self.at(vm)?.forget(vm),
            // Nothing but journals says so; nor need a site be known any more.
            _ => Ok(()),
        }
    }
}
