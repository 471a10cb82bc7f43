//! The `show` command: expressions and elements.

use stridemap::{DType, Store, Tensor};

use crate::harness::Dir;

#[test]
fn show_prints_as_pytorch_does() {
    let dir = Dir::with_store();
    insta::assert_snapshot!(dir.stdout(&["show", "s.smap", "points"]), @r"
    tensor([[1., 4.],
            [2., 1.],
            [3., 5.]])
    ");
    insta::assert_snapshot!(dir.stdout(&["show", "s.smap", "points_t.flip(1)[:, ::2]"]), @r"
    tensor([[3., 1.],
            [5., 4.]])
    ");
}

#[test]
fn the_only_tensor_needs_no_name() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "one.npy", "odd [name]"]);
    assert_eq!(dir.stdout(&["show", "one.npy"]), "tensor(7)\n");
    assert_eq!(dir.stdout(&["plot", "one.npy"]), dir.stdout(&["plot", "one.npy", "one"]));
    for verb in ["show", "plot"] {
        assert_eq!(
            dir.refusal(&[verb, "s.smap"]),
            format!("{verb} s.smap: it has 3 tensors; name the one to {verb}, as ls prints it")
        );
    }
}

#[test]
fn show_accepts_quoted_names() {
    let dir = Dir::with_store();
    assert_eq!(dir.stdout(&["show", "s.smap", "'odd [name]'"]), "tensor(7)\n");
    assert_eq!(dir.stdout(&["show", "s.smap", "'odd [name]'[None, ...]"]), "tensor([7])\n");
}

#[test]
fn property_after_a_bare_name_is_read_unless_a_tensor_has_that_name() {
    let dir = Dir::with_store();
    let transposed = dir.stdout(&["show", "s.smap", "points.t()"]);
    for expr in ["points.T", "points.T.T.T", "points.real.mT", "points.T[:]"] {
        assert_eq!(dir.stdout(&["show", "s.smap", expr]), transposed, "{expr}");
    }
    dir.messages(&["view", "s.smap", "points.T", "new"]);
    assert_eq!(dir.stdout(&["show", "s.smap", "new"]), transposed);
    dir.messages(&["view", "s.smap", "points[0]", "points.T"]);
    assert_eq!(dir.run(&["show", "s.smap", "points.T"]).stdout, "tensor([1., 4.])\n");
    assert!(
        dir.refusal(&["show", "s.smap", "point.T"]).starts_with("load \"point.T\": no tensor with this name")
    );
}

#[test]
fn dtype_may_be_spelled_as_in_pytorch() {
    let dir = Dir::with_store();
    let bytes = dir.stdout(&["show", "s.smap", "points.view(uint8)"]);
    assert_eq!(dir.stdout(&["show", "s.smap", "points.view(torch.uint8)"]), bytes);
}

#[test]
fn show_json_has_the_header_of_the_view_and_flat_values() {
    let dir = Dir::with_store();
    assert_eq!(
        dir.stdout(&["show", "s.smap", "points.t()[:, ::-1]", "--json"]),
        concat!(
            r#"{"v":1,"name":"points","dtype":"float32","size":[2,3],"stride":[1,-2],"storage_offset":4,"#,
            r#""values":[3.0,2.0,1.0,5.0,1.0,4.0]}"#,
            "\n"
        )
    );
}

#[test]
fn show_json_of_no_elements_has_no_values() {
    let json = Dir::with_store().stdout(&["show", "s.smap", "points[3:]", "--json"]);
    assert!(
        json.ends_with("\"size\":[0,2],\"stride\":[2,1],\"storage_offset\":0,\"values\":[]}\n"),
        "{json}"
    );
}

