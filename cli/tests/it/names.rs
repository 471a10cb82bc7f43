//! The `view`, `ln`, `mv` and `rm` commands.

use stridemap::Tensor;

use crate::harness::Dir;

fn listed(dir: &Dir) -> Vec<String> {
    dir.store().names().unwrap()
}

#[test]
fn view_saves_a_header_over_the_same_storage() {
    let dir = Dir::with_store();
    let said = dir.messages(&["view", "s.smap", "points[-1]", "last"]);
    assert_eq!(said, "stridemap: saved points[-1] (float32 [2]) as last: generation 3\n");
    assert_eq!(dir.messages(&["view", "s.smap", "points[0]", "first", "--quiet"]), "");
    let (store, last) = (dir.store(), dir.store().load("last").unwrap());
    assert_eq!((last.size(), last.stride(), last.storage_offset()), (&[2][..], &[1][..], 4));
    assert!(last.shares_storage(&store.load("points").unwrap()));
}

#[test]
fn new_name_is_used_literally() {
    let dir = Dir::with_store();
    dir.messages(&["view", "s.smap", "points", "'quoted'[0]"]);
    dir.messages(&["mv", "s.smap", "odd [name]", "x.t()"]);
    assert_eq!(listed(&dir), ["'quoted'[0]", "points", "points_t", "x.t()"]);
}

#[test]
fn view_with_its_arguments_swapped_is_refused_with_their_order() {
    let dir = Dir::with_store();
    for (args, start) in [
        (["new", "points[0]"], "load \"new\": no tensor with this name"),
        (["new", "points"], "load \"new\": no tensor with this name"),
        (["points_t", "points.t()"], "view: the new name \"points.t()\" is an expression"),
    ] {
        let refusal = dir.refusal(&["view", "s.smap", args[0], args[1]]);
        assert!(refusal.starts_with(start), "{refusal}");
        assert!(refusal.ends_with("; the order is: stridemap view STORE EXPR NEW"), "{refusal}");
    }
    dir.messages(&["view", "s.smap", "points", "'points.t()'"]);
    assert!(listed(&dir).contains(&"points.t()".to_owned()));
}

#[test]
fn view_of_a_whole_tensor_adds_a_second_name_for_the_same_header() {
    let dir = Dir::with_store();
    let said = dir.messages(&["view", "s.smap", "points_t", "twin"]);
    assert_eq!(said, "stridemap: saved points_t (float32 [2, 3]) as twin: generation 3\n");
    let (twin, original) = (dir.store().load("twin").unwrap(), dir.store().load("points_t").unwrap());
    assert_eq!((twin.size(), twin.stride()), (original.size(), original.stride()));
    assert!(twin.shares_storage(&original));
}

#[test]
fn rm_removes_all_names_in_one_commit() {
    let dir = Dir::with_store();
    let said = dir.messages(&["rm", "s.smap", "points", "points_t"]);
    assert!(said.starts_with("stridemap: removed 2 tensors: generation 3\n"), "{said}");
    assert_eq!(listed(&dir), ["odd [name]"]);
    assert_eq!(dir.store().generation(), 3);
}

#[test]
fn rm_says_what_it_freed_and_what_stays() {
    let dir = Dir::with_store();
    assert_eq!(
        dir.messages(&["rm", "s.smap", "points"]),
        "stridemap: removed points: generation 3\n",
        "its bytes are those of points_t"
    );
    let said = dir.messages(&["rm", "s.smap", "*"]);
    assert!(said.starts_with("stridemap: removed 2 tensors, freed "), "{said}");
    let matrix = Tensor::from_vec(vec![0f32; 100_000], &[1000, 100]).unwrap();
    dir.store().save("m", &matrix).unwrap();
    dir.messages(&["view", "s.smap", "m[:, 16]", "column"]);
    let lost = "no tag keeps it, so it cannot be brought back; --tag NAME tags the state before a change\n";
    let note = "stridemap: note: 386.72 KiB are now unused, but remain in storages of other tensors, such as column; free them \
                with stridemap compact s.smap\n";
    assert_eq!(
        dir.messages(&["rm", "s.smap", "m"]),
        format!("stridemap: removed m: generation 7\nstridemap: note: {lost}{note}")
    );
    let reader = dir.store();
    let would_free = "would remove column\nwould free 390.62 KiB\n";
    assert_eq!(dir.stdout(&["rm", "s.smap", "column", "-n"]), format!("{would_free}{lost}"));
    let said = dir.messages(&["rm", "s.smap", "column"]);
    // Also the headers of the reader's generation.
    let held = "removed column: generation 8\nstridemap: 390.77 KiB are held by readers on older generations (process";
    assert!(said.contains(held), "{said}");
    drop(reader);
}

