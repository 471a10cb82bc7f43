//! `follow` in another process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stridemap::Store;

use super::{element, save, url};
use crate::harness::{Deadline, Dir};

fn start(dir: &Dir, args: &[&str]) -> (Child, Deadline) {
    let child = dir.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Deadline::of(&child);
    (child, deadline)
}

#[test]
fn follower_sees_each_push_in_order_until_a_signal() {
    let dir = Dir::empty();
    let (store, url) = (Store::create(dir.path("s.smap")).unwrap(), url(&dir));
    let (mut child, _deadline) = start(&dir, &["follow", &url, "f.smap", "--interval", "20ms", "--json"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    for step in 0..10 {
        save(&store, "x", step);
        // The first push comes after follow has begun, which waits for the remote.
        dir.messages(&["push", "s.smap", &url]);
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let followed = Store::open(dir.path("f.smap")).unwrap();
        seen.push((line["generation"].as_u64().unwrap(), line["since"].as_u64(), element(&followed, "x")));
    }
    let expected: Vec<_> =
        (0..10).map(|step: i64| (step as u64 + 2, (step > 0).then_some(step as u64 + 1), step)).collect();
    assert_eq!(seen, expected);
    let began = Instant::now();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.starts_with(&format!("stridemap: following {url} into f.smap\n")), "{said}");
    assert!(
        said.contains("there is no store; check the URL, or push a store to it first; trying again in "),
        "{said}"
    );
    assert_eq!(dir.stdout(&["verify", "f.smap", "-q"]), "ok\n");
}

#[test]
fn follow_combines_pushes_and_ends_after_a_number_of_lines() {
    let dir = Dir::empty();
    let (store, url) = (Store::create(dir.path("s.smap")).unwrap(), url(&dir));
    save(&store, "x", 0);
    dir.messages(&["push", "s.smap", &url]);
    let once = |dir: &Dir| dir.stdout(&["follow", &url, "f.smap", "--count", "1", "-q"]);
    // The generation, the time, the bytes, and the tags.
    let fields = |line: String| -> Vec<String> { line.trim_end().split('\t').map(str::to_owned).collect() };
    let line = fields(once(&dir));
    assert!(line.len() == 3 && line[0] == "2" && line[1].ends_with('Z') && line[1].len() == 30, "{line:?}");
    assert!(line[2].parse::<u64>().unwrap() > 0, "{line:?}");
    save(&store, "x", 1);
    store.tag("v1").unwrap();
    dir.messages(&["push", "s.smap", &url]);
    let line = fields(once(&dir));
    assert_eq!((&*line[0], &line[3..]), ("4 since 2", &["tagged v1 (3)".to_owned()][..]), "{line:?}");
    dir.messages(&["tag", "-d", "s.smap", "v1"]);
    dir.messages(&["push", "s.smap", &url]);
    let shown = dir.on_terminal(80, &["follow", &url, "f.smap", "--count", "1", "-q"]);
    assert!(shown.starts_with("5  20") && shown.ends_with(" B received  untagged v1\n"), "{shown}");
    dir.messages(&["tag", "s.smap", "v2"]);
    dir.messages(&["push", "s.smap", &url]);
    let json: serde_json::Value =
        serde_json::from_str(&dir.stdout(&["follow", &url, "f.smap", "--count", "1", "-q", "--json"]))
            .unwrap();
    assert_eq!(
        (&json["generation"], &json["since"], &json["tagged"]["v2"]),
        (&6.into(), &5.into(), &5.into())
    );
    assert!(
        json["time"].as_str().unwrap().ends_with('Z') && json["received_bytes"].as_u64().is_some(),
        "{json}"
    );
}

#[test]
fn follow_ends_when_its_output_is_closed() {
    let dir = Dir::with_store();
    let url = url(&dir);
    dir.messages(&["push", "s.smap", &url]);
    let (mut child, _deadline) = start(&dir, &["follow", &url, "f.smap", "-q"]);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