#[test]
fn show_json_writes_every_kind_of_element() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let real = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0., 0.1, 1e300];
    let parts: Vec<u8> = [1.5f32, f32::NAN].iter().flat_map(|part| part.to_le_bytes()).collect();
    for (name, tensor, values) in [
        ("bool", Tensor::from_vec(vec![true, false], &[2]), "[true,false]"),
        ("u64", Tensor::from_vec(vec![u64::MAX], &[1]), "[18446744073709551615]"),
        ("i64", Tensor::from_vec(vec![i64::MIN], &[]), "[-9223372036854775808]"),
        ("f64", Tensor::from_vec(real.to_vec(), &[6]), r#"["NaN","Infinity","-Infinity",-0.0,0.1,1e+300]"#),
        ("f32", Tensor::from_vec(vec![0.1f32], &[1]), "[0.10000000149011612]"),
        ("bf16", Tensor::from_bytes(DType::BF16, &[1], &[0x80, 0x3f]), "[1.0]"),
        ("f8", Tensor::from_bytes(DType::F8E4M3FN, &[2], &[0x7e, 0xff]), r#"[448.0,"NaN"]"#),
        ("c64", Tensor::from_bytes(DType::C64, &[1], &parts), r#"[[1.5,"NaN"]]"#),
        ("f4", Tensor::from_bytes(DType::F4E2M1FNx2, &[1], &[0x7f]), "[[-6.0,6.0]]"),
    ] {
        store.save(name, &tensor.unwrap()).unwrap();
        let json = dir.stdout(&["show", "s.smap", name, "--json"]);
        assert_eq!(json.split_once("\"values\":").unwrap().1, format!("{values}}}\n"), "{name}");
    }
}

#[test]
fn show_json_has_the_dtype_of_a_view_by_dtype() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.save("bytes", &Tensor::from_vec(vec![1u8; 16], &[16]).unwrap()).unwrap();
    for &dtype in DType::ALL {
        let json = dir.stdout(&["show", "s.smap", &format!("bytes.view({dtype})"), "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["dtype"], dtype.name());
        assert_eq!(json["values"].as_array().unwrap().len(), 16 / dtype.itemsize(), "{json}");
    }
}

#[test]
fn show_json_of_several_pieces_keeps_the_logical_order() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let (rows, columns) = (300i64, 701i64);
    let matrix = Tensor::from_vec((0..rows * columns).collect(), &[1, 300, 701]).unwrap();
    store.save("m", &matrix).unwrap();
    let json = dir.stdout(&["show", "s.smap", "m[0].t()[None]", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let values: Vec<i64> = json["values"].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect();
    let transposed: Vec<i64> = (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c)).collect();
    assert!(values == transposed);
}

/// Creates a store with a matrix of 60 by 40, whose elements need many digits.
fn with_matrix() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let matrix: Vec<f32> = (0..2400).map(|n| n as f32 / 7.).collect();
    store.save("m", &Tensor::from_vec(matrix, &[60, 40]).unwrap()).unwrap();
    dir
}

#[test]
fn large_tensor_is_shown_at_its_edges_and_completely_with_all() {
    let dir = with_matrix();
    let show = |args: &[&str]| dir.stdout(&[&["show", "s.smap"], args].concat());
    assert_eq!(show(&["m[0, 1:4]"]), "tensor([0.1429, 0.2857, 0.4286])\n");
    assert_eq!(show(&["m"]).matches("...").count(), 7);
    // Without an ellipsis.
    let all = show(&["m", "--all"]);
    assert_eq!((all.matches('.').count(), all.matches("...").count()), (2400, 0));
}

#[test]
fn csv_has_a_line_for_each_row_and_every_digit() {
    let dir = with_matrix();
    let csv = |expr: &str| dir.stdout(&["show", "s.smap", expr, "--format", "csv"]);
    assert_eq!(csv("m[:2, 1:4]"), "0.14285715,0.2857143,0.42857143\n5.857143,6,6.142857\n");
    assert_eq!(csv("m[0, :3]"), "0\n0.14285715\n0.2857143\n");
    assert_eq!(csv("m[0, 7]"), "1\n");
    assert_eq!(csv("m[:4, :2].reshape(2, 2, 2)").lines().count(), 4);
    assert_eq!(csv("m[:0]"), "");
}

#[test]
fn csv_writes_every_kind_of_element() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let csv = |x: Tensor| {
        store.save("x", &x).unwrap();
        dir.stdout(&["show", "s.smap", "x", "--format", "csv"])
    };
    assert_eq!(csv(Tensor::from_vec(vec![true, false], &[1, 2]).unwrap()), "True,False\n");
    assert_eq!(csv(Tensor::from_vec(vec![i64::MIN, 3], &[1, 2]).unwrap()), "-9223372036854775808,3\n");
    assert_eq!(csv(Tensor::from_vec(vec![f64::NAN, f64::INFINITY, 0.1], &[1, 3]).unwrap()), "NaN,inf,0.1\n");
    let complex = Tensor::from_vec(vec![1f32, -0.5, 0.1, 2.], &[2, 2]).unwrap();
    let complex = complex.view_dtype(DType::C64).unwrap();
    assert_eq!(csv(complex), "1-0.5j\n0.1+2j\n");
}

#[test]
fn npy_is_the_same_as_an_exported_file() {
    let dir = with_matrix();
    dir.messages(&["export", "s.smap", "m.npy"]);
    let piped = dir.command(&["show", "s.smap", "m", "--format", "npy"]).output().unwrap();
    assert_eq!(piped.stdout, std::fs::read(dir.path("m.npy")).unwrap());
    assert_eq!(dir.run(&["show", "s.smap", "m", "--format", "npy", "--json"]).code, Some(2));
}
