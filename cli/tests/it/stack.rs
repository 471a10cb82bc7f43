//! `view --stack` and `import --fuse`: one name for tensors whose names differ in a number, and the reverse.

use std::fs;

use serde_json::json;
use stridemap::Tensor;

use crate::harness::Dir;

/// Writes a file with these tensors of 2 by 3 elements, in ascending order of name, as other programs write them. Each
/// element is the number given with the name.
fn write(dir: &Dir, file: &str, tensors: &[(String, f32)]) {
    let mut tensors = tensors.to_vec();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let entry = |(i, (name, _)): (usize, &(String, f32))| {
        format!(r#""{name}":{{"dtype":"F32","shape":[2,3],"data_offsets":[{},{}]}}"#, 24 * i, 24 * i + 24)
    };
    let entries: Vec<String> = tensors.iter().enumerate().map(entry).collect();
    let elements: Vec<u8> =
        tensors.iter().flat_map(|(_, value)| [*value; 6]).flat_map(f32::to_le_bytes).collect();
    dir.write_safetensors(file, &format!("{{{}}}", entries.join(",")), &elements);
}

/// Returns the names of the experts of two layers, and a number for each.
fn experts() -> Vec<(String, f32)> {
    let experts = (1..3).flat_map(|layer| (0..12).map(move |expert| (layer, expert)));
    experts.map(|(l, e)| (format!("layers.{l}.experts.{e}.up"), (100 * l + e) as f32)).collect()
}

const PATTERN: &str = "layers.{}.experts.{}.up";

fn with_experts() -> Dir {
    let dir = Dir::empty();
    let mut tensors = experts();
    tensors.push(("router".to_owned(), 7.));
    write(&dir, "m.safetensors", &tensors);
    dir
}

/// Returns the first element of each position of a tensor.
fn firsts(dir: &Dir, name: &str) -> Vec<f32> {
    let tensor = dir.store().load(name).unwrap();
    let parts = tensor.unbind(0).unwrap();
    parts.iter().map(|part| part.read::<f32>().unwrap()[0]).collect()
}

#[test]
fn fused_tensors_are_one_view_in_the_order_of_their_numbers() {
    let dir = with_experts();
    let planned = dir.stdout(&["import", "m.safetensors", "s.smap", "--fuse", PATTERN, "-n"]);
    assert!(
        planned.ends_with("\nwould fuse layers.{}.experts.{}.up: 24 tensors in 2 runs without gaps\n"),
        "{planned}"
    );
    let said = dir.messages(&["import", "m.safetensors", "s.smap", "--fuse", PATTERN, "-v"]);
    assert!(said.contains("\nstridemap: m.safetensors: copied 24 B\n"), "{said}");
    dir.messages(&["import", "m.safetensors", "plain.smap"]);
    let said = dir.stdout(&["diff", "s.smap", "plain.smap"]);
    assert!(said.starts_with("equal: 25 tensors"), "{said}");

    let stacked = ["view", "s.smap", "--stack", PATTERN, "layers.{}.experts.up"];
    let line = |layer: u32| {
        format!("layers.{layer}.experts.{{}}.up (float32 [12, 2, 3]) as layers.{layer}.experts.up")
    };
    assert_eq!(
        dir.stdout(&[&stacked[..], &["-n"]].concat()),
        format!("would save {}\nwould save {}\n", line(1), line(2))
    );
    let said = dir.messages(&stacked);
    assert_eq!(said, format!("stridemap: saved 2 views, such as {}: generation 3\n", line(1)));
    let store = dir.store();
    for layer in 1..3 {
        let name = format!("layers.{layer}.experts.up");
        assert_eq!(
            firsts(&dir, &name),
            (0..12).map(|expert| (100 * layer + expert) as f32).collect::<Vec<_>>()
        );
        let whole = store.load(&name).unwrap();
        assert!(whole.is_contiguous());
        assert!(whole.overlaps(&store.load(&format!("layers.{layer}.experts.7.up")).unwrap()));
    }
    assert_eq!(store.load("router").unwrap().read::<f32>().unwrap(), [7.; 6]);
}

#[test]
fn each_position_of_a_tensor_gets_a_name() {
    let dir = with_experts();
    dir.messages(&["import", "m.safetensors", "s.smap", "--fuse", PATTERN]);
    dir.messages(&["view", "s.smap", "--stack", PATTERN, "l{}/up"]);
    let said = dir.messages(&["view", "s.smap", "l{}/up[{}]", "l{}/e{}"]);
    assert_eq!(said, "stridemap: saved 24 views, such as l1/up[0] (float32 [2, 3]) as l1/e0: generation 4\n");
    assert_eq!(firsts(&dir, "l2/e11"), [211.; 2]);
    // Without other numbers, it is any expression.
    dir.messages(&["view", "s.smap", "l1/up[8:, 0].flip(0)[{}]", "last.{}"]);
    assert_eq!(dir.stdout(&["ls", "s.smap", "last."]), "last.0\nlast.1\nlast.2\nlast.3\n");
    assert_eq!(dir.store().load("last.0").unwrap().read::<f32>().unwrap(), [111.; 3]);
    dir.messages(&["view", "s.smap", "l1/up[3]", "one"]);
    assert_eq!(firsts(&dir, "one"), [103.; 2]);
    for (expr, new, why) in [
        (
            "l{}/up[{}]",
            "l{}/e",
            "view: the new name \"l{}/e\" has 1 {}, and needs 2: one for each {} of the expression",
        ),
        ("router.view(6)[0][{}]", "r.{}", "view: router.view(6)[0] has no dimensions"),
        ("l{}/down[{}]", "{}.{}", "view: no tensor matches \"l{}/down\""),
        (
            "router.expand(100001, 2, 3)[{}]",
            "r.{}",
            "view: router.expand(100001, 2, 3)[{}] stands for more than 100000 views, the most at once",
        ),
        (
            "router",
            "r.{}",
            "view: the new name \"r.{}\" has {}, which stands for each position if the expression ends with [{}]; write -- \
             before the arguments if it is meant as a name",
        ),
    ] {
        let run = dir.run(&["view", "s.smap", expr, new]);
        assert_eq!(run.stderr, format!("stridemap: {why}\n"));
    }
    for inside in ["l1/up[{},0]", "l1/up[{}].t()"] {
        let said = dir.run(&["view", "s.smap", inside, "r.{}"]).stderr;
        assert!(said.ends_with("and for each position in [{}] at the end\n"), "{said}");
    }
    dir.messages(&["view", "s.smap", "--", "router", "r.{}"]);
    assert_eq!(dir.stdout(&["ls", "s.smap", "'r.{}'"]), "r.{}\n");
}

#[test]
fn tensors_that_lie_apart_are_not_stacked() {
    let dir = with_experts();
    let advice = |pattern: &str| {
        format!(
            "and a view needs them at equal distances in one storage; import their files with --fuse '{pattern}', which \
             stores them one after another"
        )
    };
    dir.messages(&["import", "m.safetensors", "s.smap"]);
    // In the file, the order is 0, 1, 10, 11, 2.
    assert_eq!(
        dir.refusal(&["view", "s.smap", "--stack", PATTERN, "l{}"]),
        format!(
            "view --stack: layers.1.experts.2.up begins 192 bytes after layers.1.experts.1.up, but \
             layers.1.experts.1.up begins 64 bytes after layers.1.experts.0.up, {}",
            advice(PATTERN)
        )
    );
    let store = dir.store();
    for name in ["a.0", "a.1", "a.2", "b.0"] {
        store.save(name, &[[1f32, 2.], [3., 4.]]).unwrap();
    }
    store.save_view("b.1", &store.load("b.0").unwrap().t().unwrap()).unwrap();
    for (pattern, why) in [
        ("a.{}", "a.1 and 1 more are in another storage than a.0"),
        ("b.{}", "b.1 has another stride than b.0"),
    ] {
        let refusal = dir.refusal(&["view", "s.smap", "--stack", pattern, "new"]);
        assert_eq!(refusal, format!("view --stack: {why}, {}", advice(pattern)));
    }
}

#[test]
fn what_cannot_be_one_tensor_is_refused() {
    let dir = Dir::empty();
    let names = ["e.0.w", "e.1.w", "e.3.w", "f.1.w", "f.2.w", "g.1.w", "g.01.w"];
    write(&dir, "m.safetensors", &names.map(|name| (name.to_owned(), 1.)));
    dir.write_npy("g.0.npy", "<f4", "(3, 2)", &[0; 24]);
    dir.write_npy("g.1.npy", "<f4", "(2, 3)", &[0; 24]);
    for (pattern, why) in [
        ("e.{}.w", "\"e.{}.w\": e.2.w is missing: the next name is e.3.w"),
        ("g.{}.w", "\"g.{}.w\": g.01.w and g.1.w have the same number"),
        ("e.w", "\"e.w\" has no {}, which stands for a number, as in 'experts.{}.weight'"),
    ] {
        let refusal = dir.refusal(&["import", "m.safetensors", "s.smap", "--fuse", pattern]);
        assert_eq!(refusal, format!("import --fuse: {why}"));
    }
    assert_eq!(
        dir.refusal(&["import", "g.0.npy", "g.1.npy", "s.smap", "--fuse", "g.{}"]),
        "import --fuse: g.0 is float32 [3, 2], but g.1 is float32 [2, 3]; tensors that are fused have one dtype and one size"
    );
    let missing = dir.run(&["import", "m.safetensors", "s.smap", "--fuse", "f.{}.w", "--fuse", "f.{}.w"]);
    let why =
        "stridemap: import --fuse: no whole name of a tensor matches \"f.{}.w\", or another --fuse has it\n";
    assert_eq!((missing.code, missing.stderr.as_str()), (Some(1), why));

    dir.messages(&["import", "m.safetensors", "g.0.npy", "g.1.npy", "s.smap", "--skip", "g.01.w"]);
    for (pattern, new, why) in [
        ("e.{}.w", "e", "view --stack: \"e.{}.w\": e.2.w is missing: the next name is e.3.w"),
        (
            "g.{}",
            "g",
            "view --stack: g.0 is float32 [3, 2], but g.1 is float32 [2, 3]; a tensor has one dtype and one size",
        ),
        (
            "f.{}.w",
            "f.{}",
            "view: the new name \"f.{}\" has 1 {}, and needs 0: one for each {} of the pattern but the last",
        ),
    ] {
        assert_eq!(dir.refusal(&["view", "s.smap", "--stack", pattern, new]), why);
    }
    let exists = dir.run(&["view", "s.smap", "--stack", "f.{}.w", "e.0.w"]).stderr;
    assert!(exists.ends_with("view: \"e.0.w\" exists, float32 [2, 3]; --force replaces it\n"), "{exists}");
    let missing = dir.run(&["view", "s.smap", "--stack", "x.{}", "x"]);
    assert_eq!(
        (missing.code, &*missing.stderr),
        (Some(1), "stridemap: view --stack: no tensor matches \"x.{}\"\n")
    );
    let hint = dir.refusal(&["view", "s.smap", "f.{}.w", "f"]);
    assert!(hint.contains("; {} stands for a number in names with --stack, and "), "{hint}");
    // Numbers may begin anywhere.
    let said = dir.messages(&["view", "s.smap", "--stack", "f.{}.w", "f"]);
    assert_eq!(
        said,
        "stridemap: note: the tensor at position 0 of f is f.1.w\n\
         stridemap: saved f.{}.w (float32 [2, 2, 3]) as f: generation 3\n"
    );
}

#[test]
fn tensors_of_several_files_are_fused_by_their_names_in_the_store() {
    let dir = Dir::empty();
    let floats = |first: u8| (first..first + 6).flat_map(|x| f32::from(x).to_le_bytes()).collect::<Vec<u8>>();
    for expert in [10, 2, 9, 1, 8, 3, 7, 4, 6, 5, 0u8] {
        dir.write_npy(&format!("e.{expert}.npy"), "<f4", "(2, 3)", &floats(expert));
    }
    // In column-major order, and big-endian.
    let mut file = fs::read(dir.path("e.5.npy")).unwrap();
    let at = file.windows(5).position(|word| word == b"False").unwrap();
    file[at..at + 5].copy_from_slice(b"True ");
    dir.write("e.5.npy", &file);
    let big: Vec<u8> =
        floats(6).chunks(4).flat_map(|x| x.iter().rev().copied().collect::<Vec<u8>>()).collect();
    dir.write_npy("e.6.npy", ">f4", "(2, 3)", &big);
    let files: Vec<String> = (0..11).map(|expert| format!("e.{expert}.npy")).collect();
    let mut args = vec!["import"];
    args.extend(files.iter().map(String::as_str));
    args.extend(["s.smap", "--prefix", "p.", "--rename", "e.*=x.*", "--fuse", "p.x.{}"]);
    dir.messages(&args);
    dir.messages(&["view", "s.smap", "--stack", "p.x.{}", "x"]);
    assert_eq!(firsts(&dir, "x"), (0..11).map(|expert| expert as f32).collect::<Vec<_>>());
    let column_major = dir.store().load("p.x.5").unwrap();
    assert_eq!(column_major.read::<f32>().unwrap(), [5., 7., 9., 6., 8., 10.]);
    let json = dir.json(&["ls", "s.smap", "x"]);
    assert_eq!((&json["size"], &json["is_contiguous"]), (&json!([11, 2, 3]), &json!(true)));
    let refusal = dir.run(&["import", "e.0.npy", "t.smap", "--in-place", "--fuse", "e.{}"]);
    assert!(refusal.code == Some(2) && refusal.stderr.contains("cannot be used with"), "{refusal:?}");
}

#[test]
fn views_at_any_equal_distance_are_stacked() {
    let dir = Dir::empty();
    let store = stridemap::Store::create(dir.path("s.smap")).unwrap();
    let x = Tensor::from_vec((0..24i32).collect(), &[4, 6]).unwrap();
    store.save("x", &x.refine_names(&["row", "column"]).unwrap()).unwrap();
    let x = store.load("x").unwrap();
    for (name, row) in
        [("back.0", 3), ("back.1", 2), ("back.2", 1), ("tied.0", 2), ("tied.1", 2), ("one.0", 1)]
    {
        store.save_view(name, &x.select(0, row).unwrap()).unwrap();
    }
    store.save_view("column.0", &x.select(1, 1).unwrap()).unwrap();
    store.save_view("column.1", &x.select(1, 4).unwrap()).unwrap();
    for (name, stride) in [("back", [-6, 1]), ("tied", [0, 1]), ("one", [6, 1]), ("column", [3, 6])] {
        dir.messages(&["view", "s.smap", "--stack", &format!("{name}.{{}}"), name]);
        let json = dir.json(&["ls", "s.smap", name]);
        assert_eq!(json["stride"], json!(stride), "{json}");
    }
    let column = dir.store().load("column").unwrap();
    assert_eq!(column.read::<i32>().unwrap(), [1, 7, 13, 19, 4, 10, 16, 22]);
    assert_eq!(column.names(), [None, Some("row")]);
    assert_eq!(dir.store().load("back").unwrap().read::<i32>().unwrap()[..7], [18, 19, 20, 21, 22, 23, 12]);
}

#[test]
fn new_name_in_which_two_numbers_are_not_told_apart_is_refused() {
    let dir = with_experts();
    dir.messages(&["import", "m.safetensors", "s.smap", "--fuse", PATTERN]);
    dir.messages(&["view", "s.smap", "--stack", PATTERN, "l{}"]);
    for new in ["up{}{}", "up{}0{}"] {
        let refusal = dir.refusal(&["view", "s.smap", "l{}[{}]", new]);
        let why = "has two {} with nothing but digits between them, so it is not certain where a number ends";
        assert_eq!(refusal, format!("view: the new name {new:?} {why}"));
    }
    dir.messages(&["view", "s.smap", "l{}[{}]", "up1{}-{}"]);
}
