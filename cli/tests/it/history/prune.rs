//! Removing tags by rules.

use serde_json::Value;
use stridemap::Store;

use super::{bytes, lines, with_tags};
use crate::harness::Dir;

#[test]
fn prune_removes_the_tags_that_no_rule_keeps() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    for step in 0..6 {
        let name = if step == 1 { "best".to_owned() } else { format!("step{step}") };
        store
            .write(|txn| {
                txn.save("x", &bytes(step))?;
                txn.tag(&name)
            })
            .unwrap();
    }
    drop(store);
    let names = |dir: &Dir| -> Vec<Value> {
        lines(dir, &["tag", "s.smap"]).iter().map(|it| it["name"].clone()).collect()
    };
    let said = dir.stdout(&["prune", "s.smap", "--keep-last", "2", "step*", "-n"]);
    let removed: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("would remove ")?.split(',').next()).collect();
    assert_eq!(removed, ["step0", "step2", "step3"]);
    assert!(said.ends_with("\nwould free 29.30 KiB\n"), "{said}");
    assert_eq!(names(&dir).len(), 6);
    assert_eq!(
        dir.messages(&["prune", "s.smap", "--keep-last", "2", "step*"]),
        "stridemap: removed 3 tags, freed 29.30 KiB: generation 8\n"
    );
    assert_eq!(names(&dir), ["best", "step4", "step5"]);
    assert_eq!(
        dir.messages(&["prune", "s.smap", "--keep-within", "7d"]),
        "stridemap: nothing to prune: the rules keep 3 tags\n"
    );
    // Generations 3, 6 and 7: 3 and 7 are the last of their four.
    assert!(
        dir.messages(&["prune", "s.smap", "--keep-every", "4"]).contains("removed step4, freed 9.77 KiB")
    );
    assert_eq!(names(&dir), ["best", "step5"]);
    assert_eq!(dir.stdout(&["ls", "s.smap@best"]), "x\n");
}

#[test]
fn prune_without_a_rule_or_a_match_is_refused() {
    let dir = with_tags();
    let run = dir.run(&["prune", "s.smap"]);
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr.contains("give at least one: --keep-last N, --keep-within DURATION, --keep-every N"),
        "{run:?}"
    );
    let run = dir.run(&["prune", "s.smap", "--keep-last", "1", "step*"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), "stridemap: prune: no tag matches \"step*\"\n"));
    for rule in [["--keep-last", "0"], ["--keep-every", "0"], ["--keep-within", "1 month"]] {
        assert_eq!(dir.run(&["prune", "s.smap", rule[0], rule[1]]).code, Some(2), "{rule:?}");
    }
    let run = dir.run(&["prune", "s.smap", "--keep-last", "-1"]);
    assert!(
        run.code == Some(2)
            && run.stderr.contains("expected a whole number, at least 1")
            && !run.stderr.contains("tip"),
        "{run:?}"
    );
    let run = dir.run(&["prune", "s.smap", "--keep-within", "7"]);
    assert!(run.stderr.contains("expected a number with a unit, up to weeks: 90m"), "{run:?}");
    assert_eq!(lines(&dir, &["tag", "s.smap"]).len(), 2);
}

#[test]
fn prune_takes_whole_names() {
    let dir = Dir::with_store();
    for tag in ["best", "best-2", "a*", "ab"] {
        dir.messages(&["tag", "s.smap", tag]);
    }
    let kept = |args: &[&str], kept: &str| {
        let args = [&["prune", "s.smap", "--keep-last", "1"], args].concat();
        let said = dir.messages(&args);
        assert_eq!(said, format!("stridemap: nothing to prune: the rules keep {kept}\n"), "{args:?}");
    };
    kept(&["best"], "1 tag");
    kept(&["*-2"], "1 tag");
    kept(&["a*"], "1 tag");
    assert_eq!(
        dir.refusal(&["prune", "s.smap", "--keep-last", "1", "bes"]),
        "no tag is named \"bes\"; the tags of s.smap are ab, 'a*', best-2, best"
    );
    assert_eq!(
        dir.stdout(&["prune", "s.smap", "--keep-last", "1", "best*", "-n"]).lines().count(),
        2,
        "best goes, and nothing is freed"
    );
}
