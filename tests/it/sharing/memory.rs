//! Processes that map the same storage share one copy of it in memory.

use std::fs;
use std::io::{BufReader, Write as _};
use std::path::Path;

use stridemap::{DType, Result, Source};

use crate::harness::processes::{read_line, send_line, start, wait_for_line};
use crate::harness::{new_fast_store, open_mapped};

const READERS: usize = 8;
const SIZE_BYTES: u64 = 512 << 20;
const COUNT: u32 = (SIZE_BYTES / 4) as u32;

/// The numbers from 0, generated while they are saved.
struct Numbers;

impl Source for Numbers {
    fn dtype(&self) -> DType {
        DType::U32
    }

    fn size(&self) -> Vec<usize> {
        vec![COUNT as usize]
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        const PIECE: u32 = 1 << 18;
        let mut bytes = Vec::new();
        for start in (0..COUNT).step_by(PIECE as usize) {
            bytes.clear();
            bytes.extend((start..COUNT.min(start + PIECE)).flat_map(u32::to_le_bytes));
            sink(&bytes)?;
        }
        Ok(())
    }
}

/// The role of a started process: adds up all elements, prints the sum, and keeps its mapping for a while.
pub(crate) fn sum(path: &Path) {
    let store = open_mapped(path);
    let numbers = store.load("numbers").unwrap();
    let elements = numbers.as_slice::<u32>().unwrap();
    send_line(elements.iter().map(|&number| u64::from(number)).sum::<u64>());
    wait_for_line();
}

/// Returns the kernel's total over all mappings of a process, in bytes.
fn smaps_rollup(id: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{id}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// `Pss` divides each page among the processes that map it: a page that eight processes map counts an eighth for each.
/// So the sum over all processes is their total memory, including heaps, stacks and programs.
#[test]
fn eight_processes_that_read_one_storage_take_the_memory_of_one() {
    let (_dir, path, store) = new_fast_store();
    store.save("numbers", &Numbers).unwrap();

    let mut readers: Vec<_> = (0..READERS).map(|_| start("sum", &path)).collect();
    for reader in &mut readers {
        let mut said = BufReader::new(reader.stdout.as_mut().unwrap());
        let sum: u64 = read_line(&mut said).parse().unwrap();
        assert_eq!(sum, u64::from(COUNT) * u64::from(COUNT - 1) / 2);
    }
    let total = |key| readers.iter().map(|reader| smaps_rollup(reader.id(), key)).sum::<u64>();
    let (resident_bytes, shared_out_bytes) = (total("Rss:"), total("Pss:"));
    println!(
        "{READERS} processes read {SIZE_BYTES} bytes each: {resident_bytes} bytes resident, {shared_out_bytes} together ({:.3})",
        shared_out_bytes as f64 / SIZE_BYTES as f64
    );
    // The kernel may have reclaimed a few clean pages.
    assert!(resident_bytes * 20 >= READERS as u64 * SIZE_BYTES * 19, "each has all of it in its pages");
    assert!(shared_out_bytes * 20 < SIZE_BYTES * 21, "{shared_out_bytes} bytes for {SIZE_BYTES}");
    for mut reader in readers {
        writeln!(reader.stdin.as_mut().unwrap()).unwrap();
        assert!(reader.wait().unwrap().success());
    }
}
