//! Tags, the log, restore and prune, and tagged generations in the arguments of other commands.

use std::fs;

use serde_json::{Value, json};
use stridemap::{StorageKind, Store, Tensor, Transaction};

use crate::harness::Dir;

/// The length of the tensors of [`with_tags`].
const LEN: usize = 10_000;

fn bytes(value: u8) -> Tensor {
    Tensor::from_vec(vec![value; LEN], &[LEN]).unwrap()
}

/// Creates a store with two tagged generations and one that is not tagged. Each tensor has a storage of its own.
///
/// | generation | tag | tensors |
/// |---|---|---|
/// | 3 | `v1` | `a`, `b` |
/// | 5 | `v2` | `a`, changed; `c` |
/// | 6 | | `c` |
fn with_tags() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.save("a", &bytes(1)).unwrap();
    store
        .write(|txn| {
            txn.save("b", &bytes(2))?;
            txn.message("two tensors");
            txn.tag("v1")
        })
        .unwrap();
    store.save("c", &Tensor::from_vec(vec![0u8; 1], &[1]).unwrap()).unwrap();
    store
        .write(|txn| {
            txn.save("a", &bytes(3))?;
            txn.remove("b")?;
            txn.set_attribute("", "step", "2")?;
            txn.tag("v2")
        })
        .unwrap();
    store.remove("a").unwrap();
    assert_eq!(store.generation(), 6);
    dir
}

