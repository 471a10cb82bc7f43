//! URLs where a path is needed, and URLs that lead nowhere.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{process::Command, thread};

use super::url;
use crate::harness::{Deadline, Dir};

#[test]
fn commands_that_write_refuse_a_url_and_say_what_to_do() {
    let dir = Dir::with_store();
    dir.write_npy("x.npy", "|u1", "(1,)", &[0]);
    let url = url(&dir);
    dir.messages(&["push", "s.smap", &url]);
    let url = url.as_str();
    for args in [
        &["import", "x.npy", url][..],
        &["import", url, "new.smap"],
        &["append", url, "points", "x.npy"],
        &["append", "s.smap", "points", url],
        &["view", url, "points", "new"],
        &["mv", url, "points", "new"],
        &["rm", url, "points"],
        &["rm", url, "points", "-n"],
        &["attr", "set", url, "a", "b"],
        &["attr", "rm", url, "a"],
        &["tag", url, "v1"],
        &["tag", "-d", url, "v1"],
        &["restore", url, "v1"],
        &["compact", url],
        &["salvage", url, "new.smap"],
        &["salvage", "s.smap", url],
        &["log", url, "--follow"],
        &["export", "s.smap", &format!("{url}/x.npy")],
        &["export", "s.smap", &format!("{url}/x.smap")],
        &["report", "s.smap", "-o", &format!("{url}/x.html")],
        &["plot", "s.smap", "points", "-o", &format!("{url}/x.png")],
        &["push", url, url],
        &["pull", url, url],
        &["follow", url, url],
    ] {
        let said = dir.refusal(args);
        assert!(
            said.starts_with(url) && said.contains("this must be a path on this machine"),
            "{args:?}: {said}"
        );
        assert!(said.contains("stridemap pull") && said.contains("stridemap push"), "{args:?}: {said}");
    }
    for args in [
        &["push", "s.smap", &format!("{url}@v1")][..],
        &["pull", &format!("{url}@v1"), "p.smap"],
        &["log", &format!("{url}@v1")],
        &["prune", &format!("{url}@v1")],
    ] {
        let said = dir.refusal(args);
        assert!(
            said.contains("this command is about the newest generation, and \"v1\" names a tag"),
            "{said}"
        );
    }
    let said = dir.refusal(&["log", &format!("{url}@10")]);
    assert!(said.contains("\"10\" names an earlier one; name "), "{said}");
}

#[test]
fn directory_of_a_local_store_is_no_remote() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "other.smap"]);
    std::os::unix::fs::symlink(dir.path("s.smap"), dir.path("link")).unwrap();
    for name in ["s.smap", "other.smap", "link"] {
        let url = format!("file://{}", dir.path(name).display());
        for args in [
            &["push", "s.smap", &url][..],
            &["push", "s.smap", &url, "-n"],
            &["pull", &url, "p.smap"],
            &["pull", &url, "p.smap", "points"],
            &["follow", &url, "p.smap"],
            &["prune", &url],
            &["ls", &url],
            &["ls", &format!("{url}@v1")],
        ] {
            let said = dir.refusal(args);
            assert!(said.starts_with(&format!("open {url}: this is a local store, not a remote")), "{said}");
            assert!(said.contains("; open it by its path, /"), "{said}");
        }
        let inside = format!("{url}/storages/remote");
        let said = dir.refusal(&["push", "s.smap", &inside]);
        assert!(said.starts_with(&format!("open {inside}: this is inside a local store, /")), "{said}");
    }
    assert_eq!(dir.stdout(&["verify", "other.smap", "-q"]), "ok\n");
}

#[test]
fn arguments_in_the_wrong_order_are_refused_with_the_right_one() {
    let dir = Dir::with_store();
    let url = url(&dir);
    for (command, order, meant) in [
        ("push", "STORE URL", format!("push s.smap '{url}'")),
        ("pull", "URL STORE", format!("pull '{url}' s.smap")),
        ("follow", "URL STORE", format!("follow '{url}' s.smap")),
    ] {
        let args = match command {
            "push" => [command, &url, "s.smap"],
            _ => [command, "s.smap", &url],
        };
        let why = format!("the arguments are {order}, in this order; did you mean stridemap {meant}?");
        assert_eq!(dir.refusal(&args), format!("{command}: {why}"));
    }
}

