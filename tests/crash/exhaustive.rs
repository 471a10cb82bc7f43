//! Every state that a power cut can leave of short scripts.

use std::sync::Mutex;
use std::time::Instant;

use crate::simulated::SimulatedDisk;

use crate::explore::{Budget, Figures, explore};
use crate::script::{Script, Setup};
use crate::{number, scripts, temporary};

/// Returns the number of states tried at each crash point after the first crash.
fn states() -> usize {
    number("STRIDEMAP_TEST_CRASH_STATES").unwrap_or(2) as usize
}

/// Tries the states of these scripts, asserts that all are right, and returns their numbers.
fn try_all(scripts: Vec<Script>, setup: &Setup, budget: &Budget) -> Figures {
    let (next, all) = (Mutex::new(scripts.iter()), Mutex::new(Figures::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(script) = next.lock().unwrap().next() else { break };
                    let began = Instant::now();
                    let figures =
                        explore(script, setup, budget).unwrap_or_else(|violation| panic!("{violation}"));
                    println!("{}: {figures} in {:.1?}", script.name, began.elapsed());
                    all.lock().unwrap().add(&figures);
                }
            });
        }
    });
    all.into_inner().unwrap()
}

fn all_scripts(file: &std::path::Path) -> Vec<Script> {
    scripts::write_model(file);
    vec![
        scripts::commits(),
        scripts::in_place(),
        scripts::two_handles(),
        scripts::growth(),
        scripts::tables(),
        scripts::history(),
        scripts::history_tables(),
        scripts::compaction(),
        scripts::joining(),
        scripts::adoption(file, false),
        scripts::adoption(file, true),
        scripts::unsynced(|store| store.save("durable", &crate::script::vector(5, 5)).unwrap()),
        scripts::unsynced(|store| {
            store.gc().unwrap();
        }),
        scripts::creation(),
    ]
}

#[test]
fn power_cut_with_any_subset_of_unsynced_changes_leaves_the_old_or_the_new_content() {
    let dir = temporary();
    let all = try_all(
        all_scripts(&dir.path().join("model.safetensors")),
        &Setup::default(),
        &Budget::flat(256 * states()),
    );
    println!("all scripts: {all}; none wrong");
    assert!(all.complete_states > 5_000, "{all}");
}

#[test]
fn power_cut_that_keeps_half_of_a_rename_leaves_the_old_or_the_new_content() {
    let dir = temporary();
    let setup = Setup { disk: Box::new(|| SimulatedDisk::new().with_split_renames()), ..Setup::default() };
    let all =
        try_all(all_scripts(&dir.path().join("model.safetensors")), &setup, &Budget::flat(64 * states()));
    println!("all scripts, with renames that are two changes: {all}; none wrong");
}

#[test]
fn power_cut_while_chunk_digests_grow_leaves_the_old_or_the_new_content() {
    let setup = Setup { disk: Box::new(|| SimulatedDisk::with_block_bytes(64 << 10)), ..Setup::default() };
    let all = try_all(vec![scripts::chunks()], &setup, &Budget::flat(16));
    println!("{all}; none wrong");
}

/// A killed writer leaves changes that are not durable, and the next writer builds on them.
#[test]
fn power_cut_after_a_kill_leaves_the_commits_that_the_next_writer_acknowledged() {
    let dir = temporary();
    let budget = Budget { kills: true, ..Budget::flat(states()) };
    let all = try_all(all_scripts(&dir.path().join("model.safetensors")), &Setup::default(), &budget);
    println!("all scripts, with kills: {all}; none wrong");
    assert!(states() < 16 || all.complete_states > 100_000, "{all}");
}

#[test]
fn power_cuts_during_recoveries_lose_nothing_more() {
    let budget = Budget { states: 64, deeper: vec![(states(), 2), (4, 8), (4, 8)], kills: false, seed: 3 };
    let all = try_all(vec![scripts::creation()], &Setup::default(), &budget);
    println!("power cuts in recoveries: {all}; none wrong");
    assert!(all.depth >= 3, "{all}");
}
