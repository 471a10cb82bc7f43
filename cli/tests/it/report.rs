//! The `report` command. What the page does in a browser is tested in `cli/tests/report`.

use std::fs;

use serde_json::{Value, json};
use stridemap::{DType, Store, Tensor};

use crate::harness::Dir;

/// The positions of values in the row of a tensor.
const NAME: usize = 0;
const SHARERS: usize = 11;
const NOTES: usize = 12;
const MIN: usize = 13;
const ZEROS: usize = 17;
const NANS: usize = 18;

fn page(dir: &Dir) -> String {
    fs::read_to_string(dir.path("r.html")).unwrap()
}

/// Returns the data of the page.
fn data(dir: &Dir) -> Value {
    let page = page(dir);
    let (_, rest) = page.split_once(r#"<script type="application/json" id="data">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn row<'a>(data: &'a Value, name: &str) -> &'a Value {
    data["tensors"].as_array().unwrap().iter().find(|row| row[NAME] == name).unwrap()
}

/// Writes the report of `s.smap`, and returns its data.
fn report(dir: &Dir, args: &[&str]) -> Value {
    let messages = dir.messages(&[&["report", "s.smap", "-o", "r.html"], args].concat());
    assert!(messages.starts_with("stridemap: reported ") && messages.contains("in r.html"), "{messages}");
    data(dir)
}

fn unusual() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("nan", &[1f32, f32::NAN, 3.]).unwrap();
    txn.save("infinite", &[1f32, f32::INFINITY, f32::NEG_INFINITY]).unwrap();
    txn.save("zero", &[0i32; 10]).unwrap();
    txn.save("constant", &[7u8; 10]).unwrap();
    txn.save("a", &(0..1000).collect::<Vec<i32>>()).unwrap();
    txn.save("copy of a", &(0..1000).collect::<Vec<i32>>()).unwrap();
    txn.save("reversed", &(0..1000).rev().collect::<Vec<i32>>()).unwrap();
    txn.save("empty", &Tensor::from_vec(Vec::<f32>::new(), &[0, 3]).unwrap()).unwrap();
    txn.save_view("part", &txn.load("reversed").unwrap().narrow(0, 5, 9).unwrap()).unwrap();
    txn.commit().unwrap();
    dir
}

#[test]
fn page_names_what_is_unusual() {
    let dir = unusual();
    let data = report(&dir, &[]);
    for (name, notes) in [
        ("nan", json!(["nan"])),
        ("infinite", json!(["infinite"])),
        ("zero", json!(["zero"])),
        ("constant", json!(["constant"])),
        ("a", json!(null)),
        ("copy of a", json!(["duplicate"])),
        ("reversed", json!(["shared"])),
        ("part", json!(["shared"])),
        ("empty", json!(["empty"])),
    ] {
        assert_eq!(row(&data, name)[NOTES], notes, "{name}");
    }
    let sharer = row(&data, "part")[SHARERS][0].as_u64().unwrap() as usize;
    assert_eq!(data["tensors"][sharer][NAME], "reversed");
    let warnings = data["warnings"].to_string();
    for warning in [
        "1 tensor has NaN: nan",
        "1 tensor has infinities: infinite",
        "1 tensor is all zero: zero",
        "different bytes: copy of a",
        "1 tensor has no elements: empty",
    ] {
        assert!(warnings.contains(warning), "{warnings}");
    }
}

#[test]
fn complex_numbers_of_equal_magnitude_are_no_constant_and_can_be_duplicates() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    let complex = |parts: [f32; 4]| {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        Tensor::from_bytes(DType::C64, &[2], &bytes).unwrap()
    };
    txn.save("a", &complex([1., 0., 0., 1.])).unwrap();
    txn.save("b", &complex([0., 1., 1., 0.])).unwrap();
    txn.save("copy of a", &complex([1., 0., 0., 1.])).unwrap();
    txn.save("zero", &complex([0.; 4])).unwrap();
    txn.save("zero too", &complex([0.; 4])).unwrap();
    txn.commit().unwrap();
    let data = report(&dir, &[]);
    for (name, notes) in [
        ("a", json!(null)),
        ("b", json!(null)),
        ("copy of a", json!(["duplicate"])),
        ("zero", json!(["zero"])),
        ("zero too", json!(["zero"])),
    ] {
        assert_eq!(row(&data, name)[NOTES], notes, "{name}");
    }
}

