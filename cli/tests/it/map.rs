//! The `map` command.

use serde_json::json;
use stridemap::{Store, Tensor};

use crate::harness::Dir;

/// Creates a store with views of a matrix of 100 rows of 80 bytes, which is removed, and a second storage.
pub(crate) fn views() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("m", &Tensor::from_vec((0..2000i32).collect(), &[100, 20]).unwrap()).unwrap();
    let m = txn.load("m").unwrap();
    txn.save_view("column", &m.narrow(0, 0, 50).unwrap().select(1, 3).unwrap()).unwrap();
    txn.save_view("top", &m.narrow(0, 0, 25).unwrap()).unwrap();
    txn.save_view("top again", &m.narrow(0, 0, 25).unwrap().t().unwrap()).unwrap();
    txn.save_view("other column", &m.narrow(0, 0, 50).unwrap().select(1, 4).unwrap()).unwrap();
    txn.remove("m").unwrap();
    txn.commit().unwrap();
    store.save("odd [name]", &1u8).unwrap();
    dir
}

#[test]
fn map_shows_shared_skipped_and_unreachable_bytes() {
    insta::assert_snapshot!(views().on_terminal(100, &["du", "--map", "s.smap"]), @r"
    name              map                                      bytes
    0000000000000001  ▓▓▓▓▓▓▓▓▓░░░░░░░░▓··················  7.81 KiB  sealed, 1.70 KiB…6 KiB unreachable
    ├─ top            █████████                             1.95 KiB  shares with top again and 2 more
    ├─ top again      █████████                             1.95 KiB  shares with top and 2 more
    ├─ column         █░░░░░░░░░░░░░░░░█                       200 B  shares with top and 1 more
    └─ other column   █░░░░░░░░░░░░░░░░█                       200 B  shares with top and 1 more
    0000000000000002  ████████████████████████████████████       1 B  sealed
    └─ 'odd [name]'   ████████████████████████████████████       1 B
    share bytes: top, top again, column, other column
    ");
    let unshared = views().on_terminal(80, &["du", "--map", "s.smap", "odd [name]"]);
    assert!(unshared.ends_with("\nno tensors share bytes\n"), "{unshared}");
}

#[test]
fn bar_shrinks_before_names_are_shortened() {
    let dir = Dir::empty();
    let name = "encoder.layers.0.attention.weight";
    Store::create(dir.path("s.smap")).unwrap().save(name, &[0u8; 64]).unwrap();
    for (width, bar) in [(60, 8), (78, 12)] {
        let text = dir.on_terminal(width, &["du", "--map", "s.smap"]);
        assert!(text.contains(&format!("─ {name}  {}  ", "█".repeat(bar))), "{text}");
    }
}

#[test]
fn names_and_globs_select_storages() {
    let dir = views();
    let lines = |names: &[&str]| dir.stdout(&[&["du", "--map", "s.smap"], names].concat()).lines().count();
    assert_eq!(
        [lines(&[]), lines(&["odd [name]"]), lines(&["'odd [name]'"]), lines(&["top*"])],
        [7, 2, 2, 5]
    );
    let missing = dir.refusal(&["du", "--map", "s.smap", "topp"]);
    assert!(missing.contains("did you mean \"top\""), "{missing}");
    assert_eq!(dir.run(&["du", "--map", "s.smap", "x*"]).code, Some(1));
}

#[test]
fn json_has_the_runs_of_bytes_and_who_shares_them() {
    let dir = views();
    let json = dir.json(&["du", "--map", "s.smap", "top"]);
    assert_eq!((&json["v"], json["storages"].as_array().unwrap().len()), (&json!(1), 1));
    let storage = &json["storages"][0];
    // 25 rows, and 2 columns of the other 25 rows.
    let usage = ["size_bytes", "reachable_bytes", "padding_bytes", "unreachable_bytes", "is_exact"]
        .map(|key| &storage[key]);
    let reachable = 25 * 80 + 25 * 8;
    assert_eq!(usage[..2], [&json!(8000), &json!(reachable)]);
    let rest = usage[2].as_u64().unwrap() + usage[3].as_u64().unwrap();
    assert_eq!((rest, usage[4]), (8000 - reachable, &json!(true)));
    let tensors = storage["tensors"].as_array().unwrap();
    let tensor = |name: &str| tensors.iter().find(|tensor| tensor["name"] == name).unwrap();
    assert_eq!(tensors.len(), 4);
    assert_eq!(
        tensor("top"),
        &json!({
            "name": "top", "dtype": "int32", "size": [25, 20], "first_byte": 0, "end_byte": 2000,
            "runs": [[0, 2000]], "shares_with": ["top again", "column", "other column"],
            "is_sharing_determined": true,
        })
    );
    let column = tensor("column");
    assert_eq!((&column["first_byte"], &column["end_byte"]), (&json!(12), &json!(49 * 80 + 16)));
    assert_eq!((&column["runs"][1], column["runs"].as_array().unwrap().len()), (&json!([92, 96]), 50));
    assert_eq!(column["shares_with"], json!(["top", "top again"]), "the other column has no byte of it");
}

#[test]
fn numbers_agree_with_those_of_du() {
    let dir = views();
    let map = dir.json(&["du", "--map", "s.smap"]);
    let du = dir.json(&["du", "s.smap"]);
    let sum = |key: &str| -> u64 {
        map["storages"].as_array().unwrap().iter().map(|storage| storage[key].as_u64().unwrap()).sum()
    };
    // A compaction keeps padding, so du counts it as reachable.
    assert_eq!(du["reachable_bytes"], sum("reachable_bytes") + sum("padding_bytes"));
    assert_eq!(du["reclaimable_bytes"], sum("unreachable_bytes"));
}

#[test]
fn files_have_maps_too() {
    let dir = Dir::empty();
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
        "b":{"dtype":"U8","shape":[2,2],"data_offsets":[4,8]},"none":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}"#;
    dir.write_safetensors("m.safetensors", header, &[0; 8]);
    let lines = dir.on_terminal(100, &["du", "--map", "m.safetensors"]);
    let bar = "█".repeat(18);
    assert!(lines.contains(&format!("├─ a              {bar}  ")), "{lines}");
    assert!(lines.contains(&format!("├─ b              {}{bar}  ", " ".repeat(18))), "{lines}");
    let id = dir.stdout(&["du", "--map", "m.safetensors"]).split_once('\t').unwrap().0.to_owned();
    assert_eq!(
        dir.stdout(&["du", "--map", "m.safetensors"]),
        format!("{id}\t\t8\texternal\n{id}\ta\t4\t\n{id}\tb\t4\t\n{id}\tnone\t0\t\n")
    );
}

