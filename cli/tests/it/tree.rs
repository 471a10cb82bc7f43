//! The `tree` command.

use serde_json::json;
use stridemap::{Store, Tensor};

use crate::harness::Dir;

/// Creates a store with twelve layers, the last of them different, and three other tensors.
pub(crate) fn layers() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    let mut save = |name: &str, numel: usize| {
        txn.save(name, &Tensor::from_vec(vec![0f32; numel], &[numel]).unwrap()).unwrap();
    };
    for layer in 0..12 {
        save(&format!("model.layer.{layer}.weight"), if layer == 11 { 20 } else { 10 });
        save(&format!("model.layer.{layer}.bias"), 1);
    }
    save("model.conv1", 2);
    save("model.conv2", 2);
    save("model", 3);
    txn.commit().unwrap();
    dir
}

#[test]
fn siblings_that_are_alike_are_shown_once() {
    insta::assert_snapshot!(layers().on_terminal(80, &["tree", "s.smap"]), @r"
    name                 dtype    size  parameters      bytes
    s.smap                                     149      596 B
    ├─ model             float32  [3]            3       12 B
    └─ model                                   146      584 B
       ├─ conv1 … conv2  float32  [2]        2 × 2    2 × 8 B
       └─ layer                                142      568 B
          ├─ 0 … 10                        11 × 11  11 × 44 B
          │  ├─ bias     float32  [1]            1        4 B
          │  └─ weight   float32  [10]          10       40 B
          └─ 11                                 21       84 B
             ├─ bias     float32  [1]            1        4 B
             └─ weight   float32  [20]          20       80 B
    ");
}

/// Writes a file with tensors of these names and sizes.
fn write(dir: &Dir, names: impl IntoIterator<Item = (String, usize)>) {
    let entry = |(name, n)| format!(r#""{name}":{{"dtype":"BF16","shape":[0,{n}],"data_offsets":[0,0]}}"#);
    let entries: Vec<String> = names.into_iter().map(entry).collect();
    dir.write_safetensors("m.safetensors", &format!("{{{}}}", entries.join(",")), &[]);
}

#[test]
fn mixture_of_experts_fits_one_screen() {
    let dir = Dir::empty();
    let mut names = vec![("lm_head.weight".to_owned(), 9), ("model.norm.weight".to_owned(), 8)];
    for layer in 0..48 {
        let mut add = |name: &str, n: usize| names.push((format!("model.layers.{layer}.{name}.weight"), n));
        ["q", "k", "v"].iter().for_each(|part| add(&format!("self_attn.{part}_proj"), 5));
        add("mlp.gate", 4);
        for expert in 0..128 {
            ["down", "gate", "up"]
                .iter()
                .for_each(|part| add(&format!("mlp.experts.{expert}.{part}_proj"), 3));
        }
    }
    write(&dir, names);
    let screen = dir.on_terminal(80, &["tree", "m.safetensors"]);
    assert!(screen.lines().count() <= 40, "{screen}");
    assert!(screen.contains("─ 0 … 47 ") && screen.contains("─ 0 … 127 "), "{screen}");
    let screen = dir.on_terminal(80, &["info", "m.safetensors"]);
    assert!(screen.lines().count() <= 24 && screen.contains("model "), "{screen}");
}

#[test]
fn alike_siblings_are_folded_through_single_children_and_slashes() {
    let dir = Dir::empty();
    let mut names = Vec::new();
    for layer in 8..12 {
        for expert in 0..3 {
            names.push((format!("h.{layer}.moe.experts.e{expert}_up/kernel"), 3));
        }
        names.push((format!("h.{layer}.moe.experts.router"), if layer == 11 { 5 } else { 4 }));
    }
    write(&dir, names);
    let screen = dir.on_terminal(100, &["tree", "m.safetensors"]);
    assert!(
        screen.contains(" 8.moe.experts … 10.moe.experts ") && screen.contains(" e0_up/ … e2_up/ "),
        "{screen}"
    );
    let screen = dir.on_terminal(100, &["info", "m.safetensors"]);
    assert!(screen.contains("h.8.moe.experts … h.10.moe.experts ") && screen.contains(" 3 × 4 "), "{screen}");
    let piped = dir.stdout(&["tree", "m.safetensors"]);
    assert!(piped.contains("\nh.8.moe.experts\t\t\t0\t0\n"), "{piped}");
    assert!(
        piped.contains(
            "\nh.8.moe.experts.e0_up/\t\t\t0\t0\nh.8.moe.experts.e0_up/kernel\tbfloat16\t[0, 3]\t0\t0\n"
        ),
        "{piped}"
    );
    let json = dir.json(&["tree", "m.safetensors"]);
    let layer = &json["parts"][0]["parts"][0];
    assert_eq!((&layer["name"], &layer["parts"][0]["name"]), (&json!("8.moe.experts"), &json!("e0_up/")));
    let piped = dir.stdout(&["info", "m.safetensors"]);
    assert_eq!(piped.lines().filter(|line| line.starts_with("modules\t")).count(), 4, "{piped}");
}

#[test]
fn depth_limits_the_levels_and_all_shows_every_tensor() {
    let dir = layers();
    let lines = |args: &[&str]| dir.stdout(&[&["tree", "s.smap"], args].concat()).lines().count();
    assert_eq!([lines(&["--depth", "0"]), lines(&["--depth", "1"]), lines(&["--depth", "2"])], [1, 3, 6]);
    assert_eq!([lines(&[]), lines(&["--all"])], [1 + 2 + 2 + 1 + 12 * 3; 2]);
    let text = dir.stdout(&["tree", "s.smap"]);
    assert!(text.contains("\nmodel\tfloat32\t[3]\t3\t12\nmodel\t\t\t146\t584\n"), "{text}");
    assert!(text.contains("\nmodel.layer.0\t\t\t11\t44\nmodel.layer.0.bias\tfloat32\t[1]\t1\t4\n"), "{text}");
}

#[test]
fn large_tree_is_cut_unless_all_of_it_is_asked_for() {
    let dir = Dir::empty();
    let tensors: Vec<String> = (0..3000)
        .map(|n| format!(r#""m.{n}":{{"dtype":"U8","shape":[0,{n}],"data_offsets":[0,0]}}"#))
        .collect();
    dir.write_safetensors("m.safetensors", &format!("{{{}}}", tensors.join(",")), &[]);
    let text = dir.on_terminal(80, &["tree", "m.safetensors"]);
    assert!(text.ends_with("... and 2002 more; --all has all of them\n"), "{text}");
    assert_eq!(dir.on_terminal(80, &["tree", "m.safetensors", "--all"]).lines().count(), 3003);
    assert_eq!(dir.stdout(&["tree", "m.safetensors"]).lines().count(), 3002);
}

#[test]
fn json_has_parts_in_parts() {
    let dir = layers();
    let json = dir.json(&["tree", "s.smap"]);
    assert_eq!((&json["v"], &json["numel"], &json["tensor_count"]), (&json!(1), &json!(149), &json!(27)));
    let model = [&json["parts"][0], &json["parts"][1]];
    assert_eq!(model.map(|part| &part["name"]), ["model", "model"]);
    assert_eq!(model.map(|part| &part["numel"]), [&json!(3), &json!(146)]);
    let layer = &model[1]["parts"][2]["parts"][10];
    assert_eq!(layer["name"], "10");
    assert_eq!(
        layer["parts"][1],
        json!({
            "name": "weight", "tensor_count": 1, "numel": 10, "nbytes": 40, "dtype": "float32",
            "size": [10], "parts": [],
        })
    );
}

#[test]
fn name_with_thousands_of_dots_is_shown() {
    let dir = Dir::empty();
    let name = "a.".repeat(2000);
    let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#);
    dir.write_safetensors("m.safetensors", &header, &[]);
    assert!(dir.stdout(&["tree", "m.safetensors"]).contains("a.a.a."));
}