/// Returns the JSON objects that a command prints, one per line.
fn lines(dir: &Dir, args: &[&str]) -> Vec<Value> {
    let text = dir.stdout(&[args, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Replaces the times in a text.
fn without_times(text: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in text.split(' ') {
        words.push(if word.len() == 30 && word.ends_with('Z') { "TIME" } else { word });
    }
    words.join(" ")
}

#[test]
fn tag_is_made_listed_replaced_and_removed() {
    let dir = Dir::with_store();
    assert_eq!(
        dir.messages(&["tag", "s.smap", "v1", "-m", "the first"]),
        "stridemap: tagged generation 2 as v1: generation 3\n"
    );
    assert_eq!(
        dir.refusal(&["tag", "s.smap", "v1"]),
        "tag \"v1\": the tag exists, and names generation 2; choose a different name, remove that tag first, or give \
         --force"
    );
    assert_eq!(
        dir.messages(&["tag", "s.smap", "v1", "--force"]),
        "stridemap: tagged generation 3 as v1, no longer generation 2: generation 4\n"
    );
    dir.messages(&["tag", "s.smap", "also v1", "--at", "v1"]);
    let tags = lines(&dir, &["tag", "s.smap"]);
    let of = |tag: &Value| (tag["v"].clone(), tag["name"].clone(), tag["generation"].clone());
    assert_eq!(
        tags.iter().map(of).collect::<Vec<_>>(),
        [(json!(1), json!("also v1"), json!(3)), (json!(1), json!("v1"), json!(3))]
    );
    let time = tags[0]["time"].as_str().unwrap();
    assert!(time.len() == 30 && time.ends_with('Z') && time.contains('T'), "{time}");
    let listed = dir.stdout(&["tag", "s.smap"]);
    let columns: Vec<&str> = listed.lines().next().unwrap().split('\t').collect();
    assert_eq!(columns, ["also v1", "3", time, "the first"]);

    assert_eq!(dir.stdout(&["tag", "-d", "s.smap", "v1", "-n"]).lines().last().unwrap(), "would free 0 B");
    assert_eq!(
        dir.messages(&["tag", "-d", "s.smap", "v1", "also v1"]),
        "stridemap: removed 2 tags: generation 6\n"
    );
    assert_eq!(dir.stdout(&["tag", "s.smap"]), "");
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
}

#[test]
fn dry_run_of_a_tag_changes_nothing() {
    let dir = Dir::with_store();
    assert_eq!(dir.stdout(&["tag", "s.smap", "v1", "-n"]), "would tag generation 2 as v1\n");
    assert_eq!(dir.stdout(&["tag", "s.smap"]), "");
}

#[test]
fn tag_that_is_removed_frees_what_only_it_kept() {
    let dir = with_tags();
    let said = dir.stdout(&["tag", "-d", "s.smap", "v1", "-n"]);
    assert!(
        said.starts_with("would remove v1, generation 3, ") && said.ends_with("would free 19.53 KiB\n"),
        "{said}"
    );
    assert_eq!(
        dir.messages(&["tag", "-d", "s.smap", "v1"]),
        "stridemap: removed v1, freed 19.53 KiB: generation 7\n"
    );
    assert_eq!(dir.store().at("v2").unwrap().load("a").unwrap().get::<u8>(&[0]).unwrap(), 3);
}

#[test]
fn unknown_tag_is_refused_with_those_that_there_are() {
    let dir = with_tags();
    let there = "no tag is named \"v3\"; the tags of s.smap are v2, v1";
    for args in [
        &["ls", "s.smap@v3"][..],
        &["export", "s.smap@v3", "x.npz"],
        &["verify", "s.smap@v3"],
        &["du", "s.smap@v3"],
        &["restore", "s.smap", "v3"],
        &["tag", "s.smap", "new", "--at", "v3"],
        &["tag", "-d", "s.smap", "v1", "v3"],
    ] {
        assert_eq!(dir.refusal(args), there, "{args:?}");
    }
    let none = Dir::with_store();
    assert_eq!(none.refusal(&["ls", "s.smap@v1"]), "no tag is named \"v1\"; s.smap has no tags");
    let store = none.store();
    let tag = |txn: &mut Transaction<'_>| (0..12).try_for_each(|i| txn.tag(&format!("t{i:02}")));
    store.write(tag).unwrap();
    let refusal = none.refusal(&["ls", "s.smap@v1"]);
    assert!(refusal.ends_with("t02 and 2 more tags; stridemap tag s.smap lists them"), "{refusal}");
}

#[test]
fn generation_is_named_by_its_number_while_it_is_kept() {
    let dir = with_tags();
    assert_eq!(dir.stdout(&["ls", "s.smap@3"]), "a\nb\n");
    assert_eq!(dir.stdout(&["ls", "s.smap@6"]), "c\n");
    let refusal = dir.refusal(&["ls", "s.smap@2"]);
    assert!(refusal.starts_with("open generation 2 of s.smap: it is not on disk"), "{refusal}");
    // A tag wins.
    dir.messages(&["tag", "s.smap", "6", "--at", "v1"]);
    assert_eq!(dir.stdout(&["ls", "s.smap@6"]), "a\nb\n");
}

#[test]
fn log_lists_the_tagged_generations_and_the_newest() {
    let dir = with_tags();
    let log = lines(&dir, &["log", "s.smap"]);
    let without_time = |entry: &Value| {
        let mut entry = entry.clone();
        assert_eq!(entry.as_object_mut().unwrap().remove("time").unwrap().as_str().unwrap().len(), 30);
        entry
    };
    assert_eq!(
        log.iter().map(without_time).collect::<Vec<_>>(),
        [
            json!({ "v": 1, "generation": 6, "tags": [], "message": null, "added": [], "changed": [],
                "removed": ["a"], "own_bytes": 0 }),
            json!({ "v": 1, "generation": 5, "tags": ["v2"], "message": null, "added": ["c"], "changed": ["a"],
                "removed": ["b"], "own_bytes": 10_000 }),
            json!({ "v": 1, "generation": 3, "tags": ["v1"], "message": "two tensors", "added": ["a", "b"],
                "changed": [], "removed": [], "own_bytes": 20_000 }),
        ]
    );
    let piped: Vec<String> =
        dir.stdout(&["log", "s.smap"]).lines().map(|line| line.replace('\t', " ")).collect();
    let piped: Vec<String> = piped.iter().map(|line| without_times(line)).collect();
    assert_eq!(
        piped,
        ["6 TIME (newest) 0 0 1 0 ", "5 TIME v2 1 1 1 10000 ", "3 TIME v1 2 0 0 20000 two tensors"]
    );
}

#[test]
fn log_leaves_out_a_newest_generation_that_is_like_the_last_tag() {
    let dir = Dir::with_store();
    dir.messages(&["tag", "s.smap", "v1"]);
    let tags =
        |dir: &Dir| lines(dir, &["log", "s.smap"]).iter().map(|it| it["tags"].clone()).collect::<Vec<_>>();
    assert_eq!(tags(&dir), [json!(["v1"])]);
    dir.stdout(&["attr", "set", "s.smap", "k", "v"]);
    assert_eq!(tags(&dir), [json!([]), json!(["v1"])]);
}

#[test]
fn log_fits_the_terminal_and_has_local_times() {
    let dir = with_tags();
    for width in [30, 60, 80, 140] {
        for line in dir.on_terminal(width, &["log", "s.smap"]).lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
    }
    let wide = dir.on_terminal(140, &["log", "s.smap"]);
    assert!(
        wide.starts_with("generation  time                 tags      +  ~  -  own bytes  message\n"),
        "{wide}"
    );
    assert!(wide.ends_with("  v1        2  0  0  19.53 KiB  two tensors\n"), "{wide}");
    let hour = |zone: &str| -> u32 {
        let mut command = dir.command(&["tag", "s.smap"]);
        let output = command.env("STRIDEMAP_COLUMNS", "140").env("TZ", zone).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (time, _) = text.lines().nth(1).unwrap().split_once(':').unwrap();
        time.split(' ').next_back().unwrap().parse().unwrap()
    };
    assert_eq!(hour("UTC-5"), (hour("UTC0") + 5) % 24);
}

#[test]
fn restore_brings_back_all_or_a_prefix() {
    let dir = with_tags();
    assert_eq!(
        dir.stdout(&["restore", "s.smap", "v1", "-n"]),
        "+ a\tuint8 [10000]\n+ b\tuint8 [10000]\n- c\tuint8 [1]\n@ step\n\
         would restore v1, generation 3: 2 added, 1 removed, 1 of the attributes\nv2 keeps it; to get it back: \
         stridemap restore s.smap v2 c\n"
    );
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "c\n");
    assert_eq!(
        dir.messages(&["restore", "s.smap", "v1", "b"]),
        "stridemap: restored b of v1, generation 3: 1 added: generation 7\n"
    );
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "b\nc\n");
    assert_eq!(
        dir.messages(&["restore", "s.smap", "v1", "--tag", "before"]),
        "stridemap: restored v1, generation 3: 1 added, 1 removed, 1 of the attributes, with generation 7 tagged before: \
         generation 8\nstridemap: note: before keeps it; to get it back: stridemap restore s.smap before c\n"
    );
    assert_eq!(dir.stdout(&["diff", "s.smap", "s.smap@v1"]), "equal: 2 tensors, 19.53 KiB\n");
    assert_eq!(
        dir.messages(&["restore", "s.smap", "v1"]),
        "stridemap: nothing to restore: the store has v1, generation 3 already\n"
    );
    assert_eq!(dir.stdout(&["ls", "s.smap@before"]), "b\nc\n");
    assert_eq!(dir.run(&["verify", "s.smap"]).stdout, "ok\n");
    let refusal = dir.refusal(&["restore", "s.smap", "v1", "x"]);
    assert!(refusal.starts_with("restore from generation 3 \"x\""), "{refusal}");
}

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
    assert!(run.stderr.contains("<--keep-last <N>|--keep-within <DURATION>|--keep-every <N>>"), "{run:?}");
    let run = dir.run(&["prune", "s.smap", "--keep-last", "1", "step*"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), "stridemap: prune: no tag matches \"step*\"\n"));
    for rule in [["--keep-last", "0"], ["--keep-every", "0"], ["--keep-within", "1 month"]] {
        assert_eq!(dir.run(&["prune", "s.smap", rule[0], rule[1]]).code, Some(2), "{rule:?}");
    }
    assert_eq!(lines(&dir, &["tag", "s.smap"]).len(), 2);
}

