//! Plans a repair without changing anything.

use std::io;

use super::content::{Content, content};
use super::metadata::{Source, read};
use super::{PUT_BACK_ADVICE, Repair, has_dir};
use crate::disk::{Access, Disk, StorePaths, is_not_regular, read_again};
use crate::error::{Error, Result};
use crate::generation::manifest_numbers;

/// How many times a plan is made at most. It is made again if another process committed in the meantime.
const MAX_TRIES: u32 = 5;

/// What a repair has to do, and the content that it keeps.
pub(super) struct Plan {
    pub(super) repair: Repair,
    pub(super) source: Source,
    pub(super) content: Content,
}

/// Plans a repair: reads everything, and changes nothing.
pub(super) fn plan(disk: &dyn Disk, paths: &StorePaths, progress: &mut dyn FnMut(u64)) -> Result<Plan> {
    retry_if_disturbed(disk, paths, || plan_once(disk, paths, progress), |plan| plan.repair.is_empty())
}

/// Calls `look` to read a store. Calls it again if `is_good` does not accept the result and another process committed
/// meanwhile, because a commit deletes files that were listed before.
pub(super) fn retry_if_disturbed<T>(
    disk: &dyn Disk,
    paths: &StorePaths,
    mut look: impl FnMut() -> Result<T>,
    is_good: fn(&T) -> bool,
) -> Result<T> {
    let mut tries = 0;
    loop {
        let before = manifest_numbers(disk, paths);
        let seen = look();
        tries += 1;
        let is_unchanged = before.ok() == manifest_numbers(disk, paths).ok();
        if is_unchanged || tries == MAX_TRIES || seen.as_ref().is_ok_and(is_good) {
            return seen;
        }
    }
}

fn plan_once(disk: &dyn Disk, paths: &StorePaths, progress: &mut dyn FnMut(u64)) -> Result<Plan> {
    let mut repair = Repair::default();
    // Read first, because the directory may not be a store.
    let source = read(disk, paths, &mut repair)?;
    if let Some(why) = why_lock_file_is_unusable(disk, paths)? {
        repair.remedy(paths.lock(), format!("created again: {why}"));
    }
    if !check_dirs(disk, paths)? {
        repair.remedy(paths.storages_dir(), "created again: the directory is missing");
    }
    let content = content(disk, paths, &source, &mut repair, progress)?;
    Ok(Plan { repair, source, content })
}

/// Refuses directories that are links. Returns whether `storages/` exists.
pub(super) fn check_dirs(disk: &dyn Disk, paths: &StorePaths) -> Result<bool> {
    has_dir(disk, &paths.meta_dir(), PUT_BACK_ADVICE)?;
    has_dir(disk, &paths.storages_dir(), PUT_BACK_ADVICE)
}

/// Returns why LOCK must be created again, if it must be.
pub(super) fn why_lock_file_is_unusable(disk: &dyn Disk, paths: &StorePaths) -> Result<Option<String>> {
    let path = paths.lock();
    match read_again(|| disk.open(&path, Access::Read)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Some("it is missing".to_owned())),
        Err(e) if is_not_regular(&e) => Ok(Some(format!("it is {e}"))),
        opened => opened.map(|_| None).map_err(|e| Error::io("open", &path, e)),
    }
}
