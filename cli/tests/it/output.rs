//! Where output goes, and errors when writing it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use stridemap::{Store, Tensor};

use crate::harness::Dir;

/// Creates a store whose listing, and whose single tensor's elements, exceed the capacity of a pipe.
fn large() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("x", &Tensor::from_vec((0..100_000i64).collect(), &[100_000]).unwrap()).unwrap();
    let x = txn.load("x").unwrap();
    for index in 0..3000 {
        txn.save_view(&format!("a view with quite a long name, number {index}"), &x).unwrap();
    }
    txn.commit().unwrap();
    Store::create(dir.path("empty.smap")).unwrap();
    let x = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let names = (0..3000).map(|index| format!(r#""a tensor with quite a long name, number {index}":{x}"#));
    let header = format!("{{{}}}", names.collect::<Vec<_>>().join(","));
    dir.write_safetensors("m.safetensors", &header, &[]);
    dir
}

#[test]
fn closed_pipe_is_not_an_error() {
    let dir = large();
    for args in [
        &["ls", "s.smap"][..],
        &["show", "s.smap", "x", "--json"],
        &["diff", "s.smap", "empty.smap"],
        &["info", "--all", "m.safetensors", "--json"],
    ] {
        let mut child = dir.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut reader = BufReader::with_capacity(64, child.stdout.take().unwrap());
        reader.fill_buf().unwrap();
        drop(reader);
        let mut messages = String::new();
        child.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        let code = Some(i32::from(args[0] == "diff"));
        assert_eq!((child.wait().unwrap().code(), messages.as_str()), (code, ""), "{args:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let dir = Dir::with_store();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = dir.command(&["ls", "s.smap"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("stridemap: write to standard output: "), "{message}");
}

#[test]
fn pipe_gets_only_text() {
    let dir = Dir::with_store();
    let store = dir.store();
    store.save_view("\u{1b}[31mred", &store.load("points").unwrap()).unwrap();
    let mut txn = store.begin().unwrap();
    txn.set_attribute("", "colour", "\u{1b}[31mred").unwrap();
    txn.commit().unwrap();
    for args in [
        &["--help"][..],
        &["info", "--all", "s.smap"],
        &["ls", "s.smap"],
        &["show", "s.smap", "points"],
        &["verify", "s.smap"],
        &["show", "s.smap", "\u{1b}[32mgreen"],
        &["no-such-command"],
    ] {
        let run = dir.run(args);
        assert!(!run.stdout.contains('\u{1b}') && !run.stderr.contains('\u{1b}'), "{run:?}");
    }
}

#[test]
fn line_break_in_a_path_does_not_start_a_new_message() {
    let dir = Dir::empty();
    dir.write_safetensors("m.safetensors", "{}", &[]);
    let path = "new\nstridemap: all is well";
    let refused = dir.run(&["ls", path]);
    let imported = dir.run(&["import", "m.safetensors", path]);
    assert_eq!((refused.code, imported.code), (Some(2), Some(0)), "{refused:?} {imported:?}");
    for run in [refused, imported] {
        let further: Vec<&str> = run.stderr.lines().skip(1).collect();
        assert!(further.iter().all(|line| line.starts_with("  | ")), "{run:?}");
    }
}

const COMMANDS: [&str; 22] = [
    "import", "export", "copy", "convert", "info", "tree", "ls", "show", "view", "mv", "rm", "attr",
    "append", "compact", "du", "verify", "salvage", "diff", "tag", "log", "restore", "prune",
];

#[test]
fn help_of_every_command_has_an_example() {
    let dir = Dir::empty();
    for command in COMMANDS {
        let help = dir.stdout(&[command, "--help"]);
        let titles = ["Example", "Examples"].map(|title| format!("{title}:\n  stridemap {command} "));
        assert!(titles.iter().any(|title| help.contains(title)), "{help}");
        assert!(!help.contains("///"), "{help}");
    }
}

#[test]
fn no_line_of_a_help_text_is_wider_than_the_terminal() {
    let dir = Dir::empty();
    for width in [60, 80] {
        for command in COMMANDS.iter().chain(&[""]) {
            for help in ["-h", "--help"] {
                let args: Vec<&str> = [command, help].into_iter().filter(|arg| !arg.is_empty()).collect();
                let text = dir.on_terminal(width, &args);
                let wide = text.lines().find(|line| line.chars().count() > width);
                assert_eq!(wide, None, "{command} {help} at {width}");
            }
        }
    }
}

#[test]
fn colors_are_for_terminals_unless_they_are_asked_for() {
    let dir = Dir::with_store();
    let inspect = |color: &str| dir.stdout(&["info", "--all", "s.smap", "--color", color]);
    assert!(inspect("always").contains("\u{1b}[1mname\t"));
    assert!(!inspect("auto").contains('\u{1b}') && !inspect("never").contains('\u{1b}'));
    let mut forced = dir.command(&["info", "--all", "s.smap"]);
    let forced = forced.env("NO_COLOR", "1").env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(!forced.stdout.contains(&0x1b));
}

#[test]
fn quiet_leaves_out_notes_but_no_errors() {
    let dir = Dir::with_store();
    assert_eq!(dir.messages(&["export", "s.smap", "all.safetensors", "--quiet"]), "");
    assert_eq!(dir.run(&["-q", "ls", "none"]).stderr, "stridemap: open none: no such file or store\n");
}

#[test]
fn usage_error_has_the_words_of_the_argument_parser() {
    let dir = Dir::empty();
    for (args, expected) in [
        (
            &["ls", "s", "--jsno"][..],
            &["error: unexpected argument '--jsno'", "'--json'", "Usage: stridemap ls "][..],
        ),
        (&["ls", "s", "--color", "blue"], &["'blue'", "--color <WHEN>", "auto, always, never"]),
        (&["rm", "s"], &["<NAME>...", "Usage: stridemap rm "]),
        (&["import", "s"], &["Usage: stridemap import "]),
        (&["import", "x", ""], &["a value is required for '<FILE... STORE>...'"]),
        (&["lss"], &["'lss'", "'ls'"]),
        (&["diff", "s"], &["Usage: stridemap diff "]),
        (&["diff", "s", "s", "--rtol", "-1"], &["'-1'"]),
        (&["diff", "s", "s", "--atol", "nan"], &["--atol"]),
        (&["diff", "s", "s", "--no-values", "--rtol", "1"], &["--no-values"]),
    ] {
        let run = dir.run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
        assert!(expected.iter().all(|part| run.stderr.contains(part)), "{}", run.stderr);
    }
}

#[test]
fn tables_fit_the_terminal() {
    for (dir, args, least) in [
        (crate::ls::layers(), &["ls", "-l", "s.smap"][..], 20),
        (crate::tree::layers(), &["tree", "s.smap"], 20),
        (crate::map::views(), &["du", "--map", "s.smap"], 30),
        (crate::stats::odd_tensors(), &["stats", "s.smap"], 30),
    ] {
        // A name that must be whole has a line of its own, which the terminal wraps.
        let names = dir.store().names().unwrap();
        for width in [least, 40, 60, 80, 140] {
            let text = dir.on_terminal(width, args);
            let is_whole = width == least || args[0] == "ls";
            let is_name = |line: &str| is_whole && names.iter().any(|name| name == line);
            assert!(text.lines().all(|line| line.chars().count() <= width || is_name(line)), "{text}");
        }
    }
}
