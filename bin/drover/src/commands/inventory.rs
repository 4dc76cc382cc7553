//! `drover inventory`.

use std::collections::BTreeMap;
use std::path::Path;

use drover_plan::{Concern, ConcernContext, concerns};
use drover_types::inventory::Inventory;
use drover_vsphere::Session;

use crate::cli::{InventoryArgs, ProviderArgs};
use crate::connect;
use crate::exit::{Exit, Failure};

/// Shows what a provider has.
pub fn run(args: &InventoryArgs) -> Result<Exit, Failure> {
    let session = session(&args.provider)?;
    let inventory = session.inventory()?;
    session.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    let concerns = all_concerns(&inventory);
    if args.json {
        crate::out::line(format!("{:#}", drover_view::inventory_json(&inventory, &concerns)));
    } else {
        crate::out::print(&drover_view::inventory_text(&inventory, &concerns, args.details));
    }
    Ok(Exit::Success)
}

/// A session with an endpoint, or with the source of a plan file.
pub fn session(provider: &ProviderArgs) -> Result<Session, Failure> {
    let path = Path::new(&provider.provider);
    let is_plan = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    if !is_plan {
        return connect::connect_args(provider);
    }
    let file = super::plan::read(path)?;
    connect::connect_plan(&file.plan.source, &file.folder)
}

fn all_concerns(inventory: &Inventory) -> BTreeMap<String, Vec<Concern>> {
    let context = ConcernContext::default();
    inventory.vms.iter().map(|vm| (vm.id.clone(), concerns(vm, inventory, &context))).collect()
}
