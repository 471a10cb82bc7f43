//! Long random scripts on stores that lose power again and again.

mod episode;
mod model;
mod operations;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use crate::explore::Figures;
use crate::number;
use episode::Episode;

/// The number of times that a store loses power.
const LIVES: usize = 12;

#[test]
fn stores_that_lose_power_repeatedly_keep_acknowledged_commits() {
    let began = Instant::now();
    if let Some(seed) = number("STRIDEMAP_TEST_CRASH_SEED") {
        let figures = Episode::new(seed).run(LIVES).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        println!("seed {seed}: {figures}");
        return;
    }
    let wanted = number("STRIDEMAP_TEST_CRASH_OPERATIONS").unwrap_or(20_000);
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (next, all) = (AtomicU64::new(clock), Mutex::new(Figures::default()));
    let work = || {
        while all.lock().unwrap().store_operations < wanted {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let lived = std::panic::catch_unwind(|| Episode::new(seed).run(LIVES));
            let wrong = match lived {
                Ok(Ok(figures)) => {
                    all.lock().unwrap().add(&figures);
                    continue;
                }
                Ok(Err(wrong)) => wrong,
                Err(_) => "it panicked".to_owned(),
            };
            panic!("STRIDEMAP_TEST_CRASH_SEED={seed} plays this again: {wrong}");
        }
    };
    std::thread::scope(|scope| {
        let both = [scope.spawn(work), scope.spawn(work)];
        let failed: Vec<_> = both.into_iter().filter_map(|thread| thread.join().err()).collect();
        if let Some(failed) = failed.into_iter().next() {
            std::panic::resume_unwind(failed);
        }
    });
    let all = all.into_inner().unwrap();
    println!(
        "{} operations of the store and {} of the disk, {} power cuts, {} kills, {} recoveries, up to {} power cuts before the store \
         was seen without leftovers, from seed {clock} on, in {:.1?}; none wrong",
        all.store_operations,
        all.disk_operations,
        all.points,
        all.kills,
        all.recoveries,
        all.depth,
        began.elapsed()
    );
    assert!(all.depth >= 3, "{all}");
}

/// An unsynced commit, then a commit without changes by a handle that syncs, then a power cut.
#[test]
fn commit_without_changes_keeps_what_it_returned_for() {
    let figures = Episode::new(1_795_754_581_044_725_056).run(LIVES).unwrap();
    assert!(figures.recoveries > 0, "{figures}");
}

/// A change in place of a tensor that is killed, then one of another tensor on the same storage with a flush, then a power cut.
#[test]
fn flush_after_an_interrupted_change_keeps_what_the_change_left() {
    let figures = Episode::new(1_795_899_018_315_860_726).run(LIVES).unwrap();
    assert!(figures.recoveries > 0 && figures.kills > 0, "{figures}");
}
