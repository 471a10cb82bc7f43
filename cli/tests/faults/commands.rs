//! Commands that are killed, fail or are interrupted. Each has its own test, so that the tests run in parallel.

use crate::injected::{Subject, failing, interrupted, killed};

fn import() -> Subject {
    Subject::writer(&["import", "many.safetensors", "rows.npy", "s.smap"])
}

fn create() -> Subject {
    Subject { store: "new.smap", ..Subject::writer(&["import", "rows.npy", "new.smap"]) }
}

fn view() -> Subject {
    Subject::writer(&["view", "s.smap", "kept[::2]", "new"])
}

fn mv() -> Subject {
    Subject::writer(&["mv", "s.smap", "kept", "moved"])
}

fn rm() -> Subject {
    Subject::writer(&["rm", "s.smap", "kept", "part"])
}

fn append() -> Subject {
    Subject::writer(&["append", "s.smap", "log", "rows.npy", "rows.npy"])
}

fn compact() -> Subject {
    Subject::writer(&["compact", "s.smap"])
}

fn gc() -> Subject {
    Subject::writer(&["gc", "s.smap"])
}

fn salvage() -> Subject {
    Subject { store: "new.smap", ..Subject::writer(&["salvage", "s.smap", "new.smap"]) }
}

fn salvage_plan() -> Subject {
    Subject::reader(&["salvage", "--verify-only", "s.smap"])
}

fn verify() -> Subject {
    Subject::reader(&["verify", "s.smap"])
}

fn inspect() -> Subject {
    Subject::reader(&["inspect", "s.smap", "--json"])
}

fn show() -> Subject {
    Subject::reader(&["show", "s.smap", "log[-20000:]", "--json"])
}

#[test]
fn import_killed_at_any_call_leaves_the_old_or_the_new_content() {
    killed(&import());
}

#[test]
fn import_killed_while_creating_the_store_leaves_none_or_a_complete_one() {
    killed(&create());
}

#[test]
fn view_killed_at_any_call_leaves_the_old_or_the_new_content() {
    killed(&view());
}

#[test]
fn mv_killed_at_any_call_leaves_the_old_or_the_new_content() {
    killed(&mv());
}

#[test]
fn rm_killed_at_any_call_leaves_the_old_or_the_new_content() {
    killed(&rm());
}

#[test]
fn append_killed_at_any_call_leaves_the_old_or_the_new_content() {
    killed(&append());
}

#[test]
fn compact_killed_at_any_call_leaves_the_old_or_the_new_content() {
    killed(&compact());
}

#[test]
fn gc_killed_at_any_call_leaves_every_tensor() {
    killed(&gc());
}

#[test]
fn salvage_killed_at_any_call_leaves_nothing_or_a_complete_store() {
    killed(&salvage());
}

#[test]
fn import_reports_a_failure_at_any_call() {
    failing(&import());
}

#[test]
fn import_reports_a_failure_while_creating_the_store() {
    failing(&create());
}

#[test]
fn view_reports_a_failure_at_any_call() {
    failing(&view());
}

#[test]
fn mv_reports_a_failure_at_any_call() {
    failing(&mv());
}

#[test]
fn rm_reports_a_failure_at_any_call() {
    failing(&rm());
}

#[test]
fn append_reports_a_failure_at_any_call() {
    failing(&append());
}

#[test]
fn compact_reports_a_failure_at_any_call() {
    failing(&compact());
}

#[test]
fn gc_reports_a_failure_at_any_call() {
    failing(&gc());
}

#[test]
fn salvage_reports_a_failure_at_any_call_and_leaves_nothing_or_a_complete_store() {
    failing(&salvage());
}

#[test]
fn salvage_that_makes_nothing_reports_a_failure_at_any_call() {
    failing(&salvage_plan());
}

#[test]
fn verify_reports_a_failure_at_any_call() {
    failing(&verify());
}

#[test]
fn inspect_reports_a_failure_at_any_call() {
    failing(&inspect());
}

#[test]
fn show_reports_a_failure_at_any_call() {
    failing(&show());
}

#[test]
fn import_repeats_interrupted_calls() {
    interrupted(&import());
}

#[test]
fn append_repeats_interrupted_calls() {
    interrupted(&append());
}

#[test]
fn compact_repeats_interrupted_calls() {
    interrupted(&compact());
}

#[test]
fn salvage_repeats_interrupted_calls() {
    interrupted(&salvage());
}

#[test]
fn show_repeats_interrupted_calls() {
    interrupted(&show());
}