#[test]
fn rows_have_statistics_and_large_tensors_have_heat_maps() {
    let dir = unusual();
    let data = report(&dir, &[]);
    let shown = json!([0., 999., 499.5, 288.819, 1, 0, 0, "z".repeat(24)]);
    assert_eq!(row(&data, "a").as_array().unwrap()[MIN..], *shown.as_array().unwrap());
    assert_eq!((&row(&data, "nan")[NANS], &row(&data, "empty")[MIN]), (&json!(1), &json!(null)));
    assert!(
        data["notes"].to_string().contains("Heat maps are drawn for 3 of the largest tensors."),
        "{}",
        data["notes"]
    );
    let index = data["tensors"].as_array().unwrap().iter().position(|row| row[NAME] == "a").unwrap();
    let heat = &data["heat_maps"][index.to_string()];
    assert_eq!((&heat["rows"], &heat["columns"], &heat["block"]), (&json!(1), &json!(48), &json!([1, 21])));
    assert_eq!(
        (&heat["low"], &heat["high"], &heat["is_signed"]),
        (&json!(10.), &json!(989.5), &json!(false))
    );
    let cells = heat["cells"].as_str().unwrap();
    // The first block is from 0 to 20, and the scale begins with its mean.
    assert!(cells.len() == 96 && cells.starts_with("0005") && cells.ends_with("fe"), "{cells}");
}

#[test]
fn heat_map_shows_means_of_blocks_and_nan() {
    let dir = Dir::empty();
    let mut elements = vec![0.5f32; 2 * 48 * 96];
    (elements[5], elements[96 * 95 + 95]) = (-9., f32::NAN);
    let tensor = Tensor::from_vec(elements, &[96, 48, 2]).unwrap();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.save("x", &tensor).unwrap();
    store.save("y", &1u8).unwrap();
    let data = report(&dir, &[]);
    assert_eq!(data["notes"], json!(["Heat maps are drawn for 1 of the largest tensors."]));
    let heat = &data["heat_maps"]["0"];
    assert_eq!((&heat["block"], &heat["high"]), (&json!([2, 2]), &json!(0.5)));
    let cells = heat["cells"].as_str().unwrap();
    // The mean of -9 and three times 0.5 is below the scale.
    assert_eq!(cells, "fe".repeat(2) + "00" + &"fe".repeat(48 * 48 - 4) + "ff");
}

#[test]
fn elements_beyond_the_limit_are_not_read() {
    let dir = unusual();
    let none = report(&dir, &["--max-read", "0"]);
    assert!(none["tensors"].as_array().unwrap().iter().all(|row| row[ZEROS].is_null()));
    assert!(none["notes"][0].as_str().unwrap().contains("9 tensors were not read"), "{}", none["notes"]);
    assert_eq!(none["heat_maps"], json!({}));
    // "a" does not fit, and the others are small.
    let some = report(&dir, &["--force", "--max-read", "1KB"]);
    assert!(row(&some, "a")[ZEROS].is_null() && row(&some, "zero")[ZEROS] == 10);
    assert!(some["notes"][0].as_str().unwrap().contains("3 tensors were not read"), "{}", some["notes"]);
    assert_eq!(
        dir.stdout(&["report", "s.smap", "-o", "x.html", "-n", "--max-read", "1KB"]),
        "would write x.html: 9 tensors; would read 110 B\n"
    );
}

#[test]
fn the_search_for_duplicates_ends_at_the_limit() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    for name in ["a", "b", "c"] {
        store.save(name, &(0..1000).collect::<Vec<i32>>()).unwrap();
    }
    let notes = |data: &Value| ["a", "b", "c"].map(|name| row(data, name)[NOTES].clone());
    let all = report(&dir, &["--max-read", "16KB"]);
    assert_eq!(
        (notes(&all), &all["notes"]),
        ([json!(null), json!(["duplicate"]), json!(["duplicate"])], &json!([]))
    );
    // One comparison reads 8000 bytes.
    let some = report(&dir, &["--force", "--max-read", "12KB"]);
    assert_eq!(notes(&some), [json!(null), json!(["duplicate"]), json!(null)]);
    assert!(some["notes"].to_string().contains("Not all tensors were compared"), "{}", some["notes"]);
}

#[test]
fn paths_are_printed_on_one_line() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "model.safetensors"]);
    for args in [
        &["report", "s.smap", "-n", "-o", "a\nb.html"][..],
        &["export", "s.smap", "-n", "a\nb.safetensors"],
        &["export", "s.smap", "-n", "a\nb.smap"],
        &["import", "model.safetensors", "-n", "a\nb.smap"],
    ] {
        let said = dir.run(args).stdout;
        assert!(said.lines().next().unwrap().contains("a\\nb."), "{said}");
    }
}

