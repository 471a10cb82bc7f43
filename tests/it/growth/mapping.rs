//! Mappings of growing tensors, and the address space reserved for them.

use super::{BIN, row, rows};
use crate::harness::processes::read_line;
use crate::harness::{fast, new_fast_store, open_mapped};
use crate::support::temporary;
use std::fs;
use std::io::BufReader;
use std::process::{Command, Stdio};
use stridemap::DType;

/// Returns the number of lines in `/proc/self/maps` for a storage.
pub(super) fn map_count(file: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(file)).count()
}

#[test]
fn appends_within_the_reserved_capacity_never_remap() {
    let dir = temporary();
    // The reserved capacity in rows, and the number of mappings while 200 rows are appended one by one.
    for (capacity, expected) in [(200, 1..=1), (1 << 36, 1..=1), (0, 8..=9), (100, 2..=2)] {
        let path = dir.path().join(format!("{capacity}.smap"));
        let store = fast().create(&path).unwrap();
        store.create_growable("x", DType::F32, &[0, 256], capacity).unwrap();
        let reader = open_mapped(&path);
        let (mut places, mut all) = (Vec::new(), Vec::new());
        for i in 0..200 {
            store.append("x", &rows(i, 1, &[256], |i| i as f32)).unwrap();
            reader.refresh().unwrap();
            let x = reader.load("x").unwrap();
            let elements = x.as_slice::<f32>().unwrap();
            assert_eq!(elements.len(), (i + 1) * 256, "at most the existing bytes are borrowed");
            assert!(elements[i * 256..].iter().copied().eq(row(i, 256, |i| i as f32)));
            places.push(elements.as_ptr());
            all.push(x);
        }
        places.dedup();
        println!("reserved {capacity} rows: mapped {} times", places.len());
        assert!(expected.contains(&places.len()), "reserved {capacity} rows: mapped {} times", places.len());
        let file = path.join(BIN);
        assert_eq!(map_count(file.to_str().unwrap()), places.len(), "as many as somebody still uses");
        all.drain(..199);
        assert_eq!(map_count(file.to_str().unwrap()), 1);
    }
}

#[test]
fn mapping_works_if_the_kernel_refuses_to_reserve_address_space() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::F32, &[0, 256], 1 << 33).unwrap();
    store.append("x", &rows(0, 10, &[256], |i| i as f32)).unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut reader = Command::new("sh")
        .arg("-c")
        .arg("ulimit -v 4000000 && exec \"$0\" --exact harness::processes::other_process --nocapture")
        .arg(exe)
        .env("STRIDEMAP_TEST_ROLE", "grow: read mapped")
        .env("STRIDEMAP_TEST_STORE", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(reader.stdout.take().unwrap());
    assert_eq!(read_line(&mut said), "[10, 256]");
    assert!(reader.wait().unwrap().success());
}
