//! Work on several threads. The library and the command line start all their threads here, except for the one that
//! waits in the kernel's queue for a lock (`storage::lock_queue`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, Scope, ScopedJoinHandle};

use crate::available_memory::has_memory;

/// The limit set by the user. 0 if there is none.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

const MAX_THREADS: usize = 1024;

thread_local! {
    /// Whether this is a worker. Its work is not divided again.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };

    /// See [`set_cancel_flag`].
    static CANCEL_FLAG: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Sets the flag that says whether the work of this thread is cancelled. The threads that it starts here get the same
/// flag, so a function that any of them calls can find out whose work it is part of.
pub fn set_cancel_flag(flag: Option<Arc<AtomicBool>>) {
    CANCEL_FLAG.set(flag);
}

/// Returns the flag of this thread, if it has one. See [`set_cancel_flag`].
#[must_use]
pub fn cancel_flag() -> Option<Arc<AtomicBool>> {
    CANCEL_FLAG.with_borrow(Option::clone)
}

/// Limits the number of threads that one operation of this process uses, such as a large copy, a save or `verify`. With
/// 1, the calling thread does all the work. With 0, the default, an operation uses as many threads as there are
/// processors, or fewer if it is small. The maximum is 1,024.
///
/// The limit applies to operations that begin later, on any thread. An operation's threads end before it returns.
///
/// ```
/// stridemap::set_num_threads(1);
/// stridemap::set_num_threads(0);
/// ```
pub fn set_num_threads(count: usize) {
    LIMIT.store(count.min(MAX_THREADS), Ordering::Relaxed);
}

/// Returns the largest number of threads that one operation uses: the limit of [`set_num_threads`], or the number of
/// processors.
fn num_threads() -> usize {
    // Cached, because the system reads files to count processors. 0 before the first call. Not a `OnceLock`: if another
    // thread initialized it during a fork, it would block the child forever.
    static PROCESSORS: AtomicUsize = AtomicUsize::new(0);
    match (LIMIT.load(Ordering::Relaxed), PROCESSORS.load(Ordering::Relaxed)) {
        (0, 0) => {
            let count = thread::available_parallelism().map_or(1, NonZero::get);
            PROCESSORS.store(count, Ordering::Relaxed);
            count
        }
        (0, count) | (count, _) => count,
    }
}

/// Returns the number of threads to divide work between, at most `most`. It is 1 on a worker thread, whose work is not
/// divided again.
#[must_use]
pub fn thread_count(most: usize) -> usize {
    if IS_WORKER.get() { 1 } else { num_threads().min(most) }
}

/// Returns the number of threads for `most` pieces of work that mostly wait, so it may exceed the number of processors. It
/// is not above a limit set by the user.
pub(crate) fn waiting_thread_count(most: usize) -> usize {
    match LIMIT.load(Ordering::Relaxed) {
        _ if IS_WORKER.get() => 1,
        0 => most.min(MAX_THREADS),
        limit => limit.min(most),
    }
}

/// An upper bound on the address space that a new thread takes, in bytes: its stack, and the 64 MiB that the C library
/// reserves for its heap. Without room for the stack, the process would abort. If heaps took all the room, the next
/// allocation of a buffer would fail.
const THREAD_BYTES: usize = 72 << 20;

/// Returns how many threads, at most `count`, there is memory for.
fn startable(count: usize) -> usize {
    (1..=count).rev().find(|&n| has_memory(n.saturating_mul(THREAD_BYTES))).unwrap_or(0)
}

/// A thread that processes items one after another.
struct Worker<'scope, T, R> {
    /// `None` once the thread has to end.
    items: Option<SyncSender<T>>,
    results: Receiver<thread::Result<R>>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
}

