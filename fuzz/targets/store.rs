//! A whole store with the files of the input: opened, read, verified, mapped, written to, compacted.
//!
//! The input is a byte that selects the operations, and a list of files in the encoding of `packed`.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stridemap_fuzz::exercise::{Work, exercise};
use stridemap_fuzz::packed::{MENDED, NAMES};
use stridemap_fuzz::{fix_digest, scratch, table, u32_at};

fuzz_target!(|bytes: &[u8]| {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    let root = ROOT.get_or_init(|| scratch("store").expect("a directory to work in")).join("store.smap");
    for dir in ["meta", "generations", "storages"] {
        fs::create_dir_all(root.join(dir)).expect("a directory");
    }
    let Some((&work, mut rest)) = bytes.split_first() else { return };
    while rest.len() >= 4 {
        let (number, length) = (rest[0], (u32_at(rest, 0) >> 8) as usize);
        let (file, after) = rest[4..].split_at(length.min(rest.len() - 4));
        let mut file = file.to_vec();
        let name = NAMES[usize::from(number & !MENDED) % NAMES.len()];
        if number & MENDED != 0 {
            let is_table = name.ends_with(".tab") || name.ends_with(".his");
            if is_table { table::mend(&mut file) } else { fix_digest(&mut file) }
        }
        fs::write(root.join(name), &file).expect("a file");
        rest = after;
    }
    exercise(&root, Work::of(work));
    fs::remove_dir_all(&root).expect("the store can be deleted");
});
