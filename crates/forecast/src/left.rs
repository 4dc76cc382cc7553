//! What is left of a run, so that its forecast can be corrected by what it shows.

use crate::foresee::Question;

/// How far a VM of a run is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// It did not begin.
    #[default]
    Waits,
    /// It is looked at or copied: bytes of each of its disks that need no more work.
    Copies(Vec<u64>),
    /// Its copy is read back.
    Verifies,
    /// What is left is done at the target.
    Copied,
    /// It has ended.
    Ended,
}

/// The question of a run, changed to what is left of it at a moment; `progress` has its VMs in the order of the question, and those
/// that it lacks did not begin.
///
/// A warm VM that was copied once makes the passes before its cutover anew, with nothing to copy but what changes: how many it made
/// is not known here.
pub fn left_of(question: &Question, progress: &[Progress], now_ms: u64) -> Question {
    let mut left = Question { start_ms: now_ms, vms: Vec::new(), ..question.clone() };
    let waits = Progress::Waits;
    let places = progress.iter().chain(std::iter::repeat(&waits));
    for (vm, progress) in question.vms.iter().zip(places) {
        let mut vm = vm.clone();
        let done = match progress {
            Progress::Waits => {
                left.vms.push(vm);
                continue;
            }
            Progress::Ended => continue,
            Progress::Copies(done) => done.as_slice(),
            // Where it is in the middle of it is not known.
            Progress::Verifies => {
                vm.verified_bytes /= 2;
                &[]
            }
            Progress::Copied => {
                vm.verified_bytes = 0;
                &[]
            }
        };
        let is_copied = !matches!(progress, Progress::Copies(_));
        for (at, disk) in vm.disks.iter_mut().enumerate() {
            let done = if is_copied { disk.data_bytes } else { done.get(at).copied().unwrap_or(0) };
            disk.data_bytes = disk.data_bytes.saturating_sub(done);
        }
        // A cold one was shut down, and goes on whatever its window is.
        if vm.warm.is_none() {
            (vm.runs, vm.goes_on) = (false, true);
        }
        left.vms.push(vm);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foresee::foresee_roughly;
    use crate::foresee::tests::question;

    #[test]
    fn what_was_copied_is_left_out_and_what_has_ended_is_not_there() {
        let asked = question(5, 1, 20);
        let gib = |gib: u64| gib << 30;
        let progress = [
            Progress::Copies(vec![gib(5)]),
            Progress::Ended,
            Progress::Verifies,
            Progress::Copies(vec![gib(50)]),
        ];
        let left = left_of(&asked, &progress, asked.start_ms + 60_000);
        let of: Vec<(&str, u64)> = left.vms.iter().map(|vm| (vm.name.as_str(), vm.data_bytes())).collect();
        assert_eq!(of, [("vm000", gib(15)), ("vm002", 0), ("vm003", 0), ("vm004", gib(20))]);
        assert_eq!(left.start_ms, asked.start_ms + 60_000);
        let begun: Vec<bool> = left.vms.iter().map(|vm| vm.goes_on && !vm.runs).collect();
        assert_eq!(begun, [true, true, true, false]);
    }

    #[test]
    fn the_forecast_of_what_is_left_gets_shorter_to_its_end() {
        let asked = question(20, 1, 20);
        let ends: Vec<f64> = (0..=20)
            .step_by(5)
            .map(|ended| {
                let progress = vec![Progress::Ended; ended];
                foresee_roughly(&left_of(&asked, &progress, asked.start_ms)).makespan_s.p50
            })
            .collect();
        assert!(ends.is_sorted_by(|one, two| one > two), "{ends:?}");
        assert_eq!(ends.last(), Some(&0.0));
    }
}
