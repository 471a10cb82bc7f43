//! The order in which processes and threads get a file's lock.
//!
//! A waiter first moves to the front of the queue, and stays there until it has the lock. So a process that unlocks
//! and locks again waits behind the others, and a process that requests a shared lock waits behind one that requests
//! an exclusive lock. The kernel orders the processes, and removes a process that dies. This module orders the
//! threads of one process. Only the lock itself excludes anything: without the queue, locking would be unfair but
//! correct.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::disk::{DiskFile, FileId, LockMode};
use crate::process::OwnerProcess;

/// The longest wait for the front. A process that is stopped while it is at the front must not keep others from a
/// free lock.
const MAX_FRONT_WAIT: Duration = Duration::from_secs(1);

/// The pause between attempts if no thread can be started that waits in the kernel.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// After a process has waited for a file, it pauses for `REQUEUE_PAUSE` each time it queues for that file again during
/// the next `REQUEUE_PAUSE_PERIOD`. The kernel does not hand a lock over: the process that it wakes needs time to take
/// the lock before others take it again.
const REQUEUE_PAUSE: Duration = Duration::from_micros(250);
const REQUEUE_PAUSE_PERIOD: Duration = Duration::from_millis(50);

/// The shortest and the longest pause between two attempts of the waiter at the front.
const FRONT_PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(2)];

/// A place at the front of the queue, until it is dropped.
pub(crate) struct Turn {
    file: Arc<dyn DiskFile>,
    id: FileId,
    ticket: u64,
    owner: OwnerProcess,
}

/// The queues in which this process waits.
struct Queues {
    /// A forked child has a copy of the queues, but waits in none.
    owner: OwnerProcess,
    next_ticket: u64,
    by_file: HashMap<FileId, Queue>,
    /// The last file that this process had to wait for, and when it stopped waiting.
    waited_in: Option<(FileId, Instant)>,
}

/// The tickets of the waiting threads. The first thread is at the front, or waits for the front.
#[derive(Default)]
struct Queue {
    tickets: VecDeque<u64>,
    /// Whether a background thread waits in the kernel for the front, because that wait has no timeout. There is at
    /// most one such thread.
    has_background_wait: bool,
}

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(|| Mutex::new(Queues::new()));
static MOVED: Condvar = Condvar::new();

fn queues() -> MutexGuard<'static, Queues> {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    if !queues.owner.is_current() {
        *queues = Queues::new();
    }
    queues
}

impl Turn {
    /// Waits until this thread is at the front of the queue for the lock of an open file, for at most half of
    /// `timeout` and at most [`MAX_FRONT_WAIT`]. A caller that gets `None` may still try the lock.
    pub(crate) fn take(
        file: &Arc<dyn DiskFile>,
        id: FileId,
        mode: LockMode,
        timeout: Duration,
    ) -> Option<Turn> {
        let (began, patience) = (Instant::now(), MAX_FRONT_WAIT.min(timeout / 2));
        let mut queues = queues();
        if queues.waited_in.is_some_and(|(last, when)| last == id && when.elapsed() < REQUEUE_PAUSE_PERIOD) {
            drop(queues);
            thread::sleep(REQUEUE_PAUSE.min(patience));
            queues = self::queues();
        }
        let ticket = queues.next_ticket;
        queues.next_ticket += 1;
        let queue = queues.by_file.entry(id).or_default();
        let mut has_waited = false;
        // A thread that was behind another thread of this process must first queue in the kernel. If it tried at once,
        // it would overtake the processes that wait there.
        let mut may_try = queue.tickets.is_empty();
        queue.tickets.push_back(ticket);
        loop {
            let queue = queues.by_file.entry(id).or_default();
            let is_first = queue.tickets.front() == Some(&ticket);
            let mut pause = patience.saturating_sub(began.elapsed());
            if is_first && !queue.has_background_wait {
                if may_try && !matches!(file.try_front(mode), Ok(false)) {
                    if has_waited {
                        queues.waited_in = Some((id, Instant::now()));
                    }
                    return Some(Turn { file: Arc::clone(file), id, ticket, owner: queues.owner });
                }
                queue.has_background_wait = !pause.is_zero() && request_front(file, id, mode);
                if !queue.has_background_wait {
                    pause = pause.min(RETRY_PAUSE);
                }
                may_try = true;
            }
            if pause.is_zero() {
                queues.leave(file, id, ticket);
                return None;
            }
            has_waited = true;
            queues = MOVED.wait_timeout(queues, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the pause before the next attempt of a waiter that has been at the front since `since`.
    pub(crate) fn pause(since: Instant) -> Duration {
        let [shortest, longest] = FRONT_PAUSES;
        (since.elapsed() / 8).clamp(shortest, longest)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.owner.is_current() {
            queues().leave(&self.file, self.id, self.ticket);
        }
    }
}

/// Starts a thread that waits in the kernel for the front of the queue. Returns false if no thread can be started.
fn request_front(file: &Arc<dyn DiskFile>, id: FileId, mode: LockMode) -> bool {
    let file = Arc::clone(file);
    let wait = move || {
        if file.wait_for_front(mode).is_err() {
            thread::sleep(RETRY_PAUSE);
        }
        let mut queues = queues();
        if let Some(queue) = queues.by_file.get_mut(&id) {
            queue.has_background_wait = false;
            if queue.tickets.is_empty() {
                // All waiters have given up.
                let _ = file.leave_front();
                queues.by_file.remove(&id);
            }
        }
        MOVED.notify_all();
    };
    thread::Builder::new().name("queue".to_owned()).stack_size(64 << 10).spawn(wait).is_ok()
}

impl Queues {
    fn new() -> Self {
        Queues { owner: OwnerProcess::current(), next_ticket: 0, by_file: HashMap::new(), waited_in: None }
    }

    fn leave(&mut self, file: &Arc<dyn DiskFile>, id: FileId, ticket: u64) {
        let Some(queue) = self.by_file.get_mut(&id) else { return };
        let was_first = queue.tickets.front() == Some(&ticket);
        queue.tickets.retain(|&waiting| waiting != ticket);
        if was_first && !queue.has_background_wait {
            let _ = file.leave_front();
        }
        if queue.tickets.is_empty() && !queue.has_background_wait {
            self.by_file.remove(&id);
        } else {
            MOVED.notify_all();
        }
    }
}
