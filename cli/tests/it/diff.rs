//! The `diff` command: its comparisons, output and exit codes. Values are tested in `diff_values.rs`.

use std::fs;

use stridemap::{DType, Store, Tensor};

use crate::harness::Dir;

impl Dir {
    /// Runs `diff`, which must not print messages. Returns whether everything is equal, and the lines of output.
    pub(crate) fn diff(&self, args: &[&str]) -> (bool, String) {
        let run = self.run(&[&["diff"], args].concat());
        assert!(matches!(run.code, Some(0 | 1)) && run.stderr.is_empty(), "{args:?}: {run:?}");
        (run.code == Some(0), run.stdout)
    }

    /// Creates a store of these tensors, each with its own storage.
    pub(crate) fn store_of(&self, name: &str, tensors: &[(&str, Tensor)]) -> Store {
        let store = Store::create(self.path(name)).unwrap();
        for (name, tensor) in tensors {
            store.save(name, tensor).unwrap();
        }
        store
    }
}

fn f32s(values: &[f32]) -> Tensor {
    Tensor::from_vec(values.to_vec(), &[values.len()]).unwrap()
}

#[test]
fn same_tensors_are_equal_in_all_formats() {
    let dir = Dir::with_store();
    let store = dir.store();
    store.save("none", &Tensor::from_vec(Vec::<u8>::new(), &[0, 3]).unwrap()).unwrap();
    store.save("bools", &Tensor::from_vec(vec![true, false], &[2]).unwrap()).unwrap();
    dir.messages(&["export", "s.smap", "a.safetensors"]);
    dir.messages(&["export", "s.smap", "a.npz"]);
    dir.messages(&["export", "s.smap", "f.npz", "--order", "F", "--compress"]);
    let length = |name: &str| fs::metadata(dir.path(name)).unwrap().len();
    assert!(length("f.npz") < length("a.npz"));
    dir.messages(&["import", "f.npz", "f.smap"]);
    dir.messages(&["import", "a.safetensors", "in_place.smap", "--in-place"]);
    let unread = dir.diff(&["s.smap", "a.npz", "--no-values"]).1;
    assert!(unread.contains("equal: 5 tensors, 58 B; values were not compared"), "{unread}");
    let all = ["s.smap", "a.safetensors", "a.npz", "f.npz", "f.smap", "in_place.smap"];
    for a in all {
        for b in all {
            let (is_equal, text) = dir.diff(&[a, b]);
            assert!(
                is_equal && text.lines().last().unwrap().starts_with("equal: 5 tensors, 58 B"),
                "{a} {b}: {text}"
            );
        }
    }
}

