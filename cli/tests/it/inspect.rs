//! `info --all`.

use stridemap::{StorageKind, Store, Tensor};

use crate::harness::Dir;

#[test]
fn inspect_json_is_one_object_with_fixed_keys_in_fixed_order() {
    let dir = Dir::with_store();
    let json = dir.stdout(&["info", "--all", "s.smap", "--json"]);
    let expected = concat!(
        r#"{"v":1,"store":{"path":"s.smap","uuid":"UUID","generation":2,"tensor_count":3,"storage_count":1,"#,
        r#""nbytes":56,"stored_size_bytes":STORED,"format":"store","numel":13,"dtypes":["#,
        r#"{"name":"float32","tensor_count":2,"numel":12,"nbytes":48},"#,
        r#"{"name":"int64","tensor_count":1,"numel":1,"nbytes":8}],"modules":[],"warnings":[]},"tensors":["#,
        r#"{"name":"odd [name]","dtype":"int64","size":[],"stride":[],"storage_offset":OFFSET,"#,
        r#""storage":"0000000000000001","is_contiguous":true,"numel":1,"nbytes":8,"dim_names":null},"#,
        r#"{"name":"points","dtype":"float32","size":[3,2],"stride":[2,1],"storage_offset":0,"#,
        r#""storage":"0000000000000001","is_contiguous":true,"numel":6,"nbytes":24,"dim_names":null},"#,
        r#"{"name":"points_t","dtype":"float32","size":[2,3],"stride":[1,2],"storage_offset":0,"#,
        r#""storage":"0000000000000001","is_contiguous":false,"numel":6,"nbytes":24,"dim_names":null}"#,
        r#"],"storages":[{"id":"0000000000000001","kind":"sealed","size_bytes":STORED,"#,
        r#""file":"storages/0000000000000001.bin","offset_bytes":0,"tensor_count":3}],"attributes":{"format":"pt"}}"#,
        "\n",
    );
    let store = dir.store();
    let storage = store.snapshot().storages().next().unwrap().unwrap();
    let expected = expected
        .replace("UUID", &store.uuid())
        .replace("STORED", &storage.size_bytes.to_string())
        .replace("OFFSET", &store.load("odd [name]").unwrap().storage_offset().to_string());
    assert_eq!(json, expected);
}

#[test]
fn inspect_json_of_an_empty_store_has_empty_lists() {
    let dir = Dir::empty();
    Store::create(dir.path("s.smap")).unwrap();
    let json = dir.stdout(&["info", "--all", "s.smap", "--json"]);
    assert!(json.ends_with("\"warnings\":[]},\"tensors\":[],\"storages\":[],\"attributes\":{}}\n"), "{json}");
}

#[test]
fn live_storage_is_listed_with_its_kind() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let x = Tensor::from_vec(vec![1i32, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
    store.write(|txn| txn.save_as("x", &x, StorageKind::Live)).unwrap();
    let json = dir.stdout(&["info", "--all", "s.smap", "--json"]);
    assert!(
        json.contains(r#""storages":[{"id":"0000000000000001","kind":"live","size_bytes":24,"#),
        "{json}"
    );
    let text = dir.on_terminal(100, &["info", "--all", "s.smap"]);
    assert!(text.contains("0000000000000001  live     24  storages/0000000000000001.bin"), "{text}");
}

#[test]
fn inspect_prints_summary_tensors_storages_and_attributes() {
    let dir = Dir::with_store();
    let text = dir.on_terminal(100, &["info", "--all", "s.smap"]).replace(&dir.store().uuid(), "UUID");
    insta::assert_snapshot!(text, @r"
    path        s.smap
    format      store, generation 2
    uuid        UUID
    tensors     3, 7 parameters, 32 B (with views: 13, 56 B)
    storages    1, 72 B

    name          dtype    size    stride  offset  storage
    'odd [name]'  int64    []      []           8  0000000000000001
    points        float32  [3, 2]  [2, 1]       0  0000000000000001
    points_t      float32  [2, 3]  [1, 2]       0  0000000000000001

    storage           kind    bytes  file                           offset  tensors
    0000000000000001  sealed     72  storages/0000000000000001.bin       0        3

    attributes
      format = pt
    ");
}

#[test]
fn inspect_has_a_column_for_dimension_names_if_there_are_any() {
    let dir = Dir::with_store();
    let store = dir.store();
    let points = store.load("points").unwrap();
    store.save_view("named", &points.refine_names(&["row", "..."]).unwrap()).unwrap();
    let text = dir.on_terminal(100, &["info", "--all", "s.smap"]);
    let tensors: Vec<&str> = text.lines().skip(6).take(5).map(str::trim_end).collect();
    insta::assert_snapshot!(tensors.join("\n"), @r"
    name          dtype    size    stride  offset  storage           dim names
    named         float32  [3, 2]  [2, 1]       0  0000000000000001  [row, None]
    'odd [name]'  int64    []      []           8  0000000000000001
    points        float32  [3, 2]  [2, 1]       0  0000000000000001
    points_t      float32  [2, 3]  [1, 2]       0  0000000000000001
    ");
    let json = dir.json(&["info", "--all", "s.smap"]);
    let names: Vec<String> =
        json["tensors"].as_array().unwrap().iter().map(|tensor| tensor["dim_names"].to_string()).collect();
    assert_eq!(names, [r#"["row",null]"#, "null", "null", "null"]);
}

#[test]
fn inspect_prints_the_first_thousand_tensors_and_the_number_of_the_others() {
    let dir = Dir::with_store();
    let store = dir.store();
    let mut txn = store.begin().unwrap();
    let points = txn.load("points").unwrap();
    for index in 0..1000 {
        txn.save_view(&format!("view {index:04}"), &points).unwrap();
    }
    txn.commit().unwrap();
    let text = dir.on_terminal(100, &["info", "--all", "s.smap"]);
    assert!(text.contains("\nview 0996 ") && !text.contains("view 0997"), "{text}");
    assert!(text.contains("\n... and 3 more; --json has all of them\n\nstorage "), "{text}");
    assert_eq!(dir.stdout(&["info", "--all", "s.smap", "--json"]).matches("\"view ").count(), 1000);
}