#[test]
fn directory_of_a_remote_is_named_by_its_url() {
    let dir = Dir::with_store();
    dir.write_npy("x.npy", "|u1", "(1,)", &[0]);
    dir.messages(&["push", "s.smap", &url(&dir)]);
    let remote = dir.path("remote/s.smap");
    let path = remote.to_str().unwrap();
    for args in [
        &["ls", path][..],
        &["info", path],
        &["verify", path],
        &["verify", path, "--json"],
        &["log", path],
        &["diff", path, "s.smap"],
        &["du", path],
        &["tag", path, "v1"],
        &["salvage", path, "new.smap"],
        &["import", "x.npy", path],
        &["push", path, "s3://bucket/x"],
        &["pull", &url(&dir), path],
    ] {
        let why =
            format!("this is the directory of a remote, not a store; name it by its URL, '{}'", url(&dir));
        assert_eq!(dir.refusal(args), format!("{path}: {why}"), "{args:?}");
    }
}

#[test]
fn prune_refuses_rules_that_are_for_the_other_place() {
    let dir = Dir::with_store();
    let url = url(&dir);
    dir.messages(&["push", "s.smap", &url]);
    for (args, given) in [(&["--keep-every", "2"][..], "--keep-every N"), (&["v1"], "\"v1\"")] {
        let said = dir.refusal(&[&["prune", &url][..], args].concat());
        let why = format!(
            "{given} is about the tags of a store on this machine; remove tags there, and push the store"
        );
        assert!(said.ends_with(&why), "{said}");
    }
    for (args, flag) in
        [(&["--grace", "1h"][..], "--grace"), (&["--orphans"], "--orphans"), (&["--json"], "--json")]
    {
        let said = dir.refusal(&[&["prune", "s.smap", "--keep-last", "1"][..], args].concat());
        assert_eq!(said, format!("prune s.smap: {flag} is for a URL"));
    }
}

#[test]
fn url_with_nothing_there_and_a_wrong_url_are_refused() {
    let dir = Dir::with_store();
    let url = url(&dir);
    for args in [&["ls", &url][..], &["pull", &url, "p.smap"], &["log", &url], &["prune", &url]] {
        assert!(
            dir.refusal(args).ends_with("there is no store; check the URL, or push a store to it first"),
            "{args:?}"
        );
    }
    assert!(dir.refusal(&["ls", "ftp://host/x"]).starts_with("open ftp://host/x: the scheme is unknown; "));
    assert!(
        dir.refusal(&["push", "s.smap", "p.smap"]).starts_with("open p.smap: this is not a URL; write s3://")
    );
    for double in ["s3://bucket//x", "s3://bucket/a//x", "https://host//x"] {
        let said = dir.refusal(&["push", "s.smap", double]);
        assert_eq!(said, format!("open {double}: the path has two slashes in a row; write one"));
    }
    for (flag, value) in [("--jobs", "0"), ("--jobs", "1000"), ("--timeout", "0s"), ("--timeout", "5")] {
        let run = dir.run(&["push", "s.smap", &url, flag, value]);
        assert!(run.code == Some(2) && run.stderr.contains(flag), "{run:?}");
    }
    let mut command = dir.command(&["ls", &url]);
    let output = command.env("STRIDEMAP_TIMEOUT", "never").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("--timeout <DURATION>"), "{said}");
}

/// Points the S3 client of a command to a server, with credentials.
pub(super) fn with_s3(command: &mut Command, endpoint: &str) {
    command.env("AWS_ENDPOINT_URL", endpoint).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1");
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", CANARY);
}

/// A secret that no output may have.
pub(super) const CANARY: &str = "canary0secret";

