//! Commands that are killed, fail or are interrupted. Each has its own test, so that the tests run in parallel.

use crate::injected::{Subject, failing, interrupted, killed};

fn import() -> Subject {
    Subject::writer(&["import", "many.safetensors", "rows.npy", "s.smap"])
}

fn create() -> Subject {
    Subject { store: "new.smap", ..Subject::writer(&["import", "rows.npy", "new.smap"]) }
}

fn view() -> Subject {
    Subject::writer(&["view", "s.smap", "new", "kept[::2]"])
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
fn case_01_import_killed_at_any_call_leaves_the_old_or_the_new() {
    killed(&import());
}

#[test]
fn case_01_import_killed_while_it_makes_the_store_leaves_none_or_a_whole_one() {
    killed(&create());
}

#[test]
fn case_01_view_killed_at_any_call_leaves_the_old_or_the_new() {
    killed(&view());
}

#[test]
fn case_01_mv_killed_at_any_call_leaves_the_old_or_the_new() {
    killed(&mv());
}

#[test]
fn case_01_rm_killed_at_any_call_leaves_the_old_or_the_new() {
    killed(&rm());
}

#[test]
fn case_01_append_killed_at_any_call_leaves_the_old_or_the_new() {
    killed(&append());
}

#[test]
fn case_01_compact_killed_at_any_call_leaves_the_old_or_the_new() {
    killed(&compact());
}

#[test]
fn case_01_gc_killed_at_any_call_leaves_every_tensor() {
    killed(&gc());
}

#[test]
fn import_that_fails_at_any_call_says_so() {
    failing(&import());
}

#[test]
fn import_that_fails_while_it_makes_the_store_says_so() {
    failing(&create());
}

#[test]
fn view_that_fails_at_any_call_says_so() {
    failing(&view());
}

#[test]
fn mv_that_fails_at_any_call_says_so() {
    failing(&mv());
}

#[test]
fn rm_that_fails_at_any_call_says_so() {
    failing(&rm());
}

#[test]
fn append_that_fails_at_any_call_says_so() {
    failing(&append());
}

#[test]
fn compact_that_fails_at_any_call_says_so() {
    failing(&compact());
}

#[test]
fn gc_that_fails_at_any_call_says_so() {
    failing(&gc());
}

#[test]
fn verify_that_fails_at_any_call_says_so() {
    failing(&verify());
}

#[test]
fn inspect_that_fails_at_any_call_says_so() {
    failing(&inspect());
}

#[test]
fn show_that_fails_at_any_call_says_so() {
    failing(&show());
}

#[test]
fn case_10_import_makes_interrupted_calls_again() {
    interrupted(&import());
}

#[test]
fn case_10_append_makes_interrupted_calls_again() {
    interrupted(&append());
}

#[test]
fn case_10_compact_makes_interrupted_calls_again() {
    interrupted(&compact());
}

#[test]
fn case_10_show_makes_interrupted_calls_again() {
    interrupted(&show());
}
