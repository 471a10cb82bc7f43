//! Waiting until another thread or process changes an element.

use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

use super::LiveElement;
use super::tensor::LiveTensor;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Integers;
use crate::storage::Atom as _;

/// How often a waiter looks at the element by itself: who changed it may have been killed before it woke others.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

impl<T: LiveElement> LiveTensor<T> {
    /// Waits until the element at an index is not `old`, for at most `timeout`. Returns whether it is not `old`.
    ///
    /// The thread sleeps until any thread or process calls [`wake`](Self::wake) for the element. Writes do not wake by
    /// themselves, since that is a system call each. A waiter that nobody wakes notices a change after 100 ms. Elements
    /// are compared by their bits. Other elements that were written before this one are visible only after
    /// [`fence(Acquire)`](std::sync::atomic::fence), if their writer called `fence(Release)` between.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stridemap::{DType, StorageKind, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let steps = store.create_tensor("steps", DType::U32, &[2], StorageKind::Live)?.as_live::<u32>()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| steps.set(1, 7).and_then(|()| steps.wake(1)));
    ///     steps.wait(1, 0, Duration::from_secs(60))
    /// })?;
    /// assert_eq!(steps.get(1)?, 7);
    /// assert!(!steps.wait(0, 0, Duration::ZERO)?); // nobody changed it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]; [`ErrorKind::SizeMismatch`] for too few positions; [`ErrorKind::Unsupported`] for
    /// elements of fewer than 4 bytes; [`ErrorKind::Io`] if the kernel refuses to wait.
    pub fn wait(&self, index: impl Integers, old: T, timeout: Duration) -> Result<bool> {
        let atom = self.atom("wait", index)?;
        let place = waiting_place::<T>("wait", atom)?;
        let until = Instant::now().checked_add(timeout);
        loop {
            let element = T::load(atom);
            if bytemuck::bytes_of(&element) != bytemuck::bytes_of(&old) {
                return Ok(true);
            }
            let left = until.map_or(LOOK_INTERVAL, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(false);
            }
            let pause = left.min(LOOK_INTERVAL);
            let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
            match futex::wait(place, futex::Flags::empty(), first_bytes(&old), Some(&pause)) {
                // It may have changed, or `wake` was called without a change.
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                Err(e) => return Err(refused("wait", e)),
            }
        }
    }

    /// Wakes all threads of all processes that [wait](Self::wait) for the element at an index. Call it after the
    /// element was changed. Without waiters, it costs one system call.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// # // SAFETY: only stridemap writes to this store.
    /// # let store = unsafe { Store::open_mapped(&path)? };
    /// let steps = store.create_tensor("steps", DType::U32, &[2], StorageKind::Live)?.as_live::<u32>()?;
    /// steps.set(1, 7)?;
    /// steps.wake(1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    pub fn wake(&self, index: impl Integers) -> Result<()> {
        let place = waiting_place::<T>("wake", self.atom("wake", index)?)?;
        match futex::wake(place, futex::Flags::empty(), i32::MAX as u32) {
            Ok(_) => Ok(()),
            Err(e) => Err(refused("wake", e)),
        }
    }
}

fn refused(op: &str, e: Errno) -> Error {
    Error::new(ErrorKind::Io, format!("{op}: the system refuses it: {e}"))
}

fn waiting_place<'a, T: LiveElement>(op: &str, atom: &'a T::Atom) -> Result<&'a AtomicU32> {
    atom.waiting_place().ok_or_else(|| {
        let message = format!(
            "{op}: elements of {} have {} bytes, and the system waits for at least 4; use int32 or int64 for what is \
             waited for",
            T::DTYPE,
            size_of::<T>()
        );
        Error::new(ErrorKind::Unsupported, message)
    })
}

/// The first four bytes of an element, or fewer of a shorter one.
fn first_bytes(element: &impl bytemuck::Pod) -> u32 {
    bytemuck::bytes_of(element).first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}
