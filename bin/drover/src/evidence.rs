//! Who runs a plan, where and from where: what its report names later. And whose plan a file is.

use std::io::Read;
use std::path::Path;

use drover_engine::{PlanState, RunFacts, Store, StoreError};
use drover_plan::{Resolution, Source};
use drover_types::inventory::Inventory;

use crate::exit::{Exit, Failure};
use crate::plan_file::PlanFile;

/// What is known of a run that begins.
pub fn facts(file: &PlanFile, resolution: &Resolution, inventory: &Inventory) -> RunFacts {
    let about = &inventory.about;
    let source = match &file.plan.source {
        Source::Vsphere(source) => source.endpoint.to_string(),
        Source::Ova(source) => source.path.display().to_string(),
    };
    let host = |id: &String| inventory.host(id).map(|host| (id.clone(), host.name.clone()));
    RunFacts {
        drover: env!("CARGO_PKG_VERSION").into(),
        user: user(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        plan_file: file.path.clone(),
        plan_blake3: drover_copy::text_digest(&file.text).to_hex(),
        source,
        source_product: format!("{} {}", about.product, about.version).trim().to_string(),
        source_uuid: about.instance_uuid.clone(),
        foreseen: None,
        foreseen_now: None,
        quarantine: Vec::new(),
        source_hosts: resolution.vms.iter().filter_map(|vm| host(&vm.vm.host_id)).collect(),
    }
}

/// `ann (uid 1000)`; with `sudo`, who asked for it.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw();
    let name = name_of(uid, &passwd()).map_or(format!("uid {uid}"), |name| format!("{name} (uid {uid})"));
    match std::env::var("SUDO_USER") {
        Ok(by) if uid == 0 && !by.is_empty() => format!("{name}, by sudo of {by}"),
        _ => name,
    }
}

/// Users of this host, as far as a file tells: a name is a courtesy, the number is the evidence.
fn passwd() -> String {
    const BYTES_MAX: u64 = 4 << 20;
    let mut text = String::new();
    let opened = std::fs::File::open("/etc/passwd");
    match opened.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text)) {
        Ok(_) => text,
        Err(_) => String::new(),
    }
}

fn name_of(uid: u32, passwd: &str) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

/// Refuses a plan file whose name is that of another file's plan, unless that was given up or its file is gone.
pub fn check_not_anothers(store: &Store, file: &PlanFile) -> Result<Option<Failure>, StoreError> {
    let name = &file.plan.name;
    let Some(row) = store.plan(name)?.filter(|row| row.state != PlanState::Cancelled) else {
        return Ok(None);
    };
    let runs = store.runs(name)?;
    let Some(earlier) = runs.last().map(|run| run.facts.plan_file.as_path()) else { return Ok(None) };
    if !earlier.is_file() || is_same(earlier, &file.path) {
        return Ok(None);
    }
    let text =
        format!("plan '{}' is that of {}, and this file would take it over", row.name, earlier.display());
    Ok(Some(
        Failure::new(Exit::Plan, text).advise(format!(
            "give this one another `name`; or give the other up with `drover cancel {name}`, or forget it, if it is over, with \
             `drover clean {name} --forget`"
        )),
    ))
}

fn is_same(one: &Path, two: &Path) -> bool {
    match (std::fs::canonicalize(one), std::fs::canonicalize(two)) {
        (Ok(one), Ok(two)) => one == two,
        _ => one == two,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_of_its_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nodd line\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!((name_of(1000, passwd), name_of(0, passwd)), (Some("ann"), Some("root")));
        assert_eq!((name_of(7, passwd), name_of(0, "")), (None, None));
    }
}
