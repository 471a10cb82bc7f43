//! The `convert` command.

use std::fs;

use stridemap::{DType, StorageKind, Store, Tensor};

use crate::harness::{Deadline, Dir};

/// Creates a store with two floats, one of them tied, a transposed view, a counter, and a mask.
fn dir() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store
        .write(|txn| {
            txn.save(
                "enc.w",
                &Tensor::from_vec(vec![1.5f32, -2., 70_000., 0.1], &[2, 2])?.refine_names(&["out", "in"])?,
            )?;
            txn.save("enc.b", &[0.25f64, 1e-3])?;
            txn.save("enc.steps", &7i64)?;
            txn.save("enc.mask", &[true, false])?;
            txn.copy("enc.w", "head")?;
            let w = txn.load("enc.w")?;
            txn.save_view("enc.w_t", &w.t()?)?;
            txn.set_attribute("enc.w", "unit", "m")
        })
        .unwrap();
    dir
}

fn dtypes(dir: &Dir) -> Vec<(String, DType)> {
    let store = dir.store();
    let dtype = |name: String| (name.clone(), store.load(&name).unwrap().dtype());
    store.names().unwrap().into_iter().map(dtype).collect()
}

fn expected(list: &[(&str, DType)]) -> Vec<(String, DType)> {
    list.iter().map(|(name, dtype)| ((*name).to_owned(), *dtype)).collect()
}

#[test]
fn glob_replaces_floats_and_leaves_the_rest_as_it_is() {
    let dir = dir();
    let old = dir.store().load("enc.w").unwrap();
    let said = dir.messages(&["convert", "s.smap", "enc.*", "--to", "float16"]);
    let note = "stridemap: note: 2 tensors of another kind than float16 stay as they are, such as enc.mask, bool; to \
                convert them, give the name\n";
    assert!(said.starts_with(note), "{said}");
    assert!(said.contains("converted 3 tensors to float16, 48 B to 20 B: generation 3\n"), "{said}");
    let (f16, f32) = (DType::F16, DType::F32);
    let now = [
        ("enc.b", f16),
        ("enc.mask", DType::Bool),
        ("enc.steps", DType::I64),
        ("enc.w", f16),
        ("enc.w_t", f16),
        ("head", f32),
    ];
    assert_eq!(dtypes(&dir), expected(&now));
    let new = dir.store().load("enc.w").unwrap();
    let cast = old.to_dtype(f16).unwrap();
    assert_eq!(new.to_string(), cast.to_string());
    assert_eq!(new.names(), [Some("out"), Some("in")]);
    assert_eq!(dir.store().load("enc.w_t").unwrap().to_string(), cast.t().unwrap().to_string());
    assert_eq!(dir.stdout(&["attr", "list", "s.smap"]), "unit\tm\tenc.w\n");
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
}

#[test]
fn new_names_are_complete_and_tied_tensors_stay_tied() {
    let dir = dir();
    let args = ["convert", "s.smap", "*", "--to", "bfloat16", "--as", "half.{}"];
    let planned = dir.stdout(&[&args[..], &["-n"]].concat());
    assert_eq!(
        planned,
        "would convert enc.b, float64 [2], to bfloat16 as half.enc.b\n\
         would add half.enc.mask, a second name of enc.mask, bool [2]\n\
         would add half.enc.steps, a second name of enc.steps, int64 []\n\
         would convert enc.w, float32 [2, 2], to bfloat16 as half.enc.w\n\
         would convert enc.w_t, float32 [2, 2], to bfloat16 as half.enc.w_t\n\
         would convert head, float32 [2, 2], to bfloat16 as half.head, tied to half.enc.w\n"
    );
    assert_eq!(dir.store().generation(), 2);
    let said = dir.messages(&args);
    let done =
        "converted 4 tensors to bfloat16, as half.{}, 48 B to 20 B, and added 2 second names: generation 3\n";
    assert!(said.ends_with(done), "{said}");
    let store = dir.store();
    let load = |name: &str| store.load(name).unwrap();
    assert_eq!(store.names().unwrap().len(), 12);
    assert_eq!((load("enc.w").dtype(), load("half.enc.w").dtype()), (DType::F32, DType::BF16));
    assert_eq!(load("half.enc.b").read::<stridemap::half::bf16>().unwrap()[0].to_f32(), 0.25);
    assert!(load("half.head").shares_storage(&load("half.enc.w")));
    assert!(load("half.enc.steps").shares_storage(&load("enc.steps")));
    assert_eq!(dir.stdout(&["attr", "list", "s.smap"]), "unit\tm\tenc.w\nunit\tm\thalf.enc.w\n");
}

#[test]
fn tensor_that_is_named_is_always_converted() {
    let dir = dir();
    dir.messages(&["convert", "s.smap", "enc.steps", "--to", "float32", "--as", "steps"]);
    assert_eq!(dir.store().load("steps").unwrap().item::<f32>().unwrap(), 7.);
    dir.messages(&["convert", "s.smap", "enc.w", "head", "--to", "int32"]);
    let store = dir.store();
    assert_eq!(store.load("head").unwrap().read::<i32>().unwrap(), [1, -2, 70_000, 0]);
    assert!(store.load("head").unwrap().shares_storage(&store.load("enc.w").unwrap()));
    let said = dir.messages(&["convert", "s.smap", "enc.w", "--to", "int32"]);
    assert!(said.starts_with("stridemap: note: nothing to convert"), "{said}");
    assert_eq!(dir.store().generation(), store.generation());
}