#[test]
fn unreachable_server_is_an_error_within_the_timeout_and_no_secret_is_printed() {
    let dir = Dir::with_store();
    // Nothing listens there any more.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for args in [
        &["push", "s.smap", "s3://bucket/s", "--timeout", "2s"][..],
        &["pull", "s3://bucket/s", "p.smap", "--timeout", "2s", "-v"],
        &["ls", "s3://bucket/s"],
        &["prune", "s3://bucket/s", "--timeout", "2s"],
    ] {
        let mut command = dir.command(args);
        with_s3(&mut command, &format!("http://127.0.0.1:{port}"));
        let began = Instant::now();
        let output = command.env("STRIDEMAP_TIMEOUT", "2s").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains("s3://bucket/s"), "{said}");
        assert!(
            said.contains("check the network, the URL and the endpoint") && !said.contains(CANARY),
            "{said}"
        );
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    }
}

#[test]
fn signal_ends_a_command_that_waits_for_a_server_that_does_not_answer() {
    let dir = Dir::with_store();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", server.local_addr().unwrap());
    for (args, said) in [
        (&["push", "s.smap", "s3://bucket/s"][..], "push: interrupted; nothing was published"),
        (&["pull", "s3://bucket/s", "p.smap"], "pull: interrupted; nothing was changed"),
        (&["prune", "s3://bucket/s"], "prune: interrupted; what was deleted until then stays deleted"),
        (&["ls", "s3://bucket/s"], "interrupted"),
    ] {
        for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
            let mut command = dir.command(args);
            with_s3(&mut command, &endpoint);
            let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let _deadline = Deadline::of(&child);
            // It has sent a request when it connects.
            let connection = server.accept().unwrap();
            thread::sleep(Duration::from_millis(50));
            let began = Instant::now();
            assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
            let output = child.wait_with_output().unwrap();
            assert!(began.elapsed() < Duration::from_secs(3), "{args:?}: {:?}", began.elapsed());
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(
                (output.status.code(), stderr),
                (Some(code), format!("stridemap: {said}\n")),
                "{args:?}"
            );
            drop(connection);
        }
    }
}

#[test]
fn secret_in_a_url_is_in_no_output() {
    let dir = Dir::with_store();
    for url in [
        "https://user:canary0secret@host/x",
        "https://canary0secret@host/x",
        "https://user:canary0secret@host",
        "https://host/x?token=canary0secret",
        "https://host/x#canary0secret",
        "https://host?canary0secret",
        "s3://user:canary0secret@bucket/x",
        "nope://user:canary0secret@host/x",
    ] {
        for args in [
            &["ls", url][..],
            &["info", "--all", "--verbose", url],
            &["diff", url, "s.smap"],
            &["log", url],
            &["verify", url],
            &["du", url],
            &["tag", url, "v1"],
            &["rm", url, "x"],
            &["salvage", url, "n.smap"],
            &["import", url, "n.smap"],
            &["import", "x.npy", url],
            &["export", "s.smap", url],
            &["report", url, "-o", "r.html"],
            &["report", url],
            &["report", "s.smap", "-o", url],
            &["push", "s.smap", url, "-v"],
            &["pull", url, "p.smap"],
            &["pull", url, "p.smap", "points"],
            &["pull", "s3://bucket/x", url],
            &["follow", url, "p.smap"],
            &["prune", url],
            &["log", url, "--follow"],
            &["restore", url, "v1"],
        ] {
            let run = dir.run(args);
            assert_eq!(run.code, Some(2), "{args:?}: {run:?}");
            assert!(!format!("{run:?}").contains(CANARY), "{args:?}: {run:?}");
        }
    }
}

#[test]
fn memory_of_a_command_is_no_place_for_a_store() {
    let dir = Dir::with_store();
    for args in [
        &["push", "s.smap", "memory://a/b"][..],
        &["pull", "memory://a/b", "r.smap"],
        &["ls", "memory://a/b"],
    ] {
        let said = dir.refusal(args);
        assert!(said.contains("memory of one process"), "{said}");
    }
    for url in ["MEMORY://a/b", "memory://user:hush@a/b"] {
        let said = dir.refusal(&["push", "s.smap", url]);
        assert!(!said.contains("hush"), "{said}");
    }
}