#[test]
fn each_difference_is_a_line_and_the_last_line_counts_them() {
    let dir = Dir::empty();
    let tensor = |size: &[usize]| Tensor::zeros(DType::F32, size).unwrap();
    let a = [
        ("both", f32s(&[1., 2., 3.])),
        ("gone", tensor(&[2])),
        ("kind", tensor(&[2])),
        ("same", tensor(&[1])),
    ];
    let b = [
        ("both", f32s(&[1., 4., 2.])),
        ("kind", Tensor::zeros(DType::I64, &[3]).unwrap()),
        ("odd [new]", tensor(&[])),
        ("same", tensor(&[1])),
    ];
    dir.store_of("a", &a);
    dir.store_of("b", &b);
    let (is_equal, text) = dir.diff(&["a", "b"]);
    assert!(!is_equal);
    insta::assert_snapshot!(text.replace('\t', " | "), @r"
    ~ both | values differ in 2 of 3 elements, by at most 2 (relative 0.5), first at [1]: 2, 4
    - gone | float32 | [2]
    ~ kind | dtype float32, int64
    ~ kind | size [2], [3]
    + 'odd [new]' | float32 | []
    different: 1 equal, 2 different, 1 only in A, 1 only in B
    ");
    let (is_equal, text) = dir.diff(&["a", "b", "--no-values"]);
    assert!(!is_equal && !text.contains("both"), "{text}");
    assert!(
        text.ends_with(
            "different: 2 equal, 1 different, 1 only in A, 1 only in B; values were not compared\n"
        )
    );
}

#[test]
fn diff_json_is_one_object_with_fixed_keys() {
    let dir = Dir::empty();
    dir.store_of("a", &[("gone", f32s(&[1.])), ("i", Tensor::from_vec(vec![u64::MAX, 1], &[2]).unwrap())]);
    let b = dir.store_of("b", &[("i", Tensor::from_vec(vec![0u64, 1], &[2]).unwrap())]);
    let mut txn = b.begin().unwrap();
    txn.set_attribute("", "key", "value").unwrap();
    txn.commit().unwrap();
    let (is_equal, json) = dir.diff(&["a", "b", "--json"]);
    let expected = concat!(
        r#"{"v":1,"a":{"path":"a","format":"store"},"b":{"path":"b","format":"store"},"tensors":["#,
        r#"{"name":"gone","kind":"only_in_a","dtype":"float32","size":[1]},"#,
        r#"{"name":"i","kind":"values","numel":2,"differing":1,"nan":0,"max_absolute":18446744073709551615,"#,
        r#""max_relative":"Infinity","first":[0],"a":18446744073709551615,"b":0}],"#,
        r#""attributes":[{"key":"key","a":null,"b":"value"}],"#,
        r#""counts":{"equal":0,"different":1,"only_in_a":1,"only_in_b":0,"failed":0,"other_strides":0},"equal":false}"#,
        "\n"
    );
    assert_eq!((is_equal, json.as_str()), (false, expected));
    let (is_equal, json) = dir.diff(&["a", "a", "--json"]);
    assert!(is_equal && json.ends_with("\"equal\":true}\n"), "{json}");
}

#[test]
fn strides_sharing_and_attributes_matter_only_on_request() {
    let dir = Dir::empty();
    let x = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2]).unwrap();
    let a = dir.store_of("a", &[("x", x.clone())]);
    let saved = a.load("x").unwrap();
    a.save_view("named", &saved.refine_names(&["row", "column"]).unwrap()).unwrap();
    a.save_view("t", &saved.t().unwrap()).unwrap();
    let mut txn = a.begin().unwrap();
    txn.set_attribute("", "key", "value").unwrap();
    txn.commit().unwrap();
    dir.store_of("b", &[("named", x.clone()), ("t", x.t().unwrap()), ("x", x)]);
    let summary =
        "1 with different strides; 2 with different sharing of bytes (--strict); 1 attribute differs";
    assert_eq!(
        dir.diff(&["a", "b"]),
        (true, format!("@ key\tonly in A: value\nequal: 3 tensors, 48 B; {summary}\n"))
    );
    let (is_equal, text) = dir.diff(&["a", "b", "--strict"]);
    assert!(!is_equal);
    insta::assert_snapshot!(text.replace('\t', " | "), @r"
    ~ named | dimension names [row, column], none
    ~ t | shares bytes with named only in A
    ~ t | stride [1, 2], [2, 1]
    ~ x | shares bytes with named only in A
    @ key | only in A: value
    different: 0 equal, 3 with another layout; 1 with different strides; 1 attribute differs
    ");
    let (_, json) = dir.diff(&["a", "b", "--strict", "--json"]);
    assert!(json.contains(r#"{"name":"x","kind":"sharing","side":"A","with":"named"}"#), "{json}");
    assert!(
        json.contains(r#""kind":"layout","a":{"stride":[1,2],"storage_offset":0,"dim_names":null},"#),
        "{json}"
    );
}

#[test]
fn strict_compares_offsets_only_between_tensors_that_share_bytes() {
    let dir = Dir::empty();
    dir.write_safetensors(
        "m.safetensors",
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}}"#,
        &[0; 12],
    );
    for (store, view) in [("x", "a[2:4]"), ("y", "a[3:5]")] {
        dir.messages(&["import", "m.safetensors", store]);
        assert_eq!(
            dir.diff(&[store, "m.safetensors", "--strict"]),
            (true, "equal: 2 tensors, 12 B\n".into())
        );
        dir.messages(&["view", store, view, "part"]);
    }
    let text = "~ part\toffset from a 2, 3\ndifferent: 2 equal, 1 with another layout\n";
    assert_eq!(dir.diff(&["x", "y", "--strict"]), (false, text.into()));
}

#[test]
fn difference_of_attributes_alone_is_reported_on_request() {
    let dir = Dir::empty();
    let texts = ["m\u{1b}[31m", "n\nn"];
    for (store, text) in ["a", "b"].into_iter().zip(texts) {
        let store = dir.store_of(store, &[]);
        let mut txn = store.begin().unwrap();
        txn.set_attribute("", "k\u{7}", text).unwrap();
        txn.commit().unwrap();
    }
    let (is_equal, text) = dir.diff(&["a", "b"]);
    let line = "@ k\\u{7}\tm\\u{1b}[31m, n\\nn\n";
    assert_eq!((is_equal, text), (true, format!("{line}equal: 0 tensors, 0 B; 1 attribute differs\n")));
    let (is_equal, text) = dir.diff(&["a", "b", "--strict"]);
    assert_eq!((is_equal, text), (false, format!("{line}different: 0 equal; 1 attribute differs\n")));
}

#[test]
fn unnamed_tensors_are_compared_whatever_their_file_names() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "one.npy", "points"]);
    dir.messages(&["export", "s.smap", "two.npy", "points"]);
    assert_eq!(dir.diff(&["one.npy", "two.npy"]), (true, "equal: 1 tensor, 24 B\n".into()));
    dir.messages(&["export", "s.smap", "two.npy", "points_t", "--force"]);
    let (is_equal, text) = dir.diff(&["one.npy", "two.npy"]);
    assert_eq!((is_equal, text.lines().next()), (false, Some("~ one\tsize [3, 2], [2, 3]")));
    // The tensor in the store has a name, and it is a different one.
    assert!(dir.diff(&["one.npy", "s.smap"]).1.contains("- one\t"));
}