#[test]
fn glob_selects_names_and_a_name_wins_over_it() {
    let dir = Dir::with_store();
    dir.stdout(&["verify", "s.smap", "points*"]);
    dir.messages(&["export", "s.smap", "out.npz", "points*", "points"]);
    assert!(dir.stdout(&["info", "--all", "out.npz"]).contains("tensors\t2\n"));
    for args in [&["rm", "s.smap", "points", "none*"][..], &["verify", "s.smap", "none?"]] {
        let run = dir.run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{run:?}");
        assert_eq!(run.stderr, format!("stridemap: no tensor matches {:?}\n", args.last().unwrap()));
    }
    let run = dir.run(&["export", "s.smap", "new.npz", "none*"]);
    assert_eq!((run.code, dir.path("new.npz").exists()), (Some(1), false), "{run:?}");
    // Without a star, brackets are not a glob.
    dir.refusal(&["rm", "s.smap", "point[s]"]);
    // A glob in quotes is a name.
    dir.refusal(&["rm", "s.smap", "'points*'"]);

    dir.messages(&["view", "s.smap", "odd [name]", "p*"]);
    dir.messages(&["rm", "s.smap", "p*"]);
    assert_eq!(listed(&dir), ["odd [name]", "points", "points_t"]);
    dir.messages(&["rm", "s.smap", "p*", "points", "p????s"]);
    assert_eq!(listed(&dir), ["odd [name]"]);
}

#[test]
fn mv_to_the_same_name_commits_nothing() {
    let dir = Dir::with_store();
    let before = dir.store().generation();
    assert_eq!(dir.messages(&["mv", "s.smap", "points", "points"]), "");
    assert_eq!(dir.messages(&["mv", "s.smap", "points", "points", "--force"]), "");
    assert_eq!(dir.store().generation(), before);
    for command in ["mv", "view"] {
        assert!(dir.refusal(&[command, "s.smap", "none", "none"]).contains("no tensor with this name"));
    }
}

#[test]
fn view_or_prefix_in_place_of_a_name_gets_a_hint() {
    let dir = Dir::with_store();
    for command in [&["export", "s.smap", "x.npy"][..], &["rm", "s.smap"], &["verify", "s.smap"]] {
        let view = dir.refusal(&[command, &["points.t()"]].concat());
        assert!(view.starts_with("\"points.t()\" is a view, and this command takes names"), "{view}");
        let prefix = dir.refusal(&[command, &["point"]].concat());
        let expected = "no tensor has the name \"point\", but 2 names begin with it, such as points";
        assert_eq!(prefix, format!("{expected}: 'point*' selects them"));
        assert_eq!(dir.refusal(&["show", "s.smap", "point"]), expected);
        let part = dir.refusal(&[command, &["oints_"]].concat());
        let expected = "no tensor has the name \"oints_\", but 1 name contains it, such as points_t";
        assert_eq!(part, format!("{expected}: '*oints_*' selects them"));
    }
    dir.messages(&["mv", "s.smap", "points", "layer.a"]);
    dir.messages(&["mv", "s.smap", "points_t", "layer.b"]);
    let hint = dir.refusal(&["rm", "s.smap", "layer"]);
    assert!(hint.ends_with("such as layer.a: 'layer.' selects them"), "{hint}");
}