#[test]
fn commands_that_look_take_a_tagged_generation() {
    let dir = with_tags();
    assert_eq!(dir.stdout(&["ls", "s.smap@v1"]), "a\nb\n");
    assert_eq!(dir.stdout(&["ls", "s.smap@v2"]), "a\nc\n");
    let info = dir.json(&["info", "s.smap@v1"]);
    assert_eq!(info["store"]["path"], json!("s.smap@v1"));
    assert_eq!((&info["store"]["generation"], &info["store"]["tensor_count"]), (&json!(3), &json!(2)));
    assert_eq!(dir.stdout(&["show", "s.smap@v1", "a[:3]"]), "tensor([1, 1, 1], dtype=uint8)\n");
    assert_eq!(dir.json(&["stats", "s.smap@v2", "a"])["max"], json!(3));
    assert!(dir.stdout(&["tree", "s.smap@v1"]).starts_with("s.smap@v1\t"));
    assert!(
        dir.stdout(&["map", "s.smap@v1"]).contains("\tb")
            || dir.stdout(&["map", "s.smap@v1"]).contains("b\t")
    );
    assert!(!dir.stdout(&["plot", "s.smap@v1", "a"]).is_empty());
    dir.messages(&["report", "s.smap@v1", "-o", "r.html"]);
    assert!(fs::read_to_string(dir.path("r.html")).unwrap().contains("s.smap@v1"));
    assert_eq!(dir.stdout(&["attr", "get", "s.smap@v2", "step"]), "2\n");
    assert_eq!(dir.stdout(&["attr", "list", "s.smap@v1"]), "");
    assert_eq!(dir.stdout(&["verify", "s.smap@v1"]), "ok\n");
    assert_eq!(dir.stdout(&["verify", "s.smap@v1", "b"]), "ok\n");

    let diff = dir.run(&["diff", "s.smap@v1", "s.smap@v2", "--json"]);
    assert_eq!(diff.code, Some(1));
    let diff: Value = serde_json::from_str(&diff.stdout).unwrap();
    assert_eq!(diff["b"]["path"], json!("s.smap@v2"));
    let kinds: Vec<_> =
        diff["tensors"].as_array().unwrap().iter().map(|it| (&it["name"], &it["kind"])).collect();
    assert_eq!(
        kinds,
        [
            (&json!("a"), &json!("values")),
            (&json!("b"), &json!("only_in_a")),
            (&json!("c"), &json!("only_in_b"))
        ]
    );

    dir.messages(&["export", "s.smap@v1", "b.npy", "b"]);
    dir.messages(&["export", "s.smap@v1", "copy.smap"]);
    assert_eq!(dir.stdout(&["diff", "copy.smap", "s.smap@v1"]), "equal: 2 tensors, 19.53 KiB\n");
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "c\n");
}