impl<'scope, T: Send + 'scope, R: Send + 'scope> Worker<'scope, T, R> {
    /// Returns `None` if the system cannot start another thread.
    fn start(scope: &'scope Scope<'scope, '_>, work: &'scope (impl Fn(T) -> R + Sync)) -> Option<Self> {
        let (items, to_do) = sync_channel::<T>(1);
        let (done, results) = sync_channel(1);
        let flag = cancel_flag();
        let run = move || {
            IS_WORKER.set(true);
            set_cancel_flag(flag);
            for item in to_do {
                let result = catch_unwind(AssertUnwindSafe(|| work(item)));
                if done.send(result).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("stridemap".to_owned()).spawn_scoped(scope, run).ok()?;
        Some(Worker { items: Some(items), results, thread: Some(thread) })
    }

    fn begin(&self, item: T) {
        // The thread receives items until the worker is dropped.
        let _ = self.items.as_ref().map(|items| items.send(item));
    }

    /// Waits for the result of the item that was sent. A panic is propagated.
    fn result(&self) -> R {
        let result = self.results.recv().unwrap_or_else(|e| Err(Box::new(e)));
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T, R> Drop for Worker<'_, T, R> {
    /// Joins the thread. The scope only waits for the closure to return, but the thread counts towards the system's
    /// limit until it has ended.
    fn drop(&mut self) {
        self.items = None;
        let _ = self.thread.take().map(ScopedJoinHandle::join);
    }
}

/// Calls `work` on other threads with each item that `feed` passes on, and `sink` on this thread with the results, in
/// the order of the items. At most one item or result per thread exists at a time, and one more result in `sink`.
///
/// If the system cannot start `thread_count` threads, those that it started do the work. If none start, or
/// `thread_count` is 1, the calling thread does it.
///
/// All threads have ended when this function returns or unwinds.
///
/// # Errors
/// Those of `feed` and `sink`. Items that no thread has begun are then dropped.
pub fn in_order<T: Send, R: Send, E>(
    thread_count: usize,
    feed: impl FnOnce(&mut dyn FnMut(T) -> Result<(), E>) -> Result<(), E>,
    work: impl Fn(T) -> R + Sync,
    mut sink: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    let work = &work;
    let to_start = if thread_count > 1 { startable(thread_count) } else { 0 };
    thread::scope(|scope| {
        // On an error or a panic, each worker ends after its current item.
        let workers: Vec<Worker<'_, T, R>> =
            (0..to_start).map_while(|_| Worker::start(scope, work)).collect();
        let mut idle: Vec<&Worker<'_, T, R>> = workers.iter().collect();
        let mut busy: VecDeque<&Worker<'_, T, R>> = VecDeque::with_capacity(workers.len());
        feed(&mut |item| {
            // The worker that has been busy longest has the next result.
            let (worker, result) = match (idle.pop(), busy.front()) {
                (Some(worker), _) => (worker, None),
                (None, Some(&worker)) => {
                    busy.pop_front();
                    (worker, Some(worker.result()))
                }
                (None, None) => return sink(work(item)),
            };
            worker.begin(item);
            busy.push_back(worker);
            result.map_or(Ok(()), &mut sink)
        })?;
        busy.into_iter().try_for_each(|worker| sink(worker.result()))
    })
}

/// The number of items that wait for the thread of [`alongside`].
const QUEUED_ITEMS: usize = 8;

/// Calls `work` with each item that `feed` passes on, and returns the results in the order of the items. One other
/// thread does the work while `feed` continues. If the queue is full, the calling thread does the work on the item
/// itself. So `feed` never waits for a thread that the system has not scheduled.
///
/// The thread has ended when this function returns or unwinds.
pub(crate) fn alongside<T: Send, R: Send, E>(
    feed: impl FnOnce(&mut dyn FnMut(T)) -> Result<(), E>,
    work: impl Fn(T) -> R + Sync,
) -> Result<Vec<R>, E> {
    let work = &work;
    let (queue, items) = sync_channel::<(usize, T)>(QUEUED_ITEMS);
    let results = thread::scope(|scope| {
        let flag = cancel_flag();
        let run = move || {
            set_cancel_flag(flag);
            items.into_iter().map(|(index, item)| (index, work(item))).collect::<Vec<_>>()
        };
        let can_start = thread_count(2) > 1 && startable(1) == 1;
        // If it does not start, the queue has no receiver and accepts no item.
        let start = || thread::Builder::new().name("stridemap".to_owned()).spawn_scoped(scope, run).ok();
        let thread = can_start.then(start).flatten();
        let (mut results, mut count) = (Vec::new(), 0);
        let fed = feed(&mut |item| {
            if let Err(TrySendError::Full(item) | TrySendError::Disconnected(item)) =
                queue.try_send((count, item))
            {
                results.push((item.0, work(item.1)));
            }
            count += 1;
        });
        drop(queue);
        let done = thread.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        results.extend(done.unwrap_or_default());
        fed.map(|()| results)
    });
    let mut results = results?;
    results.sort_unstable_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests;
