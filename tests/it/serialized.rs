//! Headers and reports as JSON (feature `serde`).

use serde_json::json;
use stridemap::{Store, TensorInfo};

use crate::harness::filled;
use crate::support::temporary;

#[test]
fn headers_and_storages_are_serialized_with_the_names_of_their_parts() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    store.save("x", &[[1f32, 2., 3.], [4., 5., 6.]]).unwrap();
    let column = store.load("x").unwrap().select(1, 1).unwrap();
    store.save_view("column", &column.rename(&[Some("row")]).unwrap()).unwrap();
    let infos: Vec<TensorInfo> = store.snapshot().iter_tensors("").unwrap().map(Result::unwrap).collect();
    let expected = json!([
        {
            "name": "column", "dtype": "float32", "size": [2], "stride": [3], "storage_offset": 1, "storage_id": 1,
            "dim_names": ["row"],
        },
        {
            "name": "x", "dtype": "float32", "size": [2, 3], "stride": [3, 1], "storage_offset": 0, "storage_id": 1,
            "dim_names": null,
        },
    ]);
    assert_eq!(serde_json::to_value(&infos).unwrap(), expected);
    let storage = store.snapshot().storages().next().unwrap().unwrap();
    let shown = serde_json::to_value(&storage).unwrap();
    assert_eq!(
        (&shown["kind"], &shown["size_bytes"], &shown["tensor_count"]),
        (&json!("sealed"), &json!(24), &json!(2))
    );
}

#[test]
fn findings_of_a_damaged_store_are_serialized_with_their_rule() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    store.save("x", &filled(5, 1i64)).unwrap();
    let file = store.path().join("storages/0000000000000001.bin");
    std::fs::write(&file, [0; 40]).unwrap();
    let report = serde_json::to_value(store.verify(|_| ()).unwrap()).unwrap();
    assert_eq!(report["findings"][0]["rule"], "F-25");
    let finding = &report["findings"][0];
    let affected = (&finding["affects_all"], &finding["names"], &finding["more_names"]);
    assert_eq!(affected, (&json!(false), &json!(["x"]), &json!(0)));
    assert_eq!(report["read_bytes"], 40);
    store.remove("x").unwrap();
    assert_eq!(serde_json::to_value(store.compact(false, |_| ()).unwrap()).unwrap()["storage_count"], 0);
}
