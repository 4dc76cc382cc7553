//! Whether the folders of this machine have room for the images of a plan.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use drover_plan::{
    ImageFormat, Plan, PlannedDisk, PlannedVm, Problem, Resolution, Target, TargetKind, space_needed,
};
use drover_types::Bytes;

use crate::lacks::too_large;
use crate::setting::nearest_existing;

/// What stands in the way of a plan in the folders that it writes to, if they are this machine's.
pub fn room_problems(plan: &Plan, resolution: &Resolution) -> Vec<Problem> {
    let Target { kind, via, .. } = &plan.target;
    if via.is_some() || !matches!(kind, TargetKind::Qemu) {
        return Vec::new();
    }
    let mut problems = space_problems(plan, resolution);
    problems.extend(size_problems(resolution));
    problems
}

/// Folders that cannot be written or are too small. Disks that are on their way count as if they were
/// not, which asks for more than is needed but never for less.
fn space_problems(plan: &Plan, resolution: &Resolution) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (folder, space) in space_needed(resolution) {
        let place = nearest_existing(&folder);
        if let Err(error) = drover_disk::is_writable_dir(&place) {
            let text = format!("{} cannot be written: {}", folder.display(), error.source);
            problems.push(
                Problem::error("target.folder", text).advise("choose a folder that this user may write to"),
            );
            continue;
        }
        let free = match drover_disk::free_bytes(&place) {
            Ok(free) => free,
            Err(error) => {
                let text = format!("free space of {} is not known: {}", folder.display(), error.source);
                problems.push(Problem::error("target.folder", text));
                continue;
            }
        };
        let there = already_written(resolution, &folder);
        let (needed, thick) =
            (space.capacity_bytes.saturating_sub(there), space.thick_bytes.saturating_sub(there));
        let text = |bytes| {
            format!("{} has {} free, and the disks may take {}", folder.display(), Bytes(free), Bytes(bytes))
        };
        let of = |problem: Problem| {
            let goes_there = |vm: &&PlannedVm| vm.disks.iter().any(|disk| disk.base == folder);
            problem.of_vms(resolution.vms.iter().filter(goes_there).map(|vm| vm.vm.id.as_str()))
        };
        if thick > free {
            let problem = Problem::error("target.folder", text(thick));
            problems.push(of(problem.advise("make room or choose another folder")));
        } else if needed > free && !plan.target.overcommit {
            problems.push(of(Problem::error("target.folder", text(needed)).advise(
                "make room; or, as thin disks take only what they hold, allow it with `target.overcommit: true`",
            )));
        }
    }
    problems
}

/// Images that are larger than a file of their folder's file system can be.
fn size_problems(resolution: &Resolution) -> Vec<Problem> {
    let problem = |folder: &Path| {
        let of_folder = |disk: &&PlannedDisk| disk.base == folder;
        let images = resolution.vms.iter().filter(|vm| vm.format == ImageFormat::Raw);
        let images = images.flat_map(|vm| vm.disks.iter().filter(of_folder).map(move |disk| (vm, disk)));
        let (vm, disk) = images.max_by_key(|(_, disk)| disk.disk.capacity_bytes)?;
        too_large(&nearest_existing(folder), vm, disk)
    };
    space_needed(resolution).keys().filter_map(|folder| problem(folder)).collect()
}

/// Bytes that images of this plan take below a folder already, from an earlier try.
fn already_written(resolution: &Resolution, folder: &Path) -> u64 {
    let disks = resolution.vms.iter().flat_map(|vm| &vm.disks).filter(|disk| disk.base == folder);
    disks.filter_map(|disk| std::fs::metadata(&disk.path).ok()).map(|meta| meta.blocks() * 512).sum()
}
