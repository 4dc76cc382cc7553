//! The source of a plan, of whatever kind it is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drover_agent::limits::DayLimits;
use drover_engine::{Cause, ProviderError, SourceProvider, Store, StoreError, chain};
use drover_forecast::may_run;
use drover_mover::StopSignal;
use drover_plan::nfc::{HostNfc, share_out, share_out_own};
use drover_plan::{Begun, Plan, PlannedVm, Problem, Resolution, Source};
use drover_types::inventory::{About, Inventory, Vm, WriteRates};
use drover_vsphere::Session;

use crate::appliance::{self, Appliance, LeftAlone};
use crate::hot_add::{HotAdd, check_proxies};
use crate::inventories::Read;
use crate::login::connect_plan;
use crate::reads::{Reads, SharedReads};
use crate::rights;
use crate::setting::{Setting, SourceError};
use crate::vddk::{self, Way, unused_memory};
use crate::vsphere::{VsphereSource, provider_error};

/// The source of a plan, which can be asked.
pub enum PlanSource {
    /// vSphere.
    Vsphere(Box<VsphereSource>),
    /// An appliance.
    Appliance(Box<Appliance>),
}

impl PlanSource {
    /// Opens the source of a plan.
    ///
    /// # Errors
    /// If what the plan names cannot be read, or the source cannot be reached.
    pub fn open(setting: &Setting<'_>) -> Result<PlanSource, SourceError> {
        match &setting.plan.source {
            Source::Vsphere(source) => {
                // Before the login: a library that is missing touches nothing.
                let way = vddk::choose(source, setting)?;
                let session = connect_plan(source, setting)?;
                let hot_add = HotAdd::new(source, &setting.plan.limits, &setting.host);
                let (folder, state) = (setting.folder.to_path_buf(), setting.host.state.clone());
                let source = VsphereSource { session, folder, state, way, hot_add, reads: None };
                Ok(PlanSource::Vsphere(Box::new(source)))
            }
            Source::Ova(source) => {
                let appliance = Appliance::open(source, setting.folder, &setting.plan.name)?;
                Ok(PlanSource::Appliance(Box::new(appliance)))
            }
        }
    }

    /// A stop breaks off what is being asked of it, and not what undoes something afterwards.
    pub fn stop_when(&self, stop: &StopSignal) {
        if let PlanSource::Vsphere(source) = self {
            let stop = stop.clone();
            source.hot_add.iter().for_each(|hot_add| hot_add.stop_when(&stop));
            source.session.stop_when(Arc::new(move || stop.is_set()));
        }
    }

    /// From now on a source that does not answer for the moment is waited for, so long at most.
    pub fn outlast(&self, patience: Duration) {
        if let PlanSource::Vsphere(source) = self {
            source.session.outlast(patience);
        }
    }

    /// From now on a run reads its disks as its plan's `rate_limit`, which may change, lets it, and within what other plans share, until it is
    /// stopped. An appliance is read where it lies, over no network.
    pub fn hold_back(
        &mut self,
        plan: &Plan,
        rate_limit: &DayLimits,
        shared: Option<&SharedReads>,
        stop: &StopSignal,
        say: fn(&str),
    ) {
        if let PlanSource::Vsphere(source) = self {
            source.reads = Some(Reads::new(&plan.target, rate_limit, shared, stop, say));
        }
    }

