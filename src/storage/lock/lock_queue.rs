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

use crate::disk::{DiskFile, FileId, LockMode, OwnerProcess};

/// The longest wait for the front. After that, a thread leaves the queue.
const MAX_FRONT_WAIT: Duration = Duration::from_secs(1);

/// How long a thread waits for the front before it tries to get an exclusive lock all the same. A process that is
/// stopped while it is at the front must not keep others from a free lock. Others seldom try a free lock at just that
/// moment, so this changes the order only if the front does not move. A shared lock is not tried early: readers that
/// share it one after another would keep it from a writer at the front.
const MAX_WAIT_BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// The pause between attempts if no thread can be started that waits in the kernel.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// After a process has waited for a file, it pauses for `REQUEUE_PAUSE` each time it queues for that file again during
/// the next `REQUEUE_PAUSE_PERIOD`. The kernel does not hand a lock over: the process that it wakes needs time to take
/// the lock before others take it again.
const REQUEUE_PAUSE: Duration = Duration::from_micros(250);
const REQUEUE_PAUSE_PERIOD: Duration = Duration::from_millis(50);

/// The shortest and the longest pause between two attempts of the waiter at the front.
const FRONT_PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(2)];

/// A thread's place in the queue, until it is dropped.
pub(crate) struct Turn {
    file: Arc<dyn DiskFile>,
    id: FileId,
    mode: LockMode,
    ticket: u64,
    owner: OwnerProcess,
    /// When the thread joined the queue, and the longest wait for the front.
    began: Instant,
    patience: Duration,
    has_waited: bool,
    /// A thread that was behind another thread of this process must first queue in the kernel. If it tried at once, it
    /// would overtake the processes that wait there.
    may_try_front: bool,
    /// Since when the thread has been at the front, or outside the queue. `None` while it waits.
    done_since: Option<Instant>,
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

/// Whether no process or thread waits for the lock of a file, so that a thread may try it without joining the queue, which
/// takes one system call and not two. Whoever joins in between waits a little longer: for a lock that is held, everyone
/// joins.
///
/// False for some time after this process has waited itself, because it must then pause.
pub(in crate::storage) fn is_empty(file: &dyn DiskFile, id: FileId, mode: LockMode) -> bool {
    let queues = queues();
    let is_used = queues.by_file.contains_key(&id) || queues.must_pause(id);
    drop(queues);
    !is_used && matches!(file.is_front_free(mode), Ok(true))
}

impl Turn {
    /// Joins the queue for the lock of an open file. `timeout` is the time left to get the lock.
    pub(crate) fn join(file: &Arc<dyn DiskFile>, id: FileId, mode: LockMode, timeout: Duration) -> Turn {
        let (began, patience) = (Instant::now(), MAX_FRONT_WAIT.min(timeout / 2));
        let mut queues = queues();
        if queues.must_pause(id) {
            drop(queues);
            thread::sleep(REQUEUE_PAUSE.min(patience));
            queues = self::queues();
        }
        let ticket = queues.next_ticket;
        queues.next_ticket += 1;
        let owner = queues.owner;
        let queue = queues.by_file.entry(id).or_default();
        let may_try_front = queue.tickets.is_empty();
        queue.tickets.push_back(ticket);
        let file = Arc::clone(file);
        Turn {
            file,
            id,
            mode,
            ticket,
            owner,
            began,
            patience,
            has_waited: false,
            may_try_front,
            done_since: None,
        }
    }

    /// Waits until this thread is at the front of the queue, and returns true. For an exclusive lock, returns false after
    /// a short wait: the caller then tries the lock, and waits again if it is held.
    ///
    /// A thread that has waited for half of its timeout, or for [`MAX_FRONT_WAIT`], leaves the queue. It then counts as
    /// being at the front.
    pub(crate) fn wait(&mut self) -> bool {
        let began = Instant::now();
        let most = match self.mode {
            LockMode::Exclusive => MAX_WAIT_BETWEEN_TRIES,
            LockMode::Shared => Duration::MAX,
        };
        let mut queues = queues();
        while self.done_since.is_none() {
            let queue = queues.by_file.entry(self.id).or_default();
            let is_first = queue.tickets.front() == Some(&self.ticket);
            let patience_left = self.patience.saturating_sub(self.began.elapsed());
            let mut pause = patience_left.min(most.saturating_sub(began.elapsed()));
            if is_first && !queue.has_background_wait {
                if self.may_try_front && !matches!(self.file.try_front(self.mode), Ok(false)) {
                    if self.has_waited {
                        queues.waited_in = Some((self.id, Instant::now()));
                    }
                    self.done_since = Some(Instant::now());
                    break;
                }
                queue.has_background_wait =
                    !patience_left.is_zero() && request_front(&self.file, self.id, self.mode);
                if !queue.has_background_wait {
                    pause = pause.min(RETRY_PAUSE);
                }
                self.may_try_front = true;
            }
            if patience_left.is_zero() {
                queues.leave(&self.file, self.id, self.ticket);
                self.done_since = Some(Instant::now());
            } else if pause.is_zero() {
                return false;
            } else {
                self.has_waited = true;
                queues = MOVED.wait_timeout(queues, pause).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        true
    }

    /// Returns the pause before the next attempt to lock. There is none while this thread waits for the front.
    pub(crate) fn pause(&self) -> Duration {
        let [shortest, longest] = FRONT_PAUSES;
        self.done_since.map_or(Duration::ZERO, |since| (since.elapsed() / 8).clamp(shortest, longest))
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

    /// Whether this process has waited for a file a short time ago.
    fn must_pause(&self, id: FileId) -> bool {
        self.waited_in.is_some_and(|(last, when)| last == id && when.elapsed() < REQUEUE_PAUSE_PERIOD)
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

#[cfg(test)]
mod tests {
    use std::env;
    use std::io::{BufRead as _, BufReader, Read as _, stdin};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::disk::{Access, Disk as _, RealDisk};

    const OTHER_PROCESS: &str = "STRIDEMAP_TEST_FRONT";

    fn open(path: impl AsRef<Path>) -> Arc<dyn DiskFile> {
        RealDisk::default().open(path.as_ref(), Access::Write).unwrap()
    }

    #[test]
    fn thread_behind_a_front_that_does_not_move_tries_the_lock_and_keeps_its_place() {
        if let Some(path) = env::var_os(OTHER_PROCESS) {
            let file = open(path);
            assert!(file.try_front(LockMode::Exclusive).unwrap());
            println!("at the front");
            // Until the test ends this process.
            stdin().read_to_end(&mut Vec::new()).unwrap();
            return;
        }
        let path = tempfile::NamedTempFile::new().unwrap();
        let (_, module) = module_path!().split_once("::").unwrap();
        let test =
            format!("{module}::thread_behind_a_front_that_does_not_move_tries_the_lock_and_keeps_its_place");
        let mut other = Command::new(env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture"])
            .env(OTHER_PROCESS, path.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("at the front")));
        let file = open(path.path());
        let id = file.stat().unwrap().id();
        let mut turn = Turn::join(&file, id, LockMode::Exclusive, Duration::from_secs(3600));
        turn.patience = Duration::from_secs(3600);
        assert!(!turn.wait(), "the caller must try the lock before the front moves");
        assert_eq!(turn.pause(), Duration::ZERO);
        other.kill().unwrap();
        other.wait().unwrap();
        while !turn.wait() {}
        let is_first = |queue: &Queue| queue.tickets.front() == Some(&turn.ticket);
        assert!(queues().by_file.get(&id).is_some_and(is_first), "it left the queue");
    }
}
