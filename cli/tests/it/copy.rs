//! The `copy` command.

use std::fs;
use std::process::Command;

use stridemap::{Store, Tensor};

use crate::harness::Dir;

/// Creates `a.smap` with a matrix, two views of it, a second name of one of them, and a scalar in the same storage, and
/// `s.smap` with a scalar.
fn dir() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("a.smap")).unwrap();
    store
        .write(|txn| {
            txn.save("enc.w", &[[1f32, 2., 3.], [4., 5., 6.]])?;
            txn.save("n", &7i64)?;
            let w = txn.load("enc.w")?;
            txn.save_view("enc.t", &w.t()?)?;
            txn.save_view("enc.row", &w.select(0, 1)?)?;
            txn.copy("enc.t", "head")?;
            txn.set_attribute("", "license", "MIT")?;
            txn.set_attribute("enc.", "kind", "text")?;
            txn.set_attribute("enc.w", "unit", "m")?;
            txn.set_attribute("other.", "kind", "none")
        })
        .unwrap();
    Store::create(dir.path("s.smap")).unwrap().save("x", &1i64).unwrap();
    dir
}

#[test]
fn tensors_are_copied_with_views_ties_and_attributes_in_one_commit() {
    let dir = dir();
    let said = dir.messages(&["copy", "a.smap", "enc.", "head", "s.smap"]);
    assert_eq!(said, "stridemap: copied 4 tensors, 24 B, into s.smap: generation 3\n");
    let (from, to) = (Store::open(dir.path("a.smap")).unwrap(), dir.store());
    for name in ["enc.w", "enc.t", "enc.row", "head"] {
        let [old, new] = [&from, &to].map(|store| store.load(name).unwrap());
        assert_eq!((new.size(), new.stride()), (old.size(), old.stride()), "{name}");
        assert_eq!(new.read::<f32>().unwrap(), old.read::<f32>().unwrap(), "{name}");
        assert!(new.shares_storage(&to.load("enc.w").unwrap()), "{name}");
    }
    // The scalar was in the same storage, and is left out.
    assert_eq!(to.names().unwrap(), ["enc.row", "enc.t", "enc.w", "head", "x"]);
    assert_eq!(dir.stdout(&["attr", "list", "s.smap"]), "kind\ttext\tenc.\nunit\tm\tenc.w\n");
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
}

#[test]
fn store_is_created_and_prefix_comes_before_names_and_scopes() {
    let dir = dir();
    let planned = dir.stdout(&["copy", "a.smap", "enc.w", "new.smap", "--prefix", "old.", "-n"]);
    assert_eq!(planned, "would copy 1 tensor into new.smap, a new store\n  old.enc.w, float32 [2, 3]\n");
    assert!(!dir.path("new.smap").exists());
    let said = dir.messages(&["copy", "a.smap", "enc.w", "new.smap", "--prefix", "old."]);
    assert_eq!(said, "stridemap: copied 1 tensor, 24 B, into new.smap: generation 2\n");
    assert_eq!(dir.stdout(&["ls", "new.smap"]), "old.enc.w\n");
    assert_eq!(dir.stdout(&["attr", "list", "new.smap"]), "kind\ttext\told.enc.\nunit\tm\told.enc.w\n");
}

#[test]
fn existing_names_and_attributes_are_refused_unless_forced() {
    let dir = dir();
    dir.messages(&["copy", "a.smap", "n", "s.smap"]);
    let args = ["copy", "a.smap", "*", "s.smap"];
    let refusal = dir.refusal(&args);
    assert_eq!(
        refusal,
        "copy: \"n\" exists in s.smap, int64 []; --force replaces it, and --prefix P copies under other names"
    );
    let planned = dir.stdout(&[&args[..], &["--force", "-n"]].concat());
    assert!(
        planned.contains("\n  n, int64 [], replacing int64 []\n") && planned.contains("no tag keeps it"),
        "{planned}"
    );
    let said = dir.messages(&[&args[..], &["--force", "--tag", "before"]].concat());
    assert!(said.starts_with("stridemap: copied 5 tensors, ") && said.contains("tagged before"), "{said}");
    assert_eq!(dir.stdout(&["ls", "s.smap@before"]), "n\nx\n");

    dir.messages(&["attr", "set", "s.smap", "kind", "speech", "--of", "enc."]);
    dir.messages(&["rm", "s.smap", "enc.", "--tag", "empty"]);
    let refusal = dir.refusal(&["copy", "a.smap", "enc.", "s.smap"]);
    assert_eq!(
        refusal,
        "copy: the attribute \"kind\" of \"enc.\" would replace that in s.smap, \"speech\"; --force replaces it"
    );
}

