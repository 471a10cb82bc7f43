//! Names that read as something else: every command finds them as they are, and in quotes.

use stridemap::Tensor;

use crate::harness::Dir;

/// The names, and how each is written in quotes.
const NAMES: [(&str, &str); 10] = [
    ("br[0]", "'br[0]'"),
    ("f.t()", "'f.t()'"),
    ("'q'", r"'\'q\''"),
    ("it's", "'it''s'"),
    ("all.*", "'all.*'"),
    ("a\tb", r"'a\tb'"),
    ("a\u{1b}[31m", r"'a\u{1b}[31m'"),
    ("a\u{202e}b", r"'a\u{202e}b'"),
    ("-x", "'-x'"),
    ("back\\slash", r"'back\\slash'"),
];

/// Makes a store with these names, each of two elements, and with the tensors that they read as otherwise.
fn store() -> Dir {
    let dir = Dir::with_store();
    dir.store()
        .write(|txn| {
            for (name, _) in NAMES {
                // Each has a storage of its own, which rows can be appended to.
                txn.create_growable(name, stridemap::DType::F32, &[2], 4)?;
            }
            ["br0", "all.1"].iter().try_for_each(|name| txn.save(name, &Tensor::from_vec(vec![1f32], &[1])?))
        })
        .unwrap();
    dir.write_npy("row.npy", "<f4", "(1,)", &[0; 4]);
    dir
}

fn names(dir: &Dir) -> Vec<String> {
    dir.store().names().unwrap()
}

#[test]
fn every_command_finds_every_name_as_it_is_and_in_quotes() {
    let dir = store();
    let all = names(&dir);
    for (name, quoted) in NAMES {
        for text in [name, quoted] {
            let shown = dir.stdout(&["show", "s.smap", "--json", "--", text]);
            assert!(
                shown.contains(&format!("\"name\":{},", serde_json::to_string(name).unwrap())),
                "{shown}"
            );
            assert_eq!(dir.stdout(&["verify", "s.smap", "--", text]), "ok\n");
            assert_eq!(dir.stdout(&["ls", "-0", "s.smap", "--", text]), format!("{name}\0"));
            dir.messages(&["export", "s.smap", "out.npz", "--", text]);
            assert!(dir.stdout(&["info", "--all", "out.npz"]).contains("tensors\t1\n"), "{text:?}");
            std::fs::remove_file(dir.path("out.npz")).unwrap();

            let said = dir.messages(&["append", "s.smap", "--", text, "row.npy"]);
            assert!(
                said.starts_with(&format!("stridemap: appended 1 row to {name:?}, which now has ")),
                "{said}"
            );

            dir.messages(&["view", "s.smap", "--", text, "new"]);
            let note = dir.messages(&["rm", "s.smap", "--", text]);
            assert!(note.starts_with("stridemap: removed ") && !note.contains("freed"), "{note}");
            assert!(!names(&dir).contains(&name.to_owned()));
            dir.messages(&["mv", "s.smap", "--", "new", quoted]);
            assert_eq!(names(&dir), all);
            dir.messages(&["mv", "s.smap", "--", text, "new"]);
            dir.messages(&["mv", "s.smap", "--", "new", quoted]);
            assert_eq!(names(&dir), all);
        }
    }
}

#[test]
fn quoted_name_can_be_followed_by_operations() {
    let dir = store();
    for (_, quoted) in NAMES {
        assert_eq!(dir.stdout(&["show", "s.smap", "--", &format!("{quoted}[0]")]), "tensor(0.)\n");
    }
}

#[test]
fn name_wins_over_an_expression_and_a_note_says_so() {
    let dir = Dir::with_store();
    for (name, advice) in [
        ("points[0]", "; for the view, quote the name: \"'points'[0]\""),
        ("points.T", "; for the view, quote the name: \"'points'.T\""),
        ("points.t()", "; for the view, quote the name: \"'points'.t()\""),
        ("'points'[0]", ""),
    ] {
        dir.store().save(name, &1u8).unwrap();
        let run = dir.run(&["show", "s.smap", name]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(0), "tensor(1, dtype=uint8)\n"), "{run:?}");
        assert_eq!(
            run.stderr,
            format!(
                "stridemap: note: {name:?} is used as the name of a tensor, not as a view of \"points\"{advice}\n"
            )
        );
    }
    dir.store().save("'points'", &1u8).unwrap();
    let note = "stridemap: note: \"'points'\" is used as the name of a tensor, not as \"points\" in quotes\n";
    assert!(dir.messages(&["view", "s.smap", "'points'", "new"]).starts_with(note));
    assert_eq!(dir.store().load("new").unwrap().numel(), 1);
}

#[test]
fn name_given_twice_is_removed_once() {
    let dir = Dir::with_store();
    dir.run(&["rm", "s.smap", "points", "points", "'points'"]);
    assert_eq!(names(&dir), ["odd [name]", "points_t"]);
}

#[test]
fn hidden_characters_are_escaped_wherever_a_name_is_printed() {
    let dir = store();
    for command in [&["ls"][..], &["info", "--all"]] {
        let listed = dir.stdout(&[command, &["s.smap"]].concat());
        assert!(listed.contains(r"'a\u{202e}b'") && listed.contains(r"'a\u{1b}[31m'"), "{listed}");
        assert!(!listed.contains(['\u{202e}', '\u{1b}']));
    }
    for hidden in ["\u{200b}", "\u{2028}", "\u{2066}", "\u{feff}", "\u{7f}"] {
        let refusal = dir.refusal(&["show", "s.smap", &format!("none{hidden}[0]")]);
        assert!(!refusal.contains(hidden) && refusal.contains(r"\u{"), "{refusal}");
    }
}
