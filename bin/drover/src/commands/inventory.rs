//! `drover inventory`.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use drover_plan::{Concern, ConcernContext, ManifestUse, Namesakes, OvaSource, Wanted, concerns_among};
use drover_source::{Appliance, appliance, write_rates};
use drover_types::inventory::{Inventory, Vm, WriteRates};
use drover_types::shell_word;
use drover_view::clean;

use crate::cli::{InventoryArgs, ProviderArgs, SelectArgs};
use crate::connect;
use crate::exit::{Exit, Failure};
use crate::source::source_of;

/// Shows what a provider has.
pub fn run(args: &InventoryArgs) -> Result<Exit, Failure> {
    let Found { mut inventory, warnings, .. } = ask(&args.provider, Counters::LeaveAlone)?;
    warnings.iter().for_each(|warning| crate::out::say(format_args!("warning: {warning}")));
    let (mut concerns, all) = (all_concerns(&inventory), inventory.vms.len());
    let wanted = args.select.wanted();
    if !wanted.is_all() {
        check_wanted(&wanted, &args.provider.provider, &inventory)?;
        wanted.keep(&mut inventory);
        let kept: HashSet<&str> = inventory.vms.iter().map(|vm| vm.id.as_str()).collect();
        concerns.retain(|id, _| kept.contains(id.as_str()));
    }
    if args.csv {
        crate::out::csv(&drover_view::inventory_csv(&inventory, &concerns));
    } else if args.json {
        crate::out::json(format_args!("{:#}", drover_view::inventory_json(&inventory, &concerns)));
    } else {
        crate::out::print(&drover_view::inventory_text(&inventory, &concerns, args.details, all));
        say_what_is_next(&args.provider, &args.select);
    }
    Ok(Exit::Success)
}

/// Refuses what selects no VM, and tags that are not known.
///
/// # Errors
/// If there is any of it.
pub fn check_wanted(wanted: &Wanted, provider: &str, inventory: &Inventory) -> Result<(), Failure> {
    if let Some(why) = inventory.tags_unknown.as_ref().filter(|_| wanted.goes_by_tags()) {
        let text = format!("which VMs of {provider} have a tag is not known: {why}");
        return Err(Failure::new(Exit::Plan, text).advise("leave --tag out, and select by something else"));
    }
    let unmatched = wanted.unmatched(inventory);
    if unmatched.is_empty() {
        return Ok(());
    }
    let asked: Vec<&str> = unmatched.iter().map(|(asked, _)| asked.as_str()).collect();
    let near: Vec<&str> = unmatched.iter().flat_map(|(_, near)| near).copied().collect();
    let advice = match near.is_empty() {
        true => "see `drover inventory` for all, and `--json` for hosts and clusters".to_string(),
        false => format!("near names: {}; see `drover inventory` for all", clean(&near.join(", "))),
    };
    let text = format!("no VM of {provider} has {}", clean(&asked.join(", nor ")));
    Err(Failure::new(Exit::Plan, text).advise(advice))
}

/// The command that comes after a look at these VMs of a provider, to people.
pub fn say_what_is_next(args: &ProviderArgs, select: &SelectArgs) {
    crate::out::say(format_args!("next: {}", next_command(args, select)));
}

fn next_command(args: &ProviderArgs, select: &SelectArgs) -> String {
    let secret = &args.secret;
    let path = Path::new(&args.provider);
    let provider = shell_word(&clean(&args.provider));
    // As this command was believed, so is the next.
    let trust = match (&secret.thumbprint, &secret.ca_file) {
        (Some(thumbprint), _) => format!(" --thumbprint={}", shell_word(&clean(thumbprint))),
        (_, Some(file)) => format!(" --ca-file={}", shell_word(&clean(&file.to_string_lossy()))),
        _ if secret.insecure => " --insecure".into(),
        _ => String::new(),
    };
    let is_plan = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    match (is_plan, appliance::path_of(&args.provider)) {
        (true, _) => format!("drover plan check {provider}"),
        (_, Some(_)) => format!("drover import {provider}"),
        _ => format!("drover plan new {provider}{trust}{} -o plan.yaml", select.options()),
    }
}

/// What a provider told.
pub struct Found {
    pub inventory: Inventory,
    /// What VMs that may run write, if its counters were read.
    pub written: WriteRates,
    /// What to know about all that.
    pub warnings: Vec<String>,
}

/// Whether performance counters are read, too: one request more for 50 VMs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counters {
    Read,
    LeaveAlone,
}

/// What an endpoint, the source of a plan file or an appliance has.
pub fn ask(provider: &ProviderArgs, counters: Counters) -> Result<Found, Failure> {
    let reads = counters == Counters::Read;
    if let Some(path) = appliance::path_of(&provider.provider) {
        let source = OvaSource { path, manifest: ManifestUse::Ignore };
        let appliance = Appliance::open(&source, Path::new(""), "")?;
        let (inventory, warnings) = (appliance.inventory(), appliance.warnings().to_vec());
        return Ok(Found { inventory, written: WriteRates::new(), warnings });
    }
    let path = Path::new(&provider.provider);
    let is_plan = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    if is_plan {
        let provider = source_of(&crate::plan_file::read(path)?, None)?;
        let inventory = provider.inventory()?;
        let written = provider.write_rates(inventory.vms.iter().filter(|_| reads));
        return Ok(Found { inventory, written, warnings: provider.warnings() });
    }
    let session = connect::connect_args(provider)?;
    let inventory = session.inventory()?;
    let written = write_rates(&session, inventory.vms.iter().filter(|_| reads));
    Ok(Found { inventory, written, warnings: session.warnings() })
}

/// What there is to know about each VM, by its id.
pub fn all_concerns(inventory: &Inventory) -> BTreeMap<String, Vec<Concern>> {
    let (names, context) = (Namesakes::of(inventory), ConcernContext::default());
    let of_vm = |vm: &Vm| (vm.id.clone(), concerns_among(vm, inventory, &names, &context));
    inventory.vms.iter().map(of_vm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::SecretArgs;

    #[test]
    fn what_is_next_can_be_given_to_a_shell_as_it_is() {
        let next = |provider: &str, ca_file: Option<&str>| {
            let ca_file = ca_file.map(Into::into);
            let secret = SecretArgs { password_file: None, ca_file, thumbprint: None, insecure: false };
            let args = ProviderArgs { provider: provider.into(), user: None, secret };
            next_command(&args, &SelectArgs { vms: vec!["web*".into()], ..SelectArgs::default() })
        };
        assert_eq!(
            next("vc.lab:8989", Some("my site/it's.pem")),
            r"drover plan new vc.lab:8989 --ca-file='my site/it'\''s.pem' --vm='web*' -o plan.yaml"
        );
        assert_eq!(next("vc.lab", None), "drover plan new vc.lab --vm='web*' -o plan.yaml");
        assert_eq!(next("my plans/a.yaml", None), "drover plan check 'my plans/a.yaml'");
    }
}