#[test]
fn mistaken_arguments_are_refused() {
    let dir = dir();
    fs::write(dir.path("m.safetensors"), b"").unwrap();
    for (args, why) in [
        (
            &["a.smap", "s.smap"][..],
            "copy: the arguments are STORE NAME... STORE2, and one of them is missing",
        ),
        (
            &["a.smap", "enc.w", "head"],
            "copy head: this selects head, and the last argument must be the store to copy to",
        ),
        (
            &["a.smap", "head", "enc."],
            "copy enc.: this selects enc.row, and the last argument must be the store",
        ),
        (
            &["m.safetensors", "w", "x.", "s.smap"],
            "copy m.safetensors: this is a file, and copy takes a store; import it: stridemap import --only w --only x. \
             m.safetensors s.smap",
        ),
        (&["a.smap", "haed", "s.smap"], "load \"haed\": no tensor with this name; did you mean \"head\""),
        (
            &["a.smap", "*", "a.smap"],
            "copy a.smap: both are the same store; to add a second name for a tensor: stridemap view a.smap NAME NEW",
        ),
        (
            &["a.smap", "*", "new.safetensors"],
            "copy new.safetensors: this is the name of a file, and the last path",
        ),
        (&["a.smap", "*", "s.smap@v1"], "s.smap@v1"),
        (&["a.smap", "n", "new.smap", "--tag", "t"], "copy --tag t: new.smap does not exist yet"),
    ] {
        let refusal = dir.refusal(&[&["copy"], args].concat());
        assert!(refusal.starts_with(why), "{args:?}: {refusal}");
    }
    let none = dir.run(&["copy", "a.smap", "none*", "s.smap"]);
    assert_eq!((none.code, none.stderr.as_str()), (Some(1), "stridemap: no tensor matches \"none*\"\n"));
}

#[test]
fn damage_is_not_copied() {
    let dir = dir();
    let file = fs::read_dir(dir.path("a.smap/storages")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = file.filter(|path| path.extension().is_none_or(|it| it != "sum")).collect();
    files.sort();
    let path = files[0].strip_prefix(dir.path("")).unwrap().to_str().unwrap().to_owned();
    dir.flip(&path, 0);
    let before = dir.stdout(&["info", "--all", "s.smap"]);
    let run = dir.run(&["copy", "a.smap", "enc.w", "s.smap"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.starts_with("stridemap: copy from a.smap: \"enc.w\": "), "{run:?}");
    assert_eq!(dir.stdout(&["info", "--all", "s.smap"]), before);
}

#[test]
fn tagged_generation_and_mutable_tensors_are_copied() {
    let dir = dir();
    let store = Store::open(dir.path("a.smap")).unwrap();
    store
        .write(|txn| {
            txn.tag_previous("v1")?;
            txn.save_as("count", &[1i64, 2], stridemap::StorageKind::Mutable)?;
            txn.save("n", &8i64)
        })
        .unwrap();
    dir.messages(&["copy", "a.smap@v1", "n", "s.smap"]);
    dir.messages(&["copy", "a.smap", "count", "s.smap"]);
    assert_eq!(dir.store().load("n").unwrap().item::<i64>().unwrap(), 7);
    dir.store().load("count").unwrap().lock_exclusive().unwrap().fill_(5).unwrap();
    assert_eq!(dir.store().load("count").unwrap().read::<i64>().unwrap(), [5, 5]);
    assert_eq!(store.load("count").unwrap().read::<i64>().unwrap(), [1, 2]);
}

#[test]
fn large_storage_is_copied_once_however_many_tensors_it_has() {
    let dir = dir();
    let store = Store::open(dir.path("a.smap")).unwrap();
    let big = Tensor::from_vec(vec![1.5f32; 3 << 20], &[3, 1 << 20]).unwrap();
    store
        .write(|txn| {
            txn.save("big", &big)?;
            let saved = txn.load("big")?;
            (0..3).try_for_each(|row| txn.save_view(&format!("rows.{row}"), &saved.select(0, row)?))
        })
        .unwrap();
    let said = dir.messages(&["copy", "a.smap", "rows.", "s.smap"]);
    assert!(said.contains("copied 3 tensors, 12.00 MiB, into s.smap"), "{said}");
    let said = dir.messages(&["copy", "a.smap", "rows.1", "part.smap"]);
    assert!(said.contains("copied 1 tensor, 4.00 MiB, into part.smap"), "{said}");
}

#[test]
fn tensors_of_a_tag_are_copied_into_their_own_store_under_other_names() {
    let dir = Dir::with_store();
    dir.messages(&["tag", "s.smap", "v1"]);
    let other = Tensor::from_vec(vec![9f32; 6], &[3, 2]).unwrap();
    dir.store().save("points", &other).unwrap();
    // Under their names, restore brings them back without a copy.
    assert_eq!(
        dir.refusal(&["copy", "s.smap@v1", "points*", "s.smap", "--force"]),
        "copy s.smap@v1: both are the same store; to bring tensors of the tag back under their names, without a copy: \
         stridemap restore s.smap v1 'points*'; --prefix P copies them under other names"
    );
    dir.messages(&["copy", "s.smap@v1", "points*", "s.smap", "--prefix", "old."]);
    let store = dir.store();
    assert_eq!(store.load("points").unwrap().read::<f32>().unwrap(), [9.; 6]);
    assert_eq!(store.load("old.points").unwrap().read::<f32>().unwrap(), [1., 4., 2., 1., 3., 5.]);
    assert!(store.load("old.points_t").unwrap().shares_storage(&store.load("old.points").unwrap()));
    assert_eq!(dir.stdout(&["verify", "s.smap", "-q"]), "ok\n");
}

#[test]
fn tensors_are_copied_from_a_copy_of_the_same_store_made_by_cp() {
    let dir = Dir::with_store();
    let copied = Command::new("cp").args(["-r", "s.smap", "c.smap"]).current_dir(dir.path("")).status();
    assert!(copied.unwrap().success());
    dir.store().remove("points").unwrap();
    dir.messages(&["copy", "c.smap", "points", "s.smap"]);
    assert_eq!(dir.store().load("points").unwrap().read::<f32>().unwrap(), [1., 4., 2., 1., 3., 5.]);
    assert_eq!(dir.stdout(&["verify", "s.smap", "-q"]), "ok\n");
}
