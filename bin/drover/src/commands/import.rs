//! `drover import`: a plan for an appliance, and its run.

use std::path::Path;

use drover_engine::PlanState;
use drover_plan::{DraftOptions, DraftSource, ManifestUse, Others, OvaSource, Wanted};
use drover_source::Appliance;

use super::{migrate, plan};
use crate::cli::ImportArgs;
use crate::exit::{Exit, Failure};
use crate::plan_file;

/// A plan's name may be as long.
const NAME_CHARS_MAX: usize = 64;

/// Drafts a plan for an appliance, shows it, and runs it.
pub fn run(args: &ImportArgs) -> Result<Exit, Failure> {
    let manifest = if args.ignore_manifest { ManifestUse::Ignore } else { ManifestUse::Check };
    let source = OvaSource { path: plan::absolute(&args.appliance)?, manifest };
    let appliance = Appliance::open(&source, Path::new("/"), "")?;
    let inventory = appliance.inventory();
    let vm = inventory.vms.first().map_or("", |vm| vm.name.as_str());
    let name = args.name.clone().unwrap_or_else(|| plan_name(vm));
    let folder = plan::absolute(&args.folder)?;
    let options = DraftOptions {
        name: name.clone(),
        source: DraftSource::Ova(source),
        folder: folder.clone(),
        start: args.start,
    };
    let text = drover_plan::draft(&inventory, &Wanted::default(), &options).unwrap_or_default();
    if args.plan_only {
        crate::out::print(&text);
        return Ok(Exit::Success);
    }
    if let Some(other) = taken(&name, &text, args)? {
        return Err(other);
    }
    if let Some(path) = &args.output {
        plan::write_new(path, &text)?;
    }
    if !args.run.quiet && !args.run.json {
        crate::out::say(&text);
        crate::out::say(format_args!(
            "this is plan {name}; it goes on with `drover resume {name}` if it is interrupted"
        ));
    }
    let file = plan_file::parse(text, folder.join(format!("{name}.yaml")), folder)?;
    migrate::run(file, Others::Selected, args.start, &args.run)
}

/// Another plan of this name would be overwritten in drover's state; the same one goes on.
fn taken(name: &str, text: &str, args: &ImportArgs) -> Result<Option<Failure>, Failure> {
    let row = migrate::open_store(&args.run)?.plan(name)?;
    let is_other = |row: &drover_engine::PlanRow| row.text != text && row.state != PlanState::Cancelled;
    Ok(row.filter(is_other).map(|_| {
        Failure::new(Exit::Plan, format!("there is another plan '{name}' in drover's state"))
            .advise("give this one another name with --name")
    }))
}

/// `import-web-01` for `Web 01`.
fn plan_name(vm: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = format!("import-{vm}").chars().map(fits).take(NAME_CHARS_MAX).collect();
    name.trim_end_matches('-').to_string()
}
