//! Restricts this program to some of the processors.

use std::fs;
use std::num::NonZero;
use std::thread::available_parallelism;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::Outcome;

pub(crate) fn count() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Runs `work` while all threads of this process share `count` processors. Libraries that ask how many there are
/// then start no more threads than that.
pub(crate) fn on<T>(count: usize, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    restrict(count)?;
    // stridemap asks only once.
    stridemap::set_num_threads(count);
    let done = work();
    stridemap::set_num_threads(0);
    restrict(CpuSet::MAX_CPU)?;
    done
}

fn restrict(count: usize) -> Outcome {
    let mut set = CpuSet::new();
    (0..count.min(CpuSet::MAX_CPU)).for_each(|processor| set.set(processor));
    for thread in fs::read_dir("/proc/self/task")? {
        let id: i32 = thread?.file_name().to_string_lossy().parse()?;
        match sched_setaffinity(Pid::from_raw(id), &set) {
            Err(Errno::SRCH) => {} // the thread has ended
            done => done?,
        }
    }
    Ok(())
}

/// Returns 1, 2 and all, without duplicates.
pub(crate) fn counts() -> Vec<usize> {
    let mut counts = vec![1, 2.min(count()), count()];
    counts.dedup();
    counts
}
