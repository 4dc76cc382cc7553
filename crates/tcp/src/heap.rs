use crate::sys;

/// More than this many threads that allocate at once wait for each other; drover's buffers are made once for each disk.
const HEAPS_MAX: usize = 8;

/// Has the C library keep few heaps. It makes eight for each processor, and what a thread gave back stays in its own: with
/// hundreds of disks at once they held a quarter of the memory that drover had. For the start of the program.
pub fn keep_few_heaps() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    sys::set_heaps_max(processors.clamp(2, HEAPS_MAX) as libc::c_int);
}