#[test]
fn hostile_names_and_attributes_stay_text() {
    let dir = Dir::empty();
    let names = [
        "</script><script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "<!--<script>",
        "{{data}}",
        "\u{2028}\u{202e}&amp;",
    ];
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    for name in names {
        txn.save(name, &1u8).unwrap();
        txn.set_attribute("", name, name).unwrap();
    }
    txn.commit().unwrap();
    let data = report(&dir, &[]);
    for name in names {
        assert_eq!(row(&data, name)[NAME], name);
        assert!(data["attributes"].as_array().unwrap().contains(&json!(["", name, name])), "{name}");
    }
    let page = page(&dir);
    let (_, json) = page.split_once(r#"id="data">"#).unwrap();
    let json = json.split_once("</script>\n").unwrap().0;
    assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
    assert_eq!(page.matches("</script>").count(), 2);
}

#[test]
fn page_loads_nothing() {
    let dir = Dir::with_store();
    report(&dir, &[]);
    let page = page(&dir);
    assert!(page.contains("default-src 'none'; script-src 'nonce-") && !page.contains("{{"), "{page}");
    assert!(!page.contains("src=") && !page.contains("@import") && !page.contains("url("));
    let links: Vec<&str> = page.split("://").skip(1).collect();
    assert!(
        matches!(links[..], [link] if link.starts_with("www.w3.org/2000/svg\"")),
        "the name of the SVG namespace"
    );
}

#[test]
fn existing_files_are_refused_unless_force_is_given() {
    let dir = Dir::with_store();
    let args = ["report", "s.smap", "-o", "r.html"];
    let with = |more| [&args[..], &[more]].concat();
    assert_eq!(dir.stdout(&with("-n")), "would write r.html: 3 tensors; would read 56 B\n");
    assert!(!dir.path("r.html").exists());
    report(&dir, &[]);
    dir.write("r.html", b"kept");
    assert_eq!(dir.refusal(&args), "report r.html: the file exists; --force replaces it");
    assert_eq!(dir.refusal(&with("-n")), "report r.html: the file exists; --force replaces it");
    assert_eq!(
        dir.stdout(&[&with("-n")[..], &["--force"]].concat()),
        "would write r.html, replacing it: 3 tensors; would read 56 B\n"
    );
    assert_eq!(page(&dir), "kept");
    report(&dir, &["--force"]);
    assert!(page(&dir).len() > 10_000);
}

#[test]
fn names_of_pages_and_images_must_fit_their_command() {
    let dir = Dir::with_store();
    dir.write("model.npy", b"tensors");
    let endings =
        [(&["report", "s.smap"][..], ".html or .htm"), (&["plot", "s.smap", "points"], ".png or .svg")];
    for (command, ending) in endings {
        let refusal = |out: &str| dir.refusal(&[command, &["--force", "-o", out]].concat());
        for out in ["model.npy", "model", "s.smap", "m.jpg"] {
            let says = format!("{} {out}: the name of the file must end with {ending}", command[0]);
            assert_eq!(refusal(out), says);
        }
        let out = format!("none/m{}", &ending[..ending.find(' ').unwrap()]);
        assert!(refusal(&out).contains("the directory none does not exist"));
    }
    assert!(dir.refusal(&["report", "none.smap", "-o", "r.html"]).contains("no such file or store"));
    let unnamed = "report: name the file to write: stridemap report -o s.html s.smap";
    assert_eq!(dir.refusal(&["report", "s.smap"]), unnamed);
    let said = dir.run(&["report", "s.smap", "r.html"]).stderr;
    assert!(said.contains("tip: the page to write comes after -o: -o r.html"), "{said}");
}

#[test]
fn tensors_that_cannot_be_read_do_not_prevent_a_report() {
    let dir = Dir::empty();
    let header = r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    dir.write_safetensors("m.safetensors", header, &[1, 2, 3, 4]);
    dir.messages(&["import", "--in-place", "m.safetensors", "s.smap"]);
    dir.store().save("y", &5u8).unwrap();
    fs::remove_file(dir.path("m.safetensors")).unwrap();
    let run = dir.run(&["report", "s.smap", "-o", "r.html"]);
    assert_eq!(run.code, Some(2));
    let last = run.stderr.lines().last();
    assert_eq!(last, Some("stridemap: report: 1 of 2 tensors could not be read; r.html says why"));
    let data = data(&dir);
    assert!(row(&data, "x")[ZEROS].is_null() && row(&data, "y")[ZEROS] == 0);
    assert!(data["notes"].to_string().contains("1 tensor could not be read, such as x"), "{}", data["notes"]);
}
