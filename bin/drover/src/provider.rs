//! The source of a plan, of whatever kind it is.

use std::path::Path;

use drover_engine::{SourceProvider, Store};
use drover_plan::{PlannedVm, Problem, Resolution, Source};
use drover_types::inventory::{About, Inventory};

use crate::appliance::{self, Appliance, LeftAlone};
use crate::commands::plan::PlanFile;
use crate::connect;
use crate::exit::Failure;
use crate::source::VsphereSource;

/// A source that can be asked.
pub enum Provider {
    Vsphere(Box<VsphereSource>),
    Appliance(Box<Appliance>),
}

impl Provider {
    /// Opens the source of a plan.
    pub fn open(file: &PlanFile) -> Result<Provider, Failure> {
        match &file.plan.source {
            Source::Vsphere(source) => {
                let session = connect::connect_plan(source, &file.folder)?;
                Ok(Provider::Vsphere(Box::new(VsphereSource { session, folder: file.folder.clone() })))
            }
            Source::Ova(source) => {
                let appliance = Appliance::open(source, &file.folder, &file.plan.name)?;
                Ok(Provider::Appliance(Box::new(appliance)))
            }
        }
    }

    /// What it has.
    pub fn inventory(&self) -> Result<Inventory, Failure> {
        match self {
            Provider::Vsphere(source) => Ok(source.session.inventory()?),
            Provider::Appliance(appliance) => Ok(appliance.inventory()),
        }
    }

    /// What the user should know, once the inventory was asked for.
    pub fn warnings(&self) -> Vec<String> {
        match self {
            Provider::Vsphere(source) => source.session.warnings(),
            Provider::Appliance(appliance) => appliance.warnings().to_vec(),
        }
    }

    /// What of a plan it cannot give.
    pub fn problems(&self, resolution: &Resolution) -> Vec<Problem> {
        match self {
            Provider::Vsphere(_) => Vec::new(),
            Provider::Appliance(appliance) => appliance.problems(resolution),
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

/// What giving a plan up needs of its source, and who that source is.
pub fn to_give_up(file: &PlanFile, store: &Store) -> Result<(Box<dyn SourceProvider>, About), Failure> {
    match &file.plan.source {
        Source::Vsphere(source) => {
            let session = connect::connect_plan(source, &file.folder)?;
            let about = session.about().clone();
            Ok((Box::new(VsphereSource { session, folder: file.folder.clone() }), about))
        }
        Source::Ova(source) => {
            let rows = store.vms(&file.plan.name)?;
            let planned = |text: &str| serde_json::from_str::<PlannedVm>(text).ok();
            let vms = rows.iter().filter_map(|row| planned(&row.planned)).map(|planned| planned.vm).collect();
            Ok((Box::new(LeftAlone { vms }), appliance::about(Path::new(&source.path))))
        }
    }
}
