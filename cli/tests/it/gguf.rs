//! GGUF files in the commands that read, import and write files. `interop` tests what they contain.

use std::fs;
use std::path::Path;

use crate::harness::Dir;

/// Returns a directory with two files of the `gguf` package: one with every common type of tensors, and one with a
/// vocabulary.
fn with_files() -> Dir {
    let dir = Dir::empty();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/tests/data/gguf");
    for name in ["common.gguf", "vocabulary.gguf"] {
        fs::copy(data.join(name), dir.path(name)).unwrap();
    }
    dir
}

#[test]
fn commands_that_look_read_gguf_files() {
    let dir = with_files();
    assert!(dir.stdout(&["ls", "common.gguf"]).contains("blocks.Q4_K"));
    assert!(dir.stdout(&["ls", "-l", "common.gguf", "blocks.Q4_K"]).contains("\tuint8\t[3, 288]\t864"));
    let info = dir.stdout(&["info", "--all", "common.gguf"]);
    assert!(info.contains("general.architecture = llama\n"), "{info}");
    assert!(info.contains("gguf.type = Q4_K\n") && info.contains("gguf.type:test.small = int32\n"), "{info}");
    assert!(dir.stdout(&["stats", "common.gguf", "plain.F32"]).contains("float32"));
    assert!(dir.stdout(&["show", "common.gguf", "plain.F32[0, 0]"]).contains("-7.5"));
}

#[test]
fn an_import_copied_or_in_place_is_exported_as_it_was() {
    let dir = with_files();
    for (store, flags) in [("copied.smap", &[][..]), ("in_place.smap", &["--in-place"])] {
        for name in ["common.gguf", "vocabulary.gguf"] {
            let prefix = format!("{name}.");
            let import = [&["import", name, store, "--prefix", &prefix], flags].concat();
            let said = dir.messages(&import);
            let is_long = name == "vocabulary.gguf";
            assert_eq!(said.contains("3 values are each too large for an attribute"), is_long, "{said}");
            assert!(said.contains("tokenizer.ggml.tokens, ") == is_long, "{said}");
            dir.messages(&["export", store, "out.gguf", "--prefix", &prefix, "--force"]);
            assert!(dir.stdout(&["diff", "--strict", name, "out.gguf"]).starts_with("equal: "));
        }
        assert_eq!(
            dir.stdout(&["attr", "get", store, "gguf.type", "--of", "common.gguf.blocks.Q8_0"]),
            "Q8_0\n"
        );
    }
    // Another name keeps the type.
    dir.messages(&["mv", "copied.smap", "common.gguf.blocks.Q8_0", "renamed"]);
    dir.messages(&["export", "copied.smap", "renamed.gguf", "renamed"]);
    assert!(dir.stdout(&["info", "--all", "renamed.gguf"]).contains("gguf.type = Q8_0\n"));
}

#[test]
fn a_new_value_and_the_alignment_are_attributes() {
    let dir = Dir::with_store();
    dir.messages(&["attr", "set", "s.smap", "llama.block_count", "json:2"]);
    dir.messages(&["attr", "set", "s.smap", "general.alignment", "json:256"]);
    dir.messages(&["export", "s.smap", "x.gguf", "points"]);
    let written = fs::read(dir.path("x.gguf")).unwrap();
    assert_eq!(written.len(), 512, "a header and a tensor, both padded to the alignment");
    assert_eq!(written[256..260], 1f32.to_le_bytes());
    let info = dir.stdout(&["info", "--all", "x.gguf"]);
    assert!(info.contains("llama.block_count = json:2\n"), "{info}");
    dir.messages(&["attr", "set", "s.smap", "general.alignment", "256"]);
    let refused = dir.refusal(&["export", "s.smap", "y.gguf", "points"]);
    assert!(refused.contains("must be a power of two, at most 1048576, such as json:32"), "{refused}");
}

#[test]
fn type_of_blocks_is_kept_or_goes_with_the_tensor() {
    let dir = with_files();
    let name = "blocks.Q8_0";
    dir.messages(&["import", "common.gguf", "q.smap", "--fuse", "blocks.Q8_{}"]);
    let has_type = |store: &str| dir.run(&["attr", "get", store, "gguf.type", "--of", name]).code == Some(0);
    assert!(has_type("q.smap"), "also of a tensor that is fused");
    let said = dir.messages(&["export", "q.smap", "q.safetensors", name, "plain.F32"]);
    let note = "note: only a .gguf file says what the bytes of 1 tensor are, such as blocks.Q8_0, Q8_0\n";
    assert!(said.contains(note), "{said}");

    // A conversion leaves blocks as they are, and refuses them by name.
    let said = dir.messages(&["convert", "q.smap", "blocks.*", "--to", "int32"]);
    let note = "note: 1 tensor of another kind than int32 stays as it is, such as blocks.BF16, bfloat16; ";
    assert!(said.contains(note), "blocks are not advised to be named: {said}");
    assert!(dir.stdout(&["ls", "-l", "q.smap", name]).contains("\tuint8\t"));
    let refusal = dir.refusal(&["convert", "q.smap", name, "--to", "int32"]);
    assert!(refusal.contains("its elements are the bytes of Q8_0"), "{refusal}");

    // Another tensor in the same place has no type.
    dir.messages(&["import", "q.safetensors", "plain.smap"]);
    assert!(!has_type("plain.smap"));
    dir.messages(&["import", "common.gguf", "other.smap"]);
    dir.messages(&["copy", "plain.smap", name, "other.smap", "--force"]);
    assert!(!has_type("other.smap"));
    dir.messages(&["import", "q.safetensors", "q.smap", "--force"]);
    assert!(!has_type("q.smap"));
}

#[test]
fn dry_run_refuses_what_a_gguf_file_cannot_hold() {
    let dir = Dir::with_store();
    dir.store().save("mask", &[true, false]).unwrap();
    for flags in [&[][..], &["-n"], &["-n", "--json"]] {
        let refusal = dir.refusal(&[&["export", "s.smap", "x.gguf", "mask"], flags].concat());
        assert!(refusal.contains("tensor \"mask\": GGUF cannot hold bool"), "{flags:?}: {refusal}");
    }
    dir.messages(&["attr", "set", "s.smap", "general.alignment", "json:3"]);
    for flags in [&[][..], &["-n"]] {
        let refusal = dir.refusal(&[&["export", "s.smap", "x.gguf", "points"], flags].concat());
        assert!(refusal.contains("and must be a power of two, at most 1048576"), "{flags:?}: {refusal}");
    }
}