#[test]
fn path_that_exists_wins_over_a_tag() {
    let dir = with_tags();
    dir.messages(&["export", "s.smap@v1", "b.npy", "b"]);
    fs::rename(dir.path("b.npy"), dir.path("s.smap@v1")).unwrap();
    assert_eq!(dir.stdout(&["info", "s.smap@v1"]).lines().nth(1).unwrap(), "format\tnpy");
}

#[test]
fn commands_that_change_the_store_refuse_a_tagged_generation() {
    let dir = with_tags();
    dir.write_npy("x.npy", "|u1", "(1,)", &[1]);
    for args in [
        &["rm", "s.smap@v1", "a"][..],
        &["mv", "s.smap@v1", "a", "x"],
        &["ln", "s.smap@v1", "a", "x"],
        &["view", "s.smap@v1", "a[0]", "x"],
        &["append", "s.smap@v1", "a", "x.npy"],
        &["import", "x.npy", "s.smap@v1"],
        &["attr", "set", "s.smap@v1", "k", "v"],
        &["tag", "s.smap@v1", "new"],
        &["restore", "s.smap@v1", "v1"],
        &["prune", "s.smap@v1", "--keep-last", "1"],
        &["compact", "s.smap@v1"],
        &["gc", "s.smap@v1"],
        &["log", "s.smap@v1"],
        &["watch", "s.smap@v1"],
    ] {
        assert_eq!(
            dir.refusal(args),
            "s.smap@v1: a tagged generation can be looked at, but this command is about the newest one; name the store, \
             s.smap, or make the tagged generation the newest again: stridemap restore s.smap v1",
            "{args:?}"
        );
    }
}

