//! The source of a plan, of whatever kind it is.

use std::path::Path;
use std::sync::Arc;

use drover_engine::{SourceProvider, Store};
use drover_forecast::may_run;
use drover_mover::StopSignal;
use drover_plan::nfc::{HostNfc, share_out, share_out_own};
use drover_plan::{Begun, PlannedVm, Problem, Resolution, Source};
use drover_types::inventory::{About, Inventory, Vm, WriteRates};
use drover_vsphere::Session;

use crate::appliance::{self, Appliance, LeftAlone};
use crate::connect;
use crate::exit::Failure;
use crate::hot_add::{HotAdd, check_proxies};
use crate::inventories::Read;
use crate::plan_file::PlanFile;
use crate::rights;
use crate::source::VsphereSource;
use crate::state::state_folder;
use crate::vddk::{self, Way};

/// A source that can be asked.
pub enum Provider {
    Vsphere(Box<VsphereSource>),
    Appliance(Box<Appliance>),
}

impl Provider {
    /// Opens the source of a plan.
    pub fn open(file: &PlanFile, state: Option<&Path>) -> Result<Provider, Failure> {
        match &file.plan.source {
            Source::Vsphere(source) => {
                // Before the login: a library that is missing touches nothing.
                let way = vddk::choose(source, &file.plan.limits, &file.folder)?;
                let session = connect::connect_plan(source, &file.folder)?;
                let folder = file.folder.clone();
                let hot_add = HotAdd::new(source, &file.plan.limits, state.map(Path::to_path_buf));
                let state = state_folder(state);
                Ok(Provider::Vsphere(Box::new(VsphereSource { session, folder, state, way, hot_add })))
            }
            Source::Ova(source) => {
                let appliance = Appliance::open(source, &file.folder, &file.plan.name)?;
                Ok(Provider::Appliance(Box::new(appliance)))
            }
        }
    }

    /// A stop breaks off what is being asked of it, and not what undoes something afterwards.
    pub fn stop_when(&self, stop: &StopSignal) {
        if let Provider::Vsphere(source) = self {
            let stop = stop.clone();
            source.hot_add.iter().for_each(|hot_add| hot_add.stop_when(&stop));
            source.session.stop_when(Arc::new(move || stop.is_set()));
        }
    }

    /// What it has.
    pub fn inventory(&self) -> Result<Inventory, Failure> {
        let read = self.shared_inventory()?;
        Ok(Arc::try_unwrap(read).map_or_else(|read| read.inventory.clone(), |read| read.inventory))
    }

    /// The same, as other plans of this process may have it, too.
    pub fn shared_inventory(&self) -> Result<Arc<Read>, Failure> {
        match self {
            Provider::Vsphere(source) => Ok(source.inventory()?),
            Provider::Appliance(appliance) => {
                Ok(Arc::new(Read { inventory: appliance.inventory(), warnings: Vec::new() }))
            }
        }
    }

