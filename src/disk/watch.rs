//! Watches directories by inotify.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::{STAGE_PREFIX, Watch};

/// What is watched in a directory. A file appears by a rename or, if the file system cannot rename without replacing, by
/// a hard link.
pub(super) const WATCHED: WatchFlags = WatchFlags::MOVED_TO
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

pub(super) fn new_instance() -> io::Result<OwnedFd> {
    Ok(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)
}

/// A watch by inotify.
#[derive(Debug)]
pub(super) struct Inotify(OwnedFd);

impl Inotify {
    pub(super) fn new(dir: &Path) -> io::Result<Self> {
        let watched = new_instance()?;
        inotify::add_watch(&watched, dir, WATCHED)?;
        Ok(Inotify(watched))
    }

    /// Reads all pending events, and returns whether a finished file may have appeared.
    fn take_news(&self) -> io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut news = inotify::Reader::new(&self.0, &mut buffer);
        let mut matters = false;
        loop {
            match news.next() {
                Ok(event) => {
                    let is_lost = event.events().intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::IGNORED);
                    matters |= is_lost || event.file_name().is_none_or(is_finished);
                }
                Err(Errno::AGAIN) => return Ok(matters),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

pub(super) fn is_finished(name: &CStr) -> bool {
    !name.to_bytes().starts_with(STAGE_PREFIX.as_bytes())
}

impl Watch for Inotify {
    fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let began = Instant::now();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let left_or_forever = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], left_or_forever.as_ref()) {
                Ok(0) | Err(Errno::INTR) => return Ok(false),
                polled => polled?,
            };
            let has_news = self.take_news()?;
            if has_news || left.is_zero() {
                return Ok(has_news);
            }
        }
    }
}
