//! Omits each step of the protocol in turn. For every step there is a simulation that fails without the step and
//! succeeds with it.

mod foreign;
mod growth;
mod in_place;
mod play;
mod power;
mod readers;
mod replaced;
pub(crate) mod seat;
mod writers;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use play::{Fate, Play};

/// A simulation, and the steps whose absence it must detect.
struct Simulation {
    name: &'static str,
    play: Box<dyn Fn(Option<&'static str>) -> Fate>,
    finds: &'static [&'static str],
}

fn of(name: &'static str, play: fn(&Play) -> Fate, finds: &'static [&'static str]) -> Simulation {
    Simulation { name, play: Box::new(move |omitted| play(&Play::new(omitted))), finds }
}

fn on_a_real_disk(name: &'static str, play: fn(&Play) -> Fate, finds: &'static [&'static str]) -> Simulation {
    Simulation { name, play: Box::new(move |omitted| play(&Play::new(omitted).real())), finds }
}

/// Returns simulations in which processes act between each other's operations.
fn interleavings() -> Vec<Simulation> {
    vec![
        of("another before the name", writers::another_before_the_name, &["lock-writers"]),
        of("another since the beginning", writers::another_since_the_beginning, &["newest-under-lock"]),
        of("renamed after it was replaced", writers::renamed_after_it_was_replaced, &["rebase"]),
        of("expected generation", writers::expected_generation, &["expected-generation"]),
        of("view of what went", writers::view_of_what_went, &["expected-storage"]),
        of(
            "compacted after it was replaced",
            writers::compacted_after_it_was_replaced,
            &["move-is-up-to-date"],
        ),
        of("LOCK replaced before it is had", writers::lock_replaced_before_it_is_had, &["lock-is-named"]),
        of("LOCK replaced while it is held", writers::lock_replaced_while_it_is_held, &["never-replace"]),
        of("copy restored under a handle", replaced::copy_restored_under_a_handle, &["known-is-named"]),
        of(
            "directory replaced under a handle",
            replaced::directory_replaced_under_a_handle,
            &["dirs-are-named"],
        ),
        of("commit after a failed sync", writers::commit_after_a_failed_sync, &["poison"]),
        of("commit that waited for a failed one", writers::commit_that_waited_for_a_failed_one, &["poison"]),
        of(
            "orphans of a failed commit",
            writers::orphans_of_a_failed_commit,
            &["replace-orphan", "remove-orphan"],
        ),
        of("stage of a living writer", writers::stage_of_a_living_writer, &["stage-is-abandoned"]),
        of(
            "pinned across commits",
            readers::pinned_across_commits,
            &["pin-manifest", "lock-older-manifest", "pinned-holds-back"],
        ),
        of(
            "pinned across a collection",
            readers::pinned_across_a_collection,
            &["pin-manifest", "lock-older-manifest", "pinned-holds-back", "pinned-storages"],
        ),
        of(
            "collected before it is pinned",
            readers::manifest_collected_before_it_is_pinned,
            &["pin-is-named"],
        ),
        of("listing that a commit goes by", readers::listing_that_a_commit_goes_by, &["list-again"]),
        of(
            "listing that shows an older generation",
            readers::listing_that_shows_an_older_generation,
            &["list-again"],
        ),
        of(
            "in use, though not listed",
            readers::tensor_in_use_though_a_listing_does_not_show_it,
            &["known-is-newer"],
        ),
        of("newest read by others", readers::newest_is_read_by_others, &["pin-published"]),
        of("manifest that cannot be read", readers::manifest_that_cannot_be_read, &["unread-holds-back"]),
        of("garbage that is none", readers::garbage_that_is_none, &["garbage-is-garbage"]),
        of("table of a pinned generation", readers::table_of_a_pinned_generation, &["pinned-tables"]),
        of(
            "changed after it lost its name",
            readers::changed_after_it_lost_its_name,
            &["in-place-is-in-use"],
        ),
        of("two append", growth::two_append, &["lock-storage"]),
        of("two append and see no locks", growth::two_append_and_see_no_locks, &["grown-is-as-before"]),
        of(
            "append behind what is not listed",
            growth::append_behind_what_a_listing_does_not_show,
            &["certain-newest"],
        ),
        of(
            "growing file replaced before its lock",
            growth::file_replaced_before_it_is_locked,
            &["growth-is-named"],
        ),
        on_a_real_disk("growing file that is short", growth::file_that_is_short, &["growth-is-whole"]),
        of("tail that is damaged", growth::tail_that_is_damaged, &["tail-is-whole"]),
        on_a_real_disk("growing file with two names", growth::file_with_two_names, &["growth-has-one-name"]),
        on_a_real_disk("growing file that is lent", growth::file_that_is_lent, &["keep-stable"]),
        of("two change", in_place::two_change, &["lock-storage"]),
        of("changed file that was replaced", in_place::file_that_was_replaced, &["in-place-is-same"]),
        of("changed file that is short", in_place::file_that_is_short, &["in-place-is-whole"]),
        on_a_real_disk(
            "changed file with two names",
            in_place::file_with_two_names,
            &["in-place-has-one-name"],
        ),
        of("flushed before a power cut", in_place::flushed_before_a_power_cut, &["sync-in-place"]),
        of("flushed after a writer died", in_place::flushed_after_a_writer_died, &["sync-flushed-name"]),
        of("loss told to the loaded file", in_place::loss_that_the_loaded_file_is_told_of, &["sync-loaded"]),
        on_a_real_disk("flush of live elements", in_place::live_elements_that_are_lost, &["sync-loaded"]),
        on_a_real_disk("two flush what is lost", in_place::two_flush_what_is_lost, &["flush-alone"]),
        of("flush after a failed one", in_place::flush_after_a_failed_one, &["flush-once"]),
        of("adopted file changed before", foreign::changed_before_it_is_recorded, &["adopted-is-unchanged"]),
        of("adopted file changed since", foreign::changed_since_it_was_recorded, &["external-is-same"]),
        of("shared file changed before", foreign::changed_before_it_is_shared, &["shared-is-unchanged"]),
    ]
}

/// Returns the failure of a simulation, if it fails. A panic is a failure too.
fn fate(simulation: &Simulation, omitted: Option<&'static str>) -> Fate {
    catch_unwind(AssertUnwindSafe(|| (simulation.play)(omitted))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or(panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default())
    })
}

/// Runs each simulation with all steps, and then without each step that it must detect. Prints the failures.
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
                    println!("| {step} | {} | {line} |", simulation.name);
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

/// The steps that occur in two places.
const IN_TWO_PLACES: [&str; 3] = ["rename-store", "sync-new-root", "sync-parent"];

#[test]
fn every_step_in_the_sources_has_a_simulation_that_finds_it_missing() {
    let mut sources = steps_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    sources.sort();
    let simulations = interleavings().into_iter().chain(power::simulations());
    let found: BTreeSet<_> = simulations.flat_map(|simulation| simulation.finds).copied().collect();
    let mut found: Vec<_> = found.into_iter().chain(IN_TWO_PLACES).collect();
    found.sort();
    assert_eq!(sources, found);
}

/// Returns the names in each `step!` and `without_step!` of the source files in a directory.
fn steps_below(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            names.extend(steps_below(&path));
            continue;
        }
        let source = fs::read_to_string(path).unwrap();
        let named = source.split("step!(").skip(1).map(|rest| rest.split('"').nth(1).unwrap().to_owned());
        names.extend(named);
    }
    names
}