#[test]
fn of_many_storages_and_tensors_only_those_that_share_are_drawn() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    for n in 0..60 {
        store.save(&format!("t.{n}"), &[0u8; 4096]).unwrap();
    }
    let mut txn = store.begin().unwrap();
    let first = txn.load("t.0").unwrap();
    txn.save_view("tied", &first).unwrap();
    for n in 0..60 {
        txn.save_view(&format!("part.{n}"), &txn.load("t.1").unwrap().narrow(0, n * 9, 9).unwrap()).unwrap();
    }
    txn.remove("t.1").unwrap();
    txn.commit().unwrap();
    let lines = dir.on_terminal(100, &["du", "--map", "s.smap"]);
    assert!(lines.contains("--all draws them\nshare bytes: "), "{lines}");
    assert!(lines.contains("\nshare bytes: t.0, tied\n"), "{lines}");
    assert!(lines.contains("─ tied ") && !lines.contains("─ part.0 "), "{lines}");
    let all = dir.on_terminal(100, &["du", "--map", "s.smap", "--all"]);
    assert!(all.contains("─ part.59 ") && all.contains("─ t.59 "), "{all}");
    assert!(!all.contains("--all"), "{all}");
    assert!(dir.stdout(&["du", "--map", "s.smap"]).contains("\tpart.59\t"));
}

