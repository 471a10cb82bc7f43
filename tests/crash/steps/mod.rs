//! Omits each step of the protocol in turn. For every step there is a simulation that fails without the step and
//! succeeds with it.

mod filled;
mod foreign;
mod growth;
mod history;
mod in_place;
mod play;
mod power;
mod readers;
mod receive;
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
        of("commit before the rename", writers::commit_before_the_rename, &["lock-writers"]),
        of("commit after begin", writers::commit_after_begin, &["newest-under-lock"]),
        of("rename of a replaced tensor", writers::rename_of_a_replaced_tensor, &["rebase"]),
        of("change of what was read", writers::change_of_what_was_read, &["reads-hold"]),
        of("view of a removed tensor", writers::view_of_a_removed_tensor, &["expected-storage"]),
        of(
            "tensor replaced during compaction",
            writers::tensor_replaced_during_compaction,
            &["move-is-up-to-date"],
        ),
        of("LOCK replaced before it is taken", writers::lock_replaced_before_it_is_taken, &["lock-is-named"]),
        of("LOCK replaced while it is held", writers::lock_replaced_while_it_is_held, &["never-replace"]),
        of("copy restored under a handle", replaced::copy_restored_under_a_handle, &["known-is-named"]),
        of(
            "directory replaced under a handle",
            replaced::directory_replaced_under_a_handle,
            &["dirs-are-named"],
        ),
        of("commit after a failed sync", writers::commit_after_a_failed_sync, &["poison"]),
        of("commit waiting for a failed one", writers::commit_waiting_for_a_failed_one, &["poison"]),
        of(
            "orphans of a failed commit",
            writers::orphans_of_a_failed_commit,
            &["replace-orphan", "remove-orphan"],
        ),
        of(
            "unfinished storage of a running writer",
            writers::unfinished_storage_of_a_running_writer,
            &["stage-is-abandoned"],
        ),
        of(
            "storage that others fill",
            filled::storage_that_others_fill,
            &["stage-is-abandoned", "digest-filled"],
        ),
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
            "manifest collected before it is pinned",
            readers::manifest_collected_before_it_is_pinned,
            &["pin-is-named"],
        ),
        of("commit during a listing", readers::commit_during_a_listing, &["list-again"]),
        of("older generation listed as newest", readers::older_generation_listed_as_newest, &["list-again"]),
        of(
            "tensor in use by an unlisted generation",
            readers::tensor_in_use_by_an_unlisted_generation,
            &["known-is-newer"],
        ),
        of("newest generation is pinned", readers::newest_generation_is_pinned, &["pin-published"]),
        of("unreadable manifest", readers::unreadable_manifest, &["unread-holds-back"]),
        of("garbage that is in use", readers::garbage_that_is_in_use, &["garbage-is-garbage"]),
        of("table of a pinned generation", readers::table_of_a_pinned_generation, &["pinned-tables"]),
        of("change of an unnamed tensor", readers::change_of_an_unnamed_tensor, &["in-place-is-in-use"]),
        of("storage that a tag keeps", history::storage_that_a_tag_keeps, &["tag-keeps-dropped"]),
        of("storage that a late tag keeps", history::storage_that_a_late_tag_keeps, &["tag-keeps-garbage"]),
        of("table that a tag keeps", history::table_that_a_tag_keeps, &["tag-keeps-table"]),
        of(
            "tag removed under a reader",
            history::tag_removed_under_a_reader,
            &["released-holds-back", "released-is-gone"],
        ),
        of("tag made again under a reader", history::tag_made_again_under_a_reader, &["kept-manifest-stays"]),
        of("tag made again and kept", history::tag_made_again_and_kept, &["tagged-again-stays"]),
        of(
            "tag removed by a writer that fails",
            history::tag_removed_by_a_writer_that_fails,
            &["garbage-of-before"],
        ),
        of("collection during a restore", history::collection_during_a_restore, &["pin-manifest"]),
        of(
            "view of a removed tensor beside a restore",
            history::view_of_a_removed_tensor_beside_a_restore,
            &["restored-has-storage"],
        ),
        of("collection during a receive", receive::collection_during_a_receive, &["received-is-named"]),
        of("append after a restore", history::append_after_a_restore, &[]),
        of("two appends", growth::two_appends, &["lock-storage"]),
        of(
            "two appends without visible locks",
            growth::two_appends_without_visible_locks,
            &["grown-is-as-before"],
        ),
        of("append after an unlisted commit", growth::append_after_an_unlisted_commit, &["certain-newest"]),
        of(
            "growing file replaced before its lock",
            growth::file_replaced_before_it_is_locked,
            &["growth-is-named"],
        ),
        on_a_real_disk("truncated growing file", growth::truncated_file, &["growth-is-whole"]),
        of("damaged tail", growth::damaged_tail, &["tail-is-whole"]),
        on_a_real_disk("growing file with two names", growth::file_with_two_names, &["growth-has-one-name"]),
        on_a_real_disk("borrowed growing file", growth::borrowed_file, &["keep-stable"]),
        of("two changes", in_place::two_changes, &["lock-storage"]),
        of("replaced mutable file", in_place::replaced_file, &["in-place-is-same"]),
        of("truncated mutable file", in_place::truncated_file, &["in-place-is-whole"]),
        on_a_real_disk(
            "mutable file with two names",
            in_place::file_with_two_names,
            &["in-place-has-one-name"],
        ),
        of("flushed before a power cut", in_place::flushed_before_a_power_cut, &["sync-in-place"]),
        of("flushed after a writer died", in_place::flushed_after_a_writer_died, &["sync-flushed-name"]),
        of(
            "write error on the loaded descriptor",
            in_place::write_error_on_the_loaded_descriptor,
            &["sync-loaded"],
        ),
        on_a_real_disk(
            "write error on live elements",
            in_place::write_error_on_live_elements,
            &["sync-loaded"],
        ),
        on_a_real_disk(
            "two flushes after a write error",
            in_place::two_flushes_after_a_write_error,
            &["flush-alone"],
        ),
        of("killed during a change", in_place::killed_during_a_change, &["mark-changing", "unmark"]),
        of("flush after a failed one", in_place::flush_after_a_failed_one, &["flush-once"]),
        of(
            "file changed before its adoption",
            foreign::changed_before_it_is_recorded,
            &["adopted-is-unchanged"],
        ),
        of("file changed after its adoption", foreign::changed_since_it_was_recorded, &["external-is-same"]),
        of(
            "file changed before its blocks are shared",
            foreign::changed_before_it_is_shared,
            &["shared-is-unchanged"],
        ),
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
    assert!(survivors.is_empty(), "these omissions were not detected: {survivors:?}");
}

#[test]
fn every_omitted_check_is_detected_between_processes() {
    check(interleavings());
}

#[test]
fn every_omitted_sync_and_rename_is_detected_after_a_power_cut() {
    check(power::simulations());
}

#[test]
fn every_omitted_step_of_a_receive_is_detected_after_a_power_cut() {
    check(receive::simulations());
}

/// The steps that occur in more than one place, once for each further one.
const IN_MORE_PLACES: [&str; 4] =
    ["sync-parent", "sync-storages-dir", "sync-storages-dir", "sync-table-name"];

#[test]
fn every_step_in_the_sources_has_a_simulation_that_detects_its_absence() {
    let mut sources = steps_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    sources.sort();
    let simulations = interleavings().into_iter().chain(power::simulations()).chain(receive::simulations());
    let found: BTreeSet<_> = simulations.flat_map(|simulation| simulation.finds).copied().collect();
    let mut found: Vec<_> = found.into_iter().chain(IN_MORE_PLACES).collect();
    found.sort();
    assert_eq!(sources, found);
}

/// Returns the names in each `step!` and `if_test_omits_step!` of the source files in a directory.
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
