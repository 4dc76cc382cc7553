//! `drover forecast` and `drover simulate`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use drover_forecast::Question;
use drover_plan::nfc::HostNfc;
use drover_plan::{DataFrom, Plan, PlannedVm};
use drover_schedule::{Budgets, TenantLimits};
use drover_types::inventory::Host;
use serde_json::Value;

use super::plan;
use crate::cli::{ForecastArgs, FormArgs, SimulateArgs, WhatIfArgs};
use crate::exit::{Exit, Failure};
use crate::plan_file;
use crate::sites;
use crate::source::source_of;
use crate::state::state_folder;
use crate::what_if::{question, written};

/// What plans come to that run at the same time, and what was found of their sources.
pub struct Asked {
    pub question: Question,
    /// Hosts of all sources.
    pub hosts: Vec<Host>,
    /// Any of the plans reads disks by way of its provider.
    pub through_provider: bool,
    /// What plans take of the NFC servers of hosts.
    pub nfc: Vec<HostNfc>,
    /// Whom this host reads from and sends to: sources, hosts that are read from, agents of sites.
    pub peers: Vec<String>,
}

/// Reads plans and their sources; changes nothing.
pub fn ask(plans: &[PathBuf], what_if: &WhatIfArgs) -> Result<Asked, Failure> {
    let (mut hosts, mut through_provider) = (Vec::new(), false);
    let (mut nfc, mut peers) = (Vec::new(), Vec::new());
    let (mut vms, mut names) = (Vec::new(), Vec::new());
    let mut budgets: Option<Budgets> = None;
    let (mut waves, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut read = Vec::new();
    let mut own = BTreeMap::new();
    for (number, path) in plans.iter().enumerate() {
        let file = plan_file::read(path)?;
        let provider = source_of(&file, what_if.state.as_deref())?;
        let mut inventory = provider.inventory()?;
        provider.warnings().iter().for_each(|warning| crate::out::say(format_args!("warning: {warning}")));
        let mut resolution = plan::resolve_here(&file, &provider, &mut inventory);
        nfc.extend(provider.share_out(&file.plan, &mut resolution, &inventory));
        peers.extend(peers_of(&file.plan, &resolution.vms, what_if.state.as_deref()));
        crate::out::problems_of(&file.path, &resolution.problems, &resolution.vms);
        if resolution.vms.is_empty() {
            return Err(Failure::new(Exit::Plan, format!("plan {} moves no VM", file.plan.name)));
        }
        let written = written(&provider, &resolution.vms, what_if);
        vms.extend(drover_foresight::fleet(&resolution.vms, number, &inventory, &written));
        drover_foresight::limit_hosts(&mut limits, &resolution.vms, |vm| {
            drover_foresight::host_of(vm, &inventory)
        });
        let of_plan = drover_engine::budgets_of(&file.plan.limits);
        own.insert(number, TenantLimits { cutovers: Some(of_plan.cutovers), ..TenantLimits::default() });
        budgets = Some(budgets.map_or_else(|| of_plan.clone(), |budgets| both(budgets, &of_plan)));
        names.push(file.plan.name.clone());
        waves.insert(number, file.plan.waves());
        hosts.extend(inventory.hosts);
        through_provider |=
            file.plan.source.vsphere().is_some_and(|source| source.data.from == DataFrom::Provider);
        provider.close()?;
        read.push(file.plan);
    }
    let budgets = budgets.unwrap_or_default();
    let (read, state): (Vec<&Plan>, _) = (read.iter().collect(), state_folder(what_if.state.as_deref()));
    let lines = drover_foresight::lines_of(&read, &state);
    let mut question = question(vms, names, waves, budgets, lines, what_if)?;
    if plans.len() > 1 {
        question.limits = own;
    }
    // What a flag says of the line goes before what was measured.
    if what_if.link.is_none() {
        question.sites = drover_foresight::sites_of(&read, &state);
    }
    // Of other hosts than there are nothing is known.
    if what_if.hosts.is_none() {
        question.hosts = limits;
    }
    Ok(Asked { question, hosts, through_provider, nfc, peers })
}

/// Hosts that are looked up in all: their lines from here are nearly always the same.
const HOSTS_MAX: usize = 4;

/// Whom this host reads from and sends to.
fn peers_of(plan: &Plan, vms: &[PlannedVm], state: Option<&Path>) -> Vec<String> {
    let source = plan.source.vsphere();
    let endpoint = source.map(|source| source.endpoint.to_string());
    let hosts: BTreeSet<&str> = vms.iter().filter_map(|vm| vm.host_name.as_deref()).collect();
    let direct = source.is_some_and(|source| source.data.from == DataFrom::Hosts);
    let hosts = hosts.into_iter().take(HOSTS_MAX).filter(|_| direct).map(str::to_string);
    let site = plan.target.via.as_deref().map(|site| sites::addresses_of(state, site)).unwrap_or_default();
    endpoint.into_iter().chain(hosts).chain(site).collect()
}

/// Foresees what plans take that run at the same time; changes nothing.
pub fn run(args: &ForecastArgs) -> Result<Exit, Failure> {
    let forecast = drover_forecast::foresee(&ask(&args.plans, &args.what_if)?.question);
    let exit = give(
        &args.form,
        || drover_view::forecast_text(&forecast),
        || drover_view::forecast_json(&forecast),
        || drover_view::forecast_html(&forecast),
    )?;
    if let ([plan], true) = (args.plans.as_slice(), args.form.is_text()) {
        crate::out::say(format_args!("next: drover migrate {}", plan.display()));
    }
    Ok(exit)
}

/// Gives a document in the form that is asked for.
pub fn give(
    form: &FormArgs,
    text: impl FnOnce() -> String,
    json: impl FnOnce() -> Value,
    html: impl FnOnce() -> String,
) -> Result<Exit, Failure> {
    if let Some(path) = &form.html {
        crate::out::page(path, &html())?;
    } else if form.json {
        crate::out::json(format_args!("{:#}", json()));
    } else {
        crate::out::print(&text());
    }
    Ok(Exit::Success)
}

/// Budgets of plans that run at the same time: hosts have one, each plan its own disks and cutovers.
fn both(one: Budgets, two: &Budgets) -> Budgets {
    let disks = one.disks.saturating_add(two.disks);
    let cutovers = one.cutovers.saturating_add(two.cutovers);
    Budgets { vms_per_host: one.vms_per_host.max(two.vms_per_host), disks, cutovers, ..one }
}

/// Holds the model against published figures.
pub fn simulate(args: &SimulateArgs) -> Result<Exit, Failure> {
    let rows = drover_forecast::reference::rows();
    if args.json {
        crate::out::json(format_args!("{:#}", serde_json::json!({ "rows": rows })));
    } else {
        crate::out::print(&drover_view::reference_text(&rows));
    }
    Ok(Exit::Success)
}
