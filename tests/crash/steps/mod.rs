//! Each step of the protocol left out in turn: for every one there is a simulation that finds something lost, and that
//! finds nothing wrong while the step is there.

mod foreign;
mod growth;
mod in_place;
mod play;
mod power;
mod readers;
mod replaced;
pub(crate) mod seat;
mod writers;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use stridemap::disk::Step;

use play::{Fate, Play};

/// A simulation, and the steps of which it finds each missing.
struct Simulation {
    name: &'static str,
    play: Box<dyn Fn(Option<Step>) -> Fate>,
    finds: &'static [Step],
}

fn of(name: &'static str, play: fn(&Play) -> Fate, finds: &'static [Step]) -> Simulation {
    Simulation { name, play: Box::new(move |omitted| play(&Play::new(omitted))), finds }
}

fn on_a_real_disk(name: &'static str, play: fn(&Play) -> Fate, finds: &'static [Step]) -> Simulation {
    Simulation { name, play: Box::new(move |omitted| play(&Play::new(omitted).real())), finds }
}

/// Of processes that come between each other's operations.
fn interleavings() -> Vec<Simulation> {
    use Step::*;
    vec![
        of("another before the name", writers::another_before_the_name, &[LockWriters]),
        of("another since the beginning", writers::another_since_the_beginning, &[NewestUnderLock]),
        of("renamed after it was replaced", writers::renamed_after_it_was_replaced, &[Rebase]),
        of("expected generation", writers::expected_generation, &[ExpectedGeneration]),
        of("view of what went", writers::view_of_what_went, &[ExpectedStorage]),
        of("compacted after it was replaced", writers::compacted_after_it_was_replaced, &[MoveIsUpToDate]),
        of("LOCK replaced before it is had", writers::lock_replaced_before_it_is_had, &[LockIsNamed]),
        of("LOCK replaced while it is held", writers::lock_replaced_while_it_is_held, &[NeverReplace]),
        of("copy restored under a handle", replaced::copy_restored_under_a_handle, &[KnownIsNamed]),
        of("directory replaced under a handle", replaced::directory_replaced_under_a_handle, &[DirsAreNamed]),
        of("commit after a failed sync", writers::commit_after_a_failed_sync, &[Poison]),
        of("commit that waited for a failed one", writers::commit_that_waited_for_a_failed_one, &[Poison]),
        of("orphans of a failed commit", writers::orphans_of_a_failed_commit, &[ReplaceOrphan, RemoveOrphan]),
        of("stage of a living writer", writers::stage_of_a_living_writer, &[StageIsAbandoned]),
        of(
            "pinned across commits",
            readers::pinned_across_commits,
            &[PinManifest, LockOlderManifest, PinnedHoldsBack],
        ),
        of(
            "pinned across a collection",
            readers::pinned_across_a_collection,
            &[PinManifest, LockOlderManifest, PinnedHoldsBack, PinnedStorages],
        ),
        of("collected before it is pinned", readers::manifest_collected_before_it_is_pinned, &[PinIsNamed]),
        of("listing that a commit goes by", readers::listing_that_a_commit_goes_by, &[ListAgain]),
        of(
            "listing that shows an older generation",
            readers::listing_that_shows_an_older_generation,
            &[ListAgain],
        ),
        of(
            "in use, though not listed",
            readers::tensor_in_use_though_a_listing_does_not_show_it,
            &[KnownIsNewer],
        ),
        of("newest read by others", readers::newest_is_read_by_others, &[PinPublished]),
        of("manifest that cannot be read", readers::manifest_that_cannot_be_read, &[UnreadHoldsBack]),
        of("garbage that is none", readers::garbage_that_is_none, &[GarbageIsGarbage]),
        of("table of a pinned generation", readers::table_of_a_pinned_generation, &[PinnedTables]),
        of("changed after it lost its name", readers::changed_after_it_lost_its_name, &[InPlaceIsInUse]),
        of("two append", growth::two_append, &[LockGrowth]),
        of("two append and see no locks", growth::two_append_and_see_no_locks, &[GrownIsAsBefore]),
        of(
            "append behind what is not listed",
            growth::append_behind_what_a_listing_does_not_show,
            &[CertainNewest],
        ),
        of(
            "growing file replaced before its lock",
            growth::file_replaced_before_it_is_locked,
            &[GrowthIsNamed],
        ),
        on_a_real_disk("growing file that is short", growth::file_that_is_short, &[GrowthIsWhole]),
        of("tail that is damaged", growth::tail_that_is_damaged, &[TailIsWhole]),
        on_a_real_disk("growing file with two names", growth::file_with_two_names, &[GrowthHasOneName]),
        on_a_real_disk("growing file that is lent", growth::file_that_is_lent, &[KeepStable]),
        of("two change", in_place::two_change, &[LockGuard]),
        of("changed file that was replaced", in_place::file_that_was_replaced, &[InPlaceIsSame]),
        of("changed file that is short", in_place::file_that_is_short, &[InPlaceIsWhole]),
        on_a_real_disk("changed file with two names", in_place::file_with_two_names, &[InPlaceHasOneName]),
        of("flushed before a power cut", in_place::flushed_before_a_power_cut, &[SyncInPlace]),
        of("flushed after a writer died", in_place::flushed_after_a_writer_died, &[SyncFlushedName]),
        of("loss told to the loaded file", in_place::loss_that_the_loaded_file_is_told_of, &[SyncLoaded]),
        on_a_real_disk("flush of live elements", in_place::live_elements_that_are_lost, &[SyncLoaded]),
        on_a_real_disk("two flush what is lost", in_place::two_flush_what_is_lost, &[FlushAlone]),
        of("flush after a failed one", in_place::flush_after_a_failed_one, &[FlushOnce]),
        of("adopted file changed before", foreign::changed_before_it_is_recorded, &[AdoptedIsUnchanged]),
        of("adopted file changed since", foreign::changed_since_it_was_recorded, &[ExternalIsSame]),
        of("shared file changed before", foreign::changed_before_it_is_shared, &[SharedIsUnchanged]),
    ]
}