#[test]
fn unreadable_tensor_is_named_after_the_others_were_compared() {
    let dir = Dir::empty();
    let large = Tensor::zeros(DType::U8, &[5 << 20]).unwrap();
    let tensors = [("a", f32s(&[1.])), ("cut\n", large), ("z", f32s(&[1.]))];
    dir.store_of("a", &tensors);
    dir.store_of("b", &tensors);
    dir.store_of("c", &[("a", f32s(&[1.])), ("cut\n", tensors[1].1.clone()), ("z", f32s(&[2.]))]);
    let info = Store::open(dir.path("b")).unwrap();
    let id = info.load("cut\n").unwrap().storage_id().unwrap();
    let file = dir.path(format!("b/storages/{id:016x}.bin"));
    fs::File::options().write(true).open(file).unwrap().set_len(1 << 20).unwrap();
    for (other, verdict) in
        [("a", "unknown: 2 equal, 1 not compared"), ("c", "different: 1 equal, 1 different, 1 not compared")]
    {
        let run = dir.run(&["diff", other, "b"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert_eq!(run.stdout.lines().last(), Some(verdict), "{run:?}");
        assert!(run.stderr.starts_with("stridemap: diff 'cut\\n': B: "), "{run:?}");
        assert!(
            run.stderr.ends_with("stridemap: diff: 1 tensor could not be compared; the others were\n"),
            "{run:?}"
        );
        let run = dir.run(&["diff", other, "b", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(
            (run.code, &json["equal"], &json["counts"]["failed"]),
            (Some(2), &false.into(), &1.into())
        );
        let failed =
            json["tensors"].as_array().unwrap().iter().find(|found| found["kind"] == "error").unwrap();
        assert_eq!((&failed["name"], &failed["side"]), (&"cut\n".into(), &"B".into()));
    }
}

#[test]
fn unusual_names_stay_on_one_line() {
    let dir = Dir::empty();
    dir.store_of("a", &[("\u{1b}[31mred\n~ x", f32s(&[1.])), ("tab\t", f32s(&[1.]))]);
    dir.store_of("b", &[("\u{1b}[31mred\n~ x", f32s(&[2.]))]);
    let (_, text) = dir.diff(&["a", "b"]);
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(
        text.starts_with("~ '\\u{1b}[31mred\\n~ x'\t") && text.contains("- 'tab\\t'\tfloat32\t[1]"),
        "{text}"
    );
}

#[test]
fn names_and_prefixes_select_what_is_compared() {
    let dir = Dir::empty();
    let a = [("old.b", f32s(&[1.])), ("old.w", f32s(&[1., 2.])), ("x", f32s(&[3.]))];
    let b = [("new.b", f32s(&[1.])), ("new.w", f32s(&[1., 2.5])), ("old.w", f32s(&[1., 2.]))];
    dir.store_of("a", &a);
    let store = dir.store_of("b", &b);
    store.write(|txn| txn.set_attribute("", "only", "here")).unwrap();
    let (is_equal, text) = dir.diff(&["a", "b", "old.w"]);
    assert_eq!((is_equal, text.as_str()), (true, "equal: 1 tensor, 8 B\n"));
    let (_, text) = dir.diff(&["a", "b", "*.b", "x"]);
    assert_eq!(
        text.replace('\t', " | "),
        "+ new.b | float32 | [1]\n- old.b | float32 | [1]\n- x | float32 | [1]\ndifferent: 0 equal, 2 only in A, 1 only in \
         B\n"
    );
    let prefixes = ["a", "b", "--prefix", "old.=new."];
    let (is_equal, text) = dir.diff(&prefixes);
    let line =
        "~ old.w | values differ in 1 of 2 elements, by at most 0.5 (relative 0.2), first at [1]: 2, 2.5";
    let expected = format!("{line}\ndifferent: 1 equal, 1 different\n");
    assert_eq!((is_equal, text.replace('\t', " | ")), (false, expected));
    // A name is then the rest of a name.
    assert_eq!(dir.diff(&[&prefixes[..], &["b"]].concat()).1, "equal: 1 tensor, 4 B\n");
    // Two parts of one store.
    let (_, text) = dir.diff(&["b", "b", "--prefix", "new.=old."]);
    assert!(text.starts_with("- new.b\tfloat32\t[1]\n~ new.w\tvalues differ in 1 of 2 elements"), "{text}");
    // The same prefix in both.
    assert!(dir.diff(&["b", "b", "--prefix", "new."]).0);
    // A name may contain "=".
    dir.store_of("c", &[("k=1.w", f32s(&[1.])), ("k=2.w", f32s(&[1.])), ("k.w", f32s(&[2.]))]);
    assert_eq!(dir.diff(&["c", "c", "--prefix", "k=1.=k=2."]).1, "equal: 1 tensor, 4 B\n");
    assert_eq!(dir.diff(&["c", "c", "--prefix", "k="]).1, "equal: 2 tensors, 8 B\n");
    assert!(dir.diff(&["c", "c", "--prefix", "k.=k=1."]).1.starts_with("~ k.w\tvalues differ"));
    for (args, why) in [
        (&["a", "b", "none*"][..], "diff: no tensor of A or B matches \"none*\""),
        (&["a", "b", "--prefix", "=none."], "diff b: no name begins with \"none.\"; ls lists the names"),
    ] {
        assert_eq!(dir.refusal(&[&["diff"], args].concat()), why);
    }
}

#[test]
fn values_of_different_dtypes_are_compared_as_the_wider() {
    let dir = Dir::empty();
    let f64s = |values: &[f64]| Tensor::from_vec(values.to_vec(), &[values.len()]).unwrap();
    let a = [
        ("b", Tensor::from_vec(vec![true, false], &[2]).unwrap()),
        ("f", f32s(&[1., 0.1])),
        ("i", Tensor::from_vec(vec![1i32, -2], &[2]).unwrap()),
    ];
    let b = [
        ("b", Tensor::from_vec(vec![1u8, 0], &[2]).unwrap()),
        ("f", f64s(&[1., 0.1])),
        ("i", f32s(&[1., -2.5])),
    ];
    dir.store_of("a", &a);
    dir.store_of("b", &b);
    let (is_equal, text) = dir.diff(&["a", "b", "--cast"]);
    assert!(!is_equal);
    insta::assert_snapshot!(text.replace('\t', " | "), @r"
    ~ f | values differ in 1 of 2 elements, by at most 1.4901e-9 (relative 1.4901e-8), first at [1]: 0.1, 0.1
    ~ i | values differ in 1 of 2 elements, by at most 0.5 (relative 0.2), first at [1]: -2, -2.5
    different: 1 equal, 2 different
    ");
    let (is_equal, text) = dir.diff(&["a", "b", "f", "b", "--cast", "--rtol", "1e-6"]);
    assert_eq!((is_equal, text.as_str()), (true, "equal: 2 tensors, 10 B\n"));
    assert!(dir.diff(&["a", "b"]).1.contains("~ f\tdtype float32, float64\n"));
}

#[test]
fn long_diff_is_a_table_that_can_be_sorted_by_change() {
    let dir = Dir::empty();
    let a = [
        ("gone", f32s(&[1.])),
        ("large", f32s(&[3., 0.])),
        ("same", f32s(&[1.])),
        ("small", f32s(&[1., 1.])),
    ];
    let b = [("large", f32s(&[3., 4.])), ("same", f32s(&[1.])), ("small", f32s(&[1., 1.0001]))];
    dir.store_of("a", &a);
    dir.store_of("b", &b);
    let args = &["diff", "a", "b", "-l"][..];
    let text =
        String::from_utf8(dir.command(args).env("STRIDEMAP_COLUMNS", "80").output().unwrap().stdout).unwrap();
    insta::assert_snapshot!(text, @r"
    - gone  float32  [1]
    name   differ         max        rms   relative  cosine
    large       1           4     2.8284        0.8     0.6
    small       1  0.00010002  7.0722e-5  7.0719e-5       1
    different: 1 equal, 2 different, 1 only in A
    ");
    let (_, text) = dir.diff(&["b", "a", "small", "large", "-l", "--sort", "change"]);
    let names: Vec<&str> = text.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(names, ["name", "large", "small", "different: 0 equal, 2 different"]);
    let (_, text) = dir.diff(&["a", "b", "--sort", "change"]);
    assert!(text.starts_with("- gone\tfloat32\t[1]\n~ large\tvalues differ in 1 of 2 elements"), "{text}");
    let (_, json) = dir.diff(&["a", "b", "large", "--json", "-l"]);
    assert!(json.contains(r#""rms":2.8284271247461903,"relative_norm":0.8,"cosine":0.6}"#), "{json}");
    // Infinite, or not a number.
    dir.store_of("zero", &[("large", f32s(&[0., 0.]))]);
    let (_, json) = dir.diff(&["a", "zero", "large", "--json", "-l"]);
    assert!(json.contains(r#""relative_norm":"Infinity","cosine":"NaN"}"#), "{json}");
}
