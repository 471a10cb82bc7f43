//! The log.

use serde_json::{Value, json};

use super::{lines, with_tags, without_times};
use crate::harness::{Dir, json_lines};

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
                "removed": ["a"], "own_bytes": 0, "error": null }),
            json!({ "v": 1, "generation": 5, "tags": ["v2"], "message": null, "added": ["c"], "changed": ["a"],
                "removed": ["b"], "own_bytes": 10_000, "error": null }),
            json!({ "v": 1, "generation": 3, "tags": ["v1"], "message": "two tensors", "added": ["a", "b"],
                "changed": [], "removed": [], "own_bytes": 20_000, "error": null }),
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
fn log_shows_a_generation_that_cannot_be_read_and_the_others() {
    let dir = with_tags();
    dir.flip("s.smap/generations/0000000000000005.man", 40);
    let run = dir.run(&["log", "s.smap"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let lines: Vec<String> = run.stdout.lines().map(|line| without_times(&line.replace('\t', " "))).collect();
    assert_eq!(
        lines,
        [
            "6 TIME (newest) 1 0 2 0 ",
            "5 TIME v2 ? ? ? 10000 (cannot be read)",
            "3 TIME v1 2 0 0 20000 two tensors"
        ]
    );
    assert!(
        run.stderr.starts_with("stridemap: generation 5 cannot be read: ")
            && run.stderr.contains("generations/0000000000000005.man"),
        "{run:?}"
    );
    let run = dir.run(&["log", "s.smap", "--json"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let entries = json_lines(&run.stdout);
    assert_eq!((&entries[1]["tags"], &entries[1]["added"]), (&json!(["v2"]), &Value::Null));
    assert!(entries[1]["error"].as_str().unwrap().contains("0000000000000005.man"), "{entries:?}");
    assert_eq!((&entries[0]["error"], &entries[2]["tags"]), (&Value::Null, &json!(["v1"])));
}