/// What goes wrong, if anything does. A simulation may also find out by a panic.
fn fate(simulation: &Simulation, omitted: Option<Step>) -> Fate {
    catch_unwind(AssertUnwindSafe(|| (simulation.play)(omitted))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or(panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default())
    })
}

/// Plays each with all steps in place, and then without each of those that it is to find missing; prints what it found.
fn check(simulations: Vec<Simulation>) {
    let mut survivors = Vec::new();
    for simulation in simulations {
        if let Err(wrong) = fate(&simulation, None) {
            panic!("{}, with every step: {wrong}", simulation.name);
        }
        for &step in simulation.finds {
            match fate(&simulation, Some(step)) {
                Err(wrong) => {
                    let line = wrong.lines().collect::<Vec<_>>().join(" ");
                    println!("| {step:?} | {} | {line} |", simulation.name);
                }
                Ok(()) => survivors.push((step, simulation.name)),
            }
        }
    }
    assert!(survivors.is_empty(), "nothing noticed that these were left out: {survivors:?}");
}

#[test]
fn every_check_that_is_left_out_is_noticed_between_processes() {
    check(interleavings());
}

#[test]
fn every_sync_and_rename_that_is_left_out_is_noticed_after_a_power_cut() {
    check(power::simulations());
}

#[test]
fn every_step_has_a_simulation_that_finds_it_missing() {
    let mut missing = Step::ALL.to_vec();
    for simulation in interleavings().into_iter().chain(power::simulations()) {
        missing.retain(|step| !simulation.finds.contains(step));
    }
    assert!(missing.is_empty(), "no simulation is to find these missing: {missing:?}");
}

#[test]
fn every_step_is_one_of_the_protocol() {
    let mut uses: BTreeMap<Step, usize> = Step::ALL.iter().map(|&step| (step, 0)).collect();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut dirs = ["generation", "maintenance", "storage"].map(|dir| src.join(dir)).to_vec();
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => dirs.push(path),
                false => count(&fs::read_to_string(path).unwrap(), &mut uses),
            }
        }
    }
    count(&fs::read_to_string(src.join("disk/staged.rs")).unwrap(), &mut uses);
    let unused: Vec<_> = uses.iter().filter(|&(_, &count)| count == 0).collect();
    assert!(unused.is_empty(), "no step of the protocol: {unused:?}");
}

fn count(source: &str, uses: &mut BTreeMap<Step, usize>) {
    for rest in source.split("Step::").skip(1) {
        let name: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
        if let Some((_, count)) = uses.iter_mut().find(|(step, _)| format!("{step:?}") == name) {
            *count += 1;
        }
    }
}