    /// What it has.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn inventory(&self) -> Result<Inventory, ProviderError> {
        let read = self.shared_inventory()?;
        Ok(Arc::try_unwrap(read).map_or_else(|read| read.inventory.clone(), |read| read.inventory))
    }

    /// The same, as other plans of this process may have it, too.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn shared_inventory(&self) -> Result<Arc<Read>, ProviderError> {
        match self {
            PlanSource::Vsphere(source) => source.inventory().map_err(provider_error),
            PlanSource::Appliance(appliance) => {
                Ok(Arc::new(Read { inventory: appliance.inventory(), warnings: Vec::new() }))
            }
        }
    }

    /// What those of `vms` write that may run, by performance counters, as far as it is known.
    pub fn write_rates<'a>(&self, vms: impl Iterator<Item = &'a Vm>) -> WriteRates {
        match self {
            PlanSource::Vsphere(source) => write_rates(&source.session, vms),
            PlanSource::Appliance(_) => WriteRates::new(),
        }
    }

    /// What the user should know, once the inventory was asked for.
    pub fn warnings(&self) -> Vec<String> {
        match self {
            PlanSource::Vsphere(source) => source.session.warnings(),
            PlanSource::Appliance(appliance) => appliance.warnings().to_vec(),
        }
    }

    /// Finds the plan's proxies in an inventory that has all VMs.
    pub fn find_proxies(&self, plan: &Plan, inventory: &Inventory) {
        if let PlanSource::Vsphere(source) = self
            && let Some(hot_add) = &source.hot_add
        {
            hot_add.find(plan, inventory);
        }
    }

    /// What is wrong with the plan's proxies, as far as they and vSphere can be asked; touches nothing. With `path: auto` a
    /// plan goes without them, so it is an error only if `strict`.
    pub fn proxy_problems(&self, resolution: &Resolution, strict: bool) -> Vec<Problem> {
        match self {
            PlanSource::Vsphere(source) => match &source.hot_add {
                Some(hot_add) => check_proxies(&source.session, hot_add, resolution, strict),
                None => Vec::new(),
            },
            PlanSource::Appliance(_) => Vec::new(),
        }
    }

    /// Which of its hosts cannot be reached for a plan's disks; touches nothing.
    pub fn host_problems(&self, vms: &[PlannedVm], begun: &[Begun]) -> Vec<Problem> {
        match self {
            PlanSource::Vsphere(source) => source.host_problems(vms, begun),
            PlanSource::Appliance(_) => Vec::new(),
        }
    }

    /// What of a plan it cannot give.
    pub fn problems(&self, plan: &Plan, resolution: &Resolution, inventory: &Inventory) -> Vec<Problem> {
        match self {
            PlanSource::Vsphere(_) => {
                let source = plan.source.vsphere();
                source.and_then(|source| unused_memory(source, &inventory.about)).into_iter().collect()
            }
            PlanSource::Appliance(appliance) => appliance.problems(resolution),
        }
    }

    /// What of a plan the user may not do, or that nobody can tell; touches nothing.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn rights(
        &self,
        resolution: &Resolution,
        inventory: &Inventory,
    ) -> Result<Vec<Problem>, ProviderError> {
        match self {
            PlanSource::Vsphere(source) => {
                rights::problems(&source.session, &source.way, resolution, inventory).map_err(provider_error)
            }
            PlanSource::Appliance(_) => Ok(Vec::new()),
        }
    }

    /// By which protocol disks are read, where there is a choice.
    pub fn way(&self) -> Option<String> {
        match self {
            PlanSource::Vsphere(source) => Some(match &source.hot_add {
                None => source.way.to_string(),
                Some(hot_add) if hot_add.insists => hot_add.to_string(),
                Some(hot_add) => format!("{hot_add}; where none gives a disk: {}", source.way),
            }),
            PlanSource::Appliance(_) => None,
        }
    }

    /// Gives each VM its share of its host's NFC server, where disks are read from it, and tells the sums.
    pub fn share_out(&self, plan: &Plan, resolution: &mut Resolution, inventory: &Inventory) -> Vec<HostNfc> {
        let (PlanSource::Vsphere(provider), Some(source)) = (self, plan.source.vsphere()) else {
            return Vec::new();
        };
        let limits = &plan.limits;
        match provider.way {
            Way::Https(_) => Vec::new(),
            Way::Nfc(_) => share_out_own(resolution, &inventory.about, &source.data.nfc, limits),
            Way::Vddk(_) => share_out(resolution, &inventory.about, &source.data.vddk, limits),
        }
    }

    /// The same for the engine.
    pub fn source(&self) -> &dyn SourceProvider {
        match self {
            PlanSource::Vsphere(source) => source.as_ref(),
            PlanSource::Appliance(appliance) => appliance.as_ref(),
        }
    }

    /// Leaves it in order.
    ///
    /// # Errors
    /// If its session cannot be ended; it ends by itself then.
    pub fn close(self) -> Result<(), ProviderError> {
        match self {
            PlanSource::Vsphere(source) => source.session.logout().map_err(provider_error),
            PlanSource::Appliance(_) => Ok(()),
        }
    }
}

/// What those of `vms` write that may run. Changes nothing there; why it is not known is in the session's warnings.
pub fn write_rates<'a>(session: &Session, vms: impl Iterator<Item = &'a Vm>) -> WriteRates {
    let ids: Vec<&str> = vms.filter(|vm| may_run(vm)).map(|vm| vm.id.as_str()).collect();
    session.write_rates(&ids)
}

/// What giving a plan up needs of its source, and who that source is. `setting` has the folder of the store.
///
/// # Errors
/// As [`PlanSource::open`], and if the store cannot be read.
pub fn to_give_up(
    setting: &Setting<'_>,
    store: &Store,
) -> Result<(Box<dyn SourceProvider>, About), SourceError> {
    let plan = setting.plan;
    match &plan.source {
        Source::Vsphere(source) => {
            let session = connect_plan(source, setting)?;
            let about = session.about().clone();
            let way = Way::Https("no disk is read".into());
            let hot_add = HotAdd::new(source, &plan.limits, &setting.host);
            if let Some(hot_add) = &hot_add {
                hot_add.find(plan, &session.inventory().map_err(provider_error)?);
            }
            let (folder, state) = (setting.folder.to_path_buf(), setting.host.state.clone());
            Ok((Box::new(VsphereSource { session, folder, state, way, hot_add, reads: None }), about))
        }
        Source::Ova(source) => {
            let unread =
                |error: StoreError| ProviderError::new(Cause::State, chain(&error)).advise(error.advice());
            let rows = store.vms(&plan.name).map_err(unread)?;
            let planned = |text: &str| serde_json::from_str::<PlannedVm>(text).ok();
            let vms = rows.iter().filter_map(|row| planned(&row.planned)).map(|planned| planned.vm).collect();
            Ok((Box::new(LeftAlone { vms }), appliance::about(Path::new(&source.path))))
        }
    }
}