#[test]
fn names_globs_and_prefixes_mean_the_same_in_every_command() {
    let dir = Dir::with_store();
    let store = dir.store();
    for name in ["layer.a", "layer.b", "layered", "b.c", "b.c.d"] {
        store.save(name, &store.load("points").unwrap()).unwrap();
    }
    for (text, selected) in [
        ("layer.", &["layer.a", "layer.b"][..]),
        ("layer*", &["layer.a", "layer.b", "layered"]),
        ("b.c", &["b.c"]),
        ("b.", &["b.c", "b.c.d"]),
    ] {
        let lines = |args: &[&str]| -> Vec<String> {
            dir.stdout(args).lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
        };
        assert_eq!(lines(&["ls", "s.smap", text]), selected, "{text}");
        assert_eq!(
            dir.json(&["du", "s.smap", text])["patterns"][0]["tensor_count"],
            selected.len(),
            "{text}"
        );
        let removed = dir.stdout(&["rm", "s.smap", text, "-n"]);
        let removed: Vec<&str> =
            removed.lines().filter_map(|line| line.strip_prefix("would remove ")).collect();
        assert_eq!(removed, selected, "{text}");
        dir.messages(&["export", "s.smap", "x.npz", text, "--force"]);
        assert_eq!(lines(&["ls", "x.npz"]), selected, "{text}");
        let mapped = dir.json(&["du", "--map", "s.smap", text]);
        assert_eq!(mapped["storages"].as_array().unwrap().len(), selected.len(), "{text}");
        dir.stdout(&["verify", "s.smap", text]);
        if selected.len() > 1 {
            let counted = dir.stdout(&["stats", "s.smap", text]);
            assert_eq!(counted.lines().count(), selected.len(), "{text}");
        }
        dir.messages(&["import", "x.npz", "new.smap", "--only", text]);
        assert_eq!(lines(&["ls", "new.smap"]), selected, "{text}");
        std::fs::remove_dir_all(dir.path("new.smap")).unwrap();
    }
    for args in [&["ls", "s.smap"][..], &["du", "s.smap"], &["stats", "s.smap"], &["du", "--map", "s.smap"]] {
        let run = dir.run(&[args, &["layer"]].concat());
        assert_ne!(run.code, Some(0), "{args:?}");
        assert!(run.stderr.contains("begin with it, such as layer.a: 'layer*' selects them"), "{run:?}");
    }
}

#[test]
fn new_name_that_is_probably_a_file_is_refused() {
    let dir = Dir::with_store();
    dir.write("notes", b"text");
    for (command, old) in [("view", "points"), ("mv", "points"), ("view", "points[0]")] {
        for (new, what) in [
            ("b.smap", "like the name of a file"),
            ("dir/b.SAFETENSORS", "like the name of a file"),
            ("points.npy", "like the name of a file"),
            ("m.safetensors.index.json", "like the name of a file"),
            ("notes", "the path of an existing file"),
            ("./s.smap", "the path of an existing file"),
        ] {
            let line = dir.refusal(&[command, "s.smap", old, new]);
            let expected = format!("{command}: the new name {new:?} is {what}, and {command} adds no file");
            assert!(line.starts_with(&expected) && line.contains(&format!("\"'{new}'\"")), "{line}");
            dir.refusal(&[command, "s.smap", old, new, "--dry-run"]);
        }
    }
    // In quotes, or as the name of a tensor, it is a name.
    dir.messages(&["view", "s.smap", "points", "'b.smap'"]);
    dir.messages(&["view", "s.smap", "points[0]", "'notes'"]);
    dir.messages(&["view", "s.smap", "points", "'w.bin'"]);
    dir.messages(&["mv", "s.smap", "points", "w.bin", "--force"]);
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "b.smap\nnotes\nodd [name]\npoints_t\nw.bin\n");
}