#[test]
fn a_tensor_that_encloses_many_others_shares_bytes_with_all_of_them() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("m", &Tensor::from_vec((0..2000i32).collect(), &[10, 200]).unwrap()).unwrap();
    let m = txn.load("m").unwrap();
    for n in 0..200 {
        // The ranges of the columns overlap, but they have no byte in common.
        txn.save_view(&format!("column.{n}"), &m.select(1, n).unwrap()).unwrap();
    }
    txn.commit().unwrap();
    let json = dir.json(&["du", "--map", "s.smap"]);
    for tensor in json["storages"][0]["tensors"].as_array().unwrap() {
        let shares_with = &tensor["shares_with"];
        match tensor["name"].as_str().unwrap() {
            "m" => assert_eq!(shares_with.as_array().unwrap().len(), 200),
            column => assert_eq!(shares_with, &json!(["m"]), "{column}"),
        }
    }
}

/// Creates a store with a sparse file in place, and `count` views of it whose strides make it hard to find out whether
/// they share bytes.
fn contrived(count: usize) -> Dir {
    let dir = Dir::empty();
    let length = 3usize << 40;
    let header = format!(r#"{{"big":{{"dtype":"U8","shape":[{length}],"data_offsets":[0,{length}]}}}}"#);
    dir.write_safetensors("big.safetensors", &header, &[]);
    let file = std::fs::File::options().write(true).open(dir.path("big.safetensors")).unwrap();
    file.set_len((8 + header.len() + length) as u64).unwrap();
    dir.messages(&["import", "--in-place", "--quiet", "big.safetensors", "s.smap"]);
    let options = stridemap::StoreOptions::new().external(stridemap::ExternalFiles::Beside);
    let store = options.open(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    let big = txn.load("big").unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    for index in 0..count {
        let stride: Vec<isize> = (0..40).map(|_| random.isize(1 << 35..1 << 36)).collect();
        let view = big.as_strided([2; 40], &stride, random.usize(..1000)).unwrap();
        txn.save_view(&format!("hard.{index:04}"), &view).unwrap();
    }
    txn.remove("big").unwrap();
    txn.commit().unwrap();
    dir
}

#[test]
fn sharing_that_takes_too_long_to_find_is_not_determined() {
    let dir = contrived(200);
    dir.messages(&["view", "s.smap", "hard.0000[0, ..., :1]", "easy"]);
    let said = "whether 201 tensors share bytes was not determined: their strides are unusual";
    assert!(dir.stdout(&["info", "s.smap"]).ends_with(&format!("warnings\t{said}\n")));
    let info = dir.json(&["info", "s.smap"]);
    assert_eq!(info["store"]["warnings"], json!([said]));
    assert!(dir.on_terminal(100, &["du", "--map", "s.smap"]).ends_with(&format!("\n{said}\n")));
    let text = dir.on_terminal(100, &["du", "--map", "s.smap", "--all"]);
    assert!(text.contains("sharing not determined\n"), "{text}");
    let map = dir.json(&["du", "--map", "s.smap"]);
    let tensors = map["storages"][0]["tensors"].as_array().unwrap();
    assert!(tensors.iter().all(|tensor| tensor["is_sharing_determined"] == false));
    dir.messages(&["report", "s.smap", "--max-read", "0", "-o", "s.html"]);
    assert!(std::fs::read_to_string(dir.path("s.html")).unwrap().contains(said));
    let diff = dir.run(&["diff", "--strict", "--no-values", "s.smap", "s.smap"]);
    assert!(diff.code == Some(0) && diff.stderr.contains(said), "{diff:?}");
}