#[test]
fn removed_or_replaced_tensors_are_said_to_be_kept_by_a_tag_or_lost() {
    let dir = Dir::with_store();
    dir.messages(&["tag", "s.smap", "v1"]);
    // A view can be made again, and the tag keeps it.
    assert_eq!(
        dir.stdout(&["rm", "s.smap", "points_t", "-n"]),
        "would remove points_t\nv1 keeps it; to get it back: stridemap restore s.smap v1 points_t\n"
    );
    assert_eq!(
        dir.messages(&["mv", "s.smap", "points_t", "points", "--force"]),
        "stridemap: renamed points_t to points, replacing float32 [3, 2]: generation 4\nstridemap: note: v1 keeps it; to \
         get it back: stridemap restore s.smap v1 points; -n shows what else that changes\n"
    );
    dir.messages(&["restore", "s.smap", "v1", "points"]);
    assert_eq!(dir.stdout(&["diff", "s.smap", "s.smap@v1"]), "equal: 3 tensors, 56 B\n");

    // No tag has the new tensor.
    dir.write_safetensors(
        "m.safetensors",
        r#"{"x":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#,
        &[0; 2],
    );
    let imported = "stridemap: imported 1 tensor, 2 B, into s.smap: generation ";
    assert_eq!(dir.messages(&["import", "m.safetensors", "s.smap"]), format!("{imported}6\n"));
    let lost = "no tag keeps it, so it cannot be brought back; --tag NAME tags the state before a change\n";
    assert_eq!(
        dir.messages(&["import", "m.safetensors", "s.smap", "--force"]),
        format!("{imported}7\nstridemap: note: {lost}")
    );
    assert_eq!(dir.stdout(&["rm", "s.smap", "x", "-n"]), format!("would remove x\nwould free 2 B\n{lost}"));
    assert_eq!(
        dir.messages(&["rm", "s.smap", "x", "--tag", "with x"]),
        "stridemap: removed x, with generation 7 tagged 'with x': generation 8\nstridemap: note: 'with x' keeps it; to get \
         it back: stridemap restore s.smap 'with x' x\n"
    );
    dir.messages(&["restore", "s.smap", "with x", "x"]);
    assert_eq!(dir.stdout(&["ls", "s.smap", "x"]), "x\n");
}

