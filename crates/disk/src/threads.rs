//! Threads where as many as one would like may not be had.

use std::thread::Builder;

/// Runs `work` in up to `count` threads, each with its number, and returns when all have ended. A panic of one is passed on.
///
/// Where a limit lets no more threads start, those that there are do the work, and where there are none the caller's does:
/// who shares work out, as by a queue, loses time, no more.
pub fn in_threads(count: usize, work: impl Fn(usize) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for number in 0..count {
            if Builder::new().spawn_scoped(scope, move || work(number)).is_err() {
                if number == 0 {
                    work(0);
                }
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_thread_has_its_number() {
        let seen = Mutex::new(Vec::new());
        in_threads(3, |number| seen.lock().unwrap().push(number));
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
    }
}
