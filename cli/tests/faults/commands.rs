//! Commands that are killed, fail or are interrupted. Each has its own test, so that the tests run in parallel.

use crate::injected::{Subject, failing, interrupted, killed};

const IMPORT: Subject = Subject::writer(&["import", "many.safetensors", "rows.npy", "s.smap"]);
const CREATE: Subject = Subject::writer(&["import", "rows.npy", "new.smap"]).of("new.smap");
const VIEW: Subject = Subject::writer(&["view", "s.smap", "kept[::2]", "new"]);
const MV: Subject = Subject::writer(&["mv", "s.smap", "kept", "moved"]);
const RM: Subject = Subject::writer(&["rm", "s.smap", "kept", "part"]);
const APPEND: Subject = Subject::writer(&["append", "s.smap", "log", "rows.npy", "rows.npy"]);
const COMPACT: Subject = Subject::writer(&["compact", "s.smap"]);
const SALVAGE: Subject = Subject::writer(&["salvage", "s.smap", "new.smap"]).of("new.smap");
const SALVAGE_PLAN: Subject = Subject::reader(&["salvage", "-n", "s.smap"]);
const VERIFY: Subject = Subject::reader(&["verify", "s.smap"]);
const INSPECT: Subject = Subject::reader(&["info", "--all", "s.smap", "--json"]);
const SHOW: Subject = Subject::reader(&["show", "s.smap", "log[-20000:]", "--json"]);

macro_rules! tests {
    ($($name:ident: $check:ident($subject:ident);)*) => {
        $(#[test] fn $name() { $check(&$subject); })*
    };
}

tests! {
    import_killed_at_any_call_leaves_the_old_or_the_new_content: killed(IMPORT);
    import_killed_while_creating_the_store_leaves_none_or_a_complete_one: killed(CREATE);
    view_killed_at_any_call_leaves_the_old_or_the_new_content: killed(VIEW);
    mv_killed_at_any_call_leaves_the_old_or_the_new_content: killed(MV);
    rm_killed_at_any_call_leaves_the_old_or_the_new_content: killed(RM);
    append_killed_at_any_call_leaves_the_old_or_the_new_content: killed(APPEND);
    compact_killed_at_any_call_leaves_the_old_or_the_new_content: killed(COMPACT);
    salvage_killed_at_any_call_leaves_nothing_or_a_complete_store: killed(SALVAGE);
    import_reports_a_failure_at_any_call: failing(IMPORT);
    import_reports_a_failure_while_creating_the_store: failing(CREATE);
    view_reports_a_failure_at_any_call: failing(VIEW);
    mv_reports_a_failure_at_any_call: failing(MV);
    rm_reports_a_failure_at_any_call: failing(RM);
    append_reports_a_failure_at_any_call: failing(APPEND);
    compact_reports_a_failure_at_any_call: failing(COMPACT);
    salvage_reports_a_failure_at_any_call_and_leaves_nothing_or_a_complete_store: failing(SALVAGE);
    salvage_that_makes_nothing_reports_a_failure_at_any_call: failing(SALVAGE_PLAN);
    verify_reports_a_failure_at_any_call: failing(VERIFY);
    inspect_reports_a_failure_at_any_call: failing(INSPECT);
    show_reports_a_failure_at_any_call: failing(SHOW);
    import_repeats_interrupted_calls: interrupted(IMPORT);
    append_repeats_interrupted_calls: interrupted(APPEND);
    compact_repeats_interrupted_calls: interrupted(COMPACT);
    salvage_repeats_interrupted_calls: interrupted(SALVAGE);
    show_repeats_interrupted_calls: interrupted(SHOW);
}