    /// What those of `vms` write that may run, by performance counters, as far as it is known.
    pub fn write_rates<'a>(&self, vms: impl Iterator<Item = &'a Vm>) -> WriteRates {
        match self {
            Provider::Vsphere(source) => write_rates(&source.session, vms),
            Provider::Appliance(_) => WriteRates::new(),
        }
    }

    /// What the user should know, once the inventory was asked for.
    pub fn warnings(&self) -> Vec<String> {
        match self {
            Provider::Vsphere(source) => source.session.warnings(),
            Provider::Appliance(appliance) => appliance.warnings().to_vec(),
        }
    }

    /// Finds the plan's proxies in an inventory that has all VMs.
    pub fn find_proxies(&self, file: &PlanFile, inventory: &Inventory) {
        if let Provider::Vsphere(source) = self
            && let Some(hot_add) = &source.hot_add
        {
            hot_add.find(&file.plan, inventory);
        }
    }

    /// What is wrong with the plan's proxies, as far as they and vSphere can be asked; touches nothing. With `path: auto` a
    /// plan goes without them, so it is an error only if `strict`.
    pub fn proxy_problems(&self, resolution: &Resolution, strict: bool) -> Vec<Problem> {
        match self {
            Provider::Vsphere(source) => match &source.hot_add {
                Some(hot_add) => check_proxies(&source.session, hot_add, resolution, strict),
                None => Vec::new(),
            },
            Provider::Appliance(_) => Vec::new(),
        }
    }

    /// Which of its hosts cannot be reached for a plan's disks; touches nothing.
    pub fn host_problems(&self, vms: &[PlannedVm], begun: &[Begun]) -> Vec<Problem> {
        match self {
            Provider::Vsphere(source) => source.host_problems(vms, begun),
            Provider::Appliance(_) => Vec::new(),
        }
    }

    /// What of a plan it cannot give.
    pub fn problems(&self, resolution: &Resolution) -> Vec<Problem> {
        match self {
            Provider::Vsphere(_) => Vec::new(),
            Provider::Appliance(appliance) => appliance.problems(resolution),
        }
    }

    /// What of a plan the user may not do, or that nobody can tell; touches nothing.
    pub fn rights(&self, resolution: &Resolution, inventory: &Inventory) -> Result<Vec<Problem>, Failure> {
        match self {
            Provider::Vsphere(source) => {
                Ok(rights::problems(&source.session, &source.way, resolution, inventory)?)
            }
            Provider::Appliance(_) => Ok(Vec::new()),
        }
    }

    /// By which protocol disks are read, where there is a choice.
    pub fn way(&self) -> Option<String> {
        match self {
            Provider::Vsphere(source) => Some(match &source.hot_add {
                None => source.way.to_string(),
                Some(hot_add) if hot_add.insists => hot_add.to_string(),
                Some(hot_add) => format!("{hot_add}; where none gives a disk: {}", source.way),
            }),
            Provider::Appliance(_) => None,
        }
    }

    /// Gives each VM its share of its host's NFC server, where disks are read from it, and tells the sums.
    pub fn share_out(
        &self,
        file: &PlanFile,
        resolution: &mut Resolution,
        inventory: &Inventory,
    ) -> Vec<HostNfc> {
        let (Provider::Vsphere(provider), Some(source)) = (self, file.plan.source.vsphere()) else {
            return Vec::new();
        };
        let disks_max = file.plan.limits.disks;
        match provider.way {
            Way::Https(_) => Vec::new(),
            Way::Nfc(_) => share_out_own(resolution, &inventory.about, &source.data.nfc, disks_max),
            Way::Vddk(_) => share_out(resolution, &inventory.about, &source.data.vddk, disks_max),
        }
    }

    pub fn source(&self) -> &dyn SourceProvider {
        match self {
            Provider::Vsphere(source) => source.as_ref(),
            Provider::Appliance(appliance) => appliance.as_ref(),
        }
    }

    /// Leaves it in order.
    pub fn close(self) -> Result<(), Failure> {
        match self {
            Provider::Vsphere(source) => Ok(source.session.logout()?),
            Provider::Appliance(_) => Ok(()),
        }
    }
}

/// What those of `vms` write that may run. Changes nothing there; why it is not known is in the session's warnings.
pub fn write_rates<'a>(session: &Session, vms: impl Iterator<Item = &'a Vm>) -> WriteRates {
    let ids: Vec<&str> = vms.filter(|vm| may_run(vm)).map(|vm| vm.id.as_str()).collect();
    session.write_rates(&ids)
}

/// What giving a plan up needs of its source, and who that source is.
pub fn to_give_up(file: &PlanFile, store: &Store) -> Result<(Box<dyn SourceProvider>, About), Failure> {
    match &file.plan.source {
        Source::Vsphere(source) => {
            let session = connect::connect_plan(source, &file.folder)?;
            let about = session.about().clone();
            let way = Way::Https("no disk is read".into());
            let hot_add = HotAdd::new(source, &file.plan.limits, None);
            if let Some(hot_add) = &hot_add {
                hot_add.find(&file.plan, &session.inventory()?);
            }
            let (folder, state) = (file.folder.clone(), store.folder().to_path_buf());
            Ok((Box::new(VsphereSource { session, folder, state, way, hot_add }), about))
        }
        Source::Ova(source) => {
            let rows = store.vms(&file.plan.name)?;
            let planned = |text: &str| serde_json::from_str::<PlannedVm>(text).ok();
            let vms = rows.iter().filter_map(|row| planned(&row.planned)).map(|planned| planned.vm).collect();
            Ok((Box::new(LeftAlone { vms }), appliance::about(Path::new(&source.path))))
        }
    }
}