#[test]
fn tag_before_a_change_is_made_in_its_commit() {
    let dir = Dir::with_store();
    dir.write_npy("more.npy", "<f4", "(1, 2)", &[0; 8]);
    dir.write_safetensors(
        "m.safetensors",
        r#"{"x":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#,
        &[0; 2],
    );
    dir.store().create_growable("log", stridemap::DType::F32, &[3, 2], 9).unwrap();
    for (index, args) in [
        &["view", "s.smap", "points[0]", "first"][..],
        &["ln", "s.smap", "points", "again"],
        &["mv", "s.smap", "again", "moved"],
        &["append", "s.smap", "log", "more.npy"],
        &["import", "m.safetensors", "s.smap"],
        &["attr", "set", "s.smap", "k", "v"],
        &["attr", "rm", "s.smap", "k"],
        &["rm", "s.smap", "moved"],
    ]
    .iter()
    .enumerate()
    {
        let (before, tag) = (dir.store().generation(), format!("t{index}"));
        let run = dir.run(&[args, &["--tag", &tag][..]].concat());
        assert_eq!(run.code, Some(0), "{args:?}: {run:?}");
        assert!(
            run.stderr.is_empty() || run.stderr.contains(&format!(", with generation {before} tagged {tag}")),
            "{run:?}"
        );
        let store = dir.store();
        assert_eq!(store.generation(), before + 1, "{args:?}");
        assert_eq!(store.tags().unwrap().last().unwrap().generation, before, "{args:?}");
    }
    // --force replaces tensors, but not the tag.
    assert_eq!(
        dir.refusal(&["import", "m.safetensors", "s.smap", "--force", "--tag", "t0"]),
        "--tag t0: the tag exists; choose a different name"
    );
    assert_eq!(
        dir.refusal(&["import", "m.safetensors", "new.smap", "--tag", "t0"]),
        "import --tag t0: there is no store yet whose state could be tagged; to tag what is imported, afterwards: \
         stridemap tag new.smap t0"
    );
}

#[test]
fn tag_says_which_tensors_still_change() {
    let dir = Dir::with_store();
    dir.store().write(|txn| txn.save_as("counter", &0i64, StorageKind::Mutable)).unwrap();
    assert_eq!(
        dir.messages(&["tag", "s.smap", "v1"]),
        "stridemap: tagged generation 3 as v1: generation 4\nstridemap: note: 1 tensor is mutable or live, such as \
         counter: the tag does not keep their elements, which change in place\n"
    );
}

#[test]
fn du_shows_what_tags_hold_and_what_one_of_them_has() {
    let dir = with_tags();
    let usage = dir.json(&["du", "s.smap"]);
    assert_eq!((&usage["reachable_bytes"], &usage["held_bytes"]), (&json!(1), &json!(0)));
    let sum: u64 = ["reachable_bytes", "tagged_bytes", "held_bytes", "reclaimable_bytes", "metadata_bytes"]
        .iter()
        .map(|key| usage[key].as_u64().unwrap())
        .sum();
    assert_eq!(json!(sum), usage["folder_bytes"]);
    // Three storages of 10,000 bytes, and what is left of the manifests.
    assert!((30_000..40_000).contains(&usage["tagged_bytes"].as_u64().unwrap()), "{usage}");
    assert!(dir.on_terminal(120, &["du", "-v", "s.smap"]).contains("generation 3 is tagged"));
    assert_eq!(
        dir.json(&["du", "s.smap@v1"]),
        json!({ "v": 1, "generation": 3, "storage_bytes": 20_000, "own_bytes": 20_000, "external_bytes": 0 })
    );
    assert_eq!(dir.stdout(&["du", "s.smap@v2"]), "generation\t5\nstorages\t10001\nown\t10000\n");
    assert_eq!(dir.stdout(&["du", "s.smap@v1", "a"]), "a\t1\t10000\t0\n");
}

#[test]
fn damage_to_what_only_a_tag_needs_names_the_tag() {
    let dir = with_tags();
    let storage = dir.store().at("v1").unwrap().load("b").unwrap().storage_id().unwrap();
    fs::write(dir.path(format!("s.smap/storages/{storage:016x}.bin")), vec![9; LEN]).unwrap();
    let run = dir.run(&["verify", "s.smap"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("tags that lose something: v1"), "{run:?}");
    let run = dir.run(&["verify", "s.smap", "--json"]);
    let record: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(record["findings"][0]["tags"], json!(["v1"]));
    assert_eq!(dir.run(&["verify", "s.smap@v1"]).code, Some(1));
    assert_eq!(dir.stdout(&["verify", "s.smap@v2"]), "ok\n");
}
