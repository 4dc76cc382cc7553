//! Reading a plan file, for all who need one.

use std::path::{Path, PathBuf};

use drover_plan::{FirstBoot, Plan, Problem};
use drover_types::count;

use crate::exit::{Exit, Failure};
use crate::files::read_text;

/// A plan file may not be larger.
const PLAN_BYTES_MAX: u64 = 16 << 20;

/// A plan file that was read.
pub struct PlanFile {
    pub plan: Plan,
    pub text: String,
    pub path: PathBuf,
    /// Folder that paths in the plan are relative to.
    pub folder: PathBuf,
}

/// Reads a plan file; prints its problems if it has any.
pub fn read(path: &Path) -> Result<PlanFile, Failure> {
    let failed = |why: String| Failure::new(Exit::Plan, format!("plan {}: {why}", path.display()));
    let text = read_text(path, PLAN_BYTES_MAX).map_err(|error| failed(error.to_string()))?;
    let absolute = std::path::absolute(path).map_err(|error| failed(error.to_string()))?;
    let folder = absolute.parent().unwrap_or(Path::new("/")).to_path_buf();
    parse(text, absolute, folder)
}

/// The text of a plan file; nothing if it cannot be read.
pub fn text_of(path: &Path) -> Option<String> {
    read_text(path, PLAN_BYTES_MAX).ok()
}

/// Reads a plan file without a word; nothing if that cannot be done.
pub fn read_quietly(path: &Path) -> Option<PlanFile> {
    let text = text_of(path)?;
    parse_quietly(text, path.to_path_buf(), PathBuf::from(".")).ok()
}

/// Reads a plan's text.
pub fn parse(text: String, path: PathBuf, folder: PathBuf) -> Result<PlanFile, Failure> {
    parse_quietly(text, path.clone(), folder).map_err(|problems| {
        crate::out::problems(&path, &problems);
        has_problems(problems.len())
    })
}

/// A plan with problems in its text.
pub fn has_problems(problems: usize) -> Failure {
    Failure::new(Exit::Plan, format!("the plan has {}; nothing was touched", count(problems, "problem")))
}

/// As [`parse`], for those who say themselves what is wrong.
pub fn parse_quietly(text: String, path: PathBuf, folder: PathBuf) -> Result<PlanFile, Vec<Problem>> {
    let mut plan = Plan::parse(&text)?;
    // A site's folders are known to its agent alone.
    let below = if plan.target.via.is_some() { Path::new("/") } else { &folder };
    if plan.target.libvirt().is_none() && plan.target.kubevirt().is_none() {
        plan.target.folder = below.join(&plan.target.folder);
    }
    let of_vms = plan.vms.iter_mut().map(|it| &mut it.overrides.first_boot);
    for file in of_vms.chain([&mut plan.first_boot]).flat_map(FirstBoot::files_mut) {
        *file = folder.join(&file);
    }
    Ok(PlanFile { plan, text, path, folder })
}