#[test]
fn replaced_tensors_can_be_brought_back_from_a_tag() {
    let dir = dir();
    let said = dir.messages(&["convert", "s.smap", "enc.w", "head", "--to", "f16", "--tag", "full"]);
    assert!(said.contains("with generation 2 tagged full: generation 3\n"), "{said}");
    dir.messages(&["restore", "s.smap", "full", "--tag", "half"]);
    assert_eq!(dir.store().load("enc.w").unwrap().dtype(), DType::F32);
    let planned = dir.stdout(&["convert", "s.smap", "enc.b", "--to", "f16", "-n"]);
    assert!(planned.starts_with("would convert enc.b, float64 [2], to float16\n"), "{planned}");
}

#[test]
fn mistaken_arguments_are_refused_before_anything_is_written() {
    let dir = dir();
    for (args, why) in [
        (
            &["enc.*", "--to", "f16", "--as", "half"][..],
            "convert --as \"half\": 5 tensors are selected; {} stands for",
        ),
        (
            &["enc.w", "--to", "f16", "--as", "head"],
            "convert: \"head\" exists, float32 [2, 2]; --force replaces it",
        ),
        (
            &["enc.w", "--to", "f16", "--as", "out.npy"],
            "convert: the new name \"out.npy\" is like the name of a file",
        ),
        (&["wnc.w", "--to", "f16"], "load \"wnc.w\": no tensor with this name; did you mean \"enc.w\""),
        (&["enc.w", "--to", "float4_e2m1fn_x2"], "float32 to float4_e2m1fn_x2: "),
        (&["enc.w[0]", "--to", "f16"], "\"enc.w[0]\" is a view, and this command takes names"),
    ] {
        let refusal = dir.refusal(&[&["convert", "s.smap"], args].concat());
        assert!(refusal.starts_with(why), "{args:?}: {refusal}");
    }
    assert_eq!(dir.run(&["convert", "s.smap", "none*", "--to", "f16"]).code, Some(1));
    assert_eq!(dir.run(&["convert", "s.smap", "enc.w"]).code, Some(2));
}

#[test]
fn long_tensor_is_converted_in_pieces_and_a_mutable_one_stays_mutable() {
    let dir = dir();
    let long: Vec<i32> = (0..3_000_001).collect();
    let long = Tensor::from_vec(long, &[3_000_001]).unwrap();
    dir.store()
        .write(|txn| {
            txn.save_as("m", &[1f64, 2.], StorageKind::Mutable)?;
            txn.save("long", &long)
        })
        .unwrap();
    dir.messages(&["convert", "s.smap", "long", "m", "--to", "f32"]);
    let store = dir.store();
    let converted = store.load("long").unwrap().read::<f32>().unwrap();
    assert!(
        converted.iter().zip(0..).all(|(x, i): (&f32, i32)| *x == i as f32) && converted.len() == 3_000_001
    );
    store.load("m").unwrap().lock_exclusive().unwrap().add_(1).unwrap();
    assert_eq!(store.load("m").unwrap().read::<f32>().unwrap(), [2., 3.]);
}

#[test]
fn damaged_elements_are_not_converted() {
    let dir = dir();
    let files = fs::read_dir(dir.path("s.smap/storages")).unwrap().map(|entry| entry.unwrap().path());
    let file = files.filter(|path| path.extension().is_some_and(|it| it == "bin")).min().unwrap();
    dir.flip(file.strip_prefix(dir.path("")).unwrap().to_str().unwrap(), 0);
    let before = dtypes(&dir);
    let run = dir.run(&["convert", "s.smap", "enc.w", "--to", "float16"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("nothing was converted; leave out what is affected"), "{run:?}");
    assert_eq!(dtypes(&dir), before);
}

#[test]
fn tie_with_a_tensor_that_is_not_selected_ends_with_a_note() {
    let dir = dir();
    let said = dir.messages(&["convert", "s.smap", "head", "--to", "float16"]);
    let note = "such as enc.w with head, and still have the elements from before\n";
    assert!(said.contains(note), "{said}");
    // A copy under another name ends no tie, and two that are converted together stay tied.
    let said = dir.messages(&["convert", "s.smap", "enc.w", "--to", "float16", "--as", "half"]);
    assert!(!said.contains("from before"), "{said}");
    dir.messages(&["view", "s.smap", "enc.w", "again"]);
    let said = dir.messages(&["convert", "s.smap", "enc.w", "again", "--to", "float16"]);
    assert!(!said.contains("enc.w with"), "{said}");
}

#[test]
fn tag_without_anything_to_convert_is_refused_and_says_how_to_make_it() {
    let dir = dir();
    let args = ["convert", "s.smap", "enc.mask", "--to", "bool"];
    assert!(dir.messages(&args).starts_with("stridemap: note: nothing to convert: "));
    let refusal = dir.refusal(&[&args[..], &["--tag", "v 1"]].concat());
    assert_eq!(
        refusal,
        "convert --tag 'v 1': nothing to convert: the tensors have this dtype, or are of another kind, so no tag is made; to \
         tag the state as it is: stridemap tag s.smap 'v 1'"
    );
}

#[test]
fn nobody_changes_an_element_between_its_conversion_and_the_commit() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let n = 16 << 20;
    store.write(|txn| txn.save_as("m", &Tensor::zeros(DType::F32, &[n])?, StorageKind::Mutable)).unwrap();
    let before = store.generation();
    let m = store.load("m").unwrap();
    let mut child = dir.command(&["convert", "s.smap", "m", "--to", "float16", "-q"]).spawn().unwrap();
    let _deadline = Deadline::of(&child);
    // The new storage appears once the guard is held.
    while fs::read_dir(dir.path("s.smap/storages")).unwrap().count() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let guard = m.lock_exclusive();
    let after = Store::open(dir.path("s.smap")).unwrap().generation();
    drop(guard);
    assert!(child.wait().unwrap().success());
    assert_eq!(after, before + 1, "the tensor could be changed before the commit");
}
