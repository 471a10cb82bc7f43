//! Processes that append to a tensor, read it, and are killed.

use super::mapping::map_count;
use super::{BIN, MIB, SUM, bytes_of, row, rows};
use crate::harness::processes::{OtherProcess, proc, read_line, send_line, start, wait_for_line};
use crate::harness::{fast, new_path, open_mapped};
use crate::support::{scaled, temporary};
use std::fs;
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use stridemap::{DType, Error, ErrorKind, Store, StoreOptions};

/// Runs a role in a started process.
pub(crate) fn run_role(role: &str, path: &Path) {
    match role {
        "grow: read mapped" => {
            let x = open_mapped(path).load("x").unwrap();
            assert!(x.as_slice::<f32>().unwrap()[9 * 256..].iter().copied().eq(row(9, 256, |i| i as f32)));
            send_line(format!("{:?}", x.size()));
        }
        "grow: stop half-way" => {
            let store = Store::open(path).unwrap();
            let mut txn = store.begin().unwrap();
            txn.append("x", &rows(0, 3 * MIB, &[], |_| 0xeeu8)).unwrap();
            send_line("appended");
            wait_for_line();
        }
        "grow: append" => {
            let (count, batch) = following();
            let store = fast().open(path).unwrap();
            let before = proc("io", "wchar:");
            for from in (0..count).step_by(batch) {
                store.append("x", &rows(from, batch.min(count - from), &[WIDTH], float)).unwrap();
            }
            send_line(proc("io", "wchar:") - before);
        }
        "grow: follow" => {
            let (store, count) = (open_mapped(path), following().0);
            let (mut seen, mut looks, mut places) = (0, 0, Vec::new());
            let mut last = store.load("x").unwrap();
            while seen < count {
                if !store.refresh().unwrap() {
                    std::thread::yield_now();
                    continue;
                }
                let x = store.load("x").unwrap();
                let elements = x.as_slice::<f32>().unwrap();
                for (index, found) in elements.chunks_exact(WIDTH).enumerate().skip(seen) {
                    assert!(found.iter().copied().eq(row(index, WIDTH, float)), "row {index} is not whole");
                }
                (seen, looks) = (x.size()[0], looks + 1);
                places.push(elements.as_ptr());
                assert!(map_count(BIN) <= 1, "mapped again");
                last = x;
            }
            places.dedup();
            assert_eq!(last.size(), [count, WIDTH]);
            send_line(format!("{looks} {}", places.len()));
        }
        role => panic!("{role:?}"),
    }
}

/// Starts a process that has appended 3 MiB and does not commit.
fn stopped_half_way(path: &Path) -> OtherProcess {
    let mut process = OtherProcess::start("grow: stop half-way", path);
    assert_eq!(process.read_line(), "appended");
    process
}

#[test]
fn killed_appender_blocks_no_writer_and_its_bytes_are_reused_or_freed() {
    let (_dir, path) = new_path();
    let store = StoreOptions::new().lock_timeout(Duration::from_millis(50)).create(&path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &rows(0, MIB + 7, &[], |i| i as u8)).unwrap();
    for expected_length in [MIB + 8, MIB + 9] {
        let killed = stopped_half_way(&path);
        let id = killed.child.id();
        let append = || store.append("x", &rows(expected_length - 1, 1, &[], |i| i as u8));
        let busy: Error = append().unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        let text = busy.to_string();
        println!("{text}");
        assert!(
            text.contains(&format!("process {id} is appending"))
                || text.contains("another process is appending"),
            "{text}"
        );
        assert_eq!(store.gc().unwrap().size_bytes, 0, "a file being written is kept");
        assert_eq!(store.load("x").unwrap().size(), [expected_length - 1], "readers do not wait");
        killed.kill();
        assert!(bytes_of(&path.join(BIN)) > 3 * MIB as u64);
        append().unwrap();
        assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    }
    let left = bytes_of(&path.join(BIN)) - (MIB as u64 + 9);
    let collected = store.gc().unwrap();
    assert_eq!((collected.file_count, collected.size_bytes), (0, left));
    assert_eq!((bytes_of(&path.join(BIN)), bytes_of(&path.join(SUM))), (MIB as u64 + 9, 16));
    let expected = rows(0, MIB + 9, &[], |i| i as u8);
    assert!(store.load("x").unwrap().read::<u8>().unwrap() == expected.read::<u8>().unwrap());
    // Chunk digests that a killed process left are freed too.
    let sum = fs::OpenOptions::new().append(true).open(path.join(SUM)).unwrap();
    (&sum).write_all(&[7; 100]).unwrap();
    assert_eq!(store.gc().unwrap().size_bytes, 100);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

const WIDTH: usize = 128;

fn float(i: usize) -> f32 {
    (i % (1 << 24)) as f32
}

/// Returns the number of rows to follow, and the rows of each append.
fn following() -> (usize, usize) {
    (scaled("STRIDEMAP_TEST_ROWS", 50_000), 1000)
}

/// `STRIDEMAP_TEST_ROWS` sets the number of rows. The default is 50,000.
#[test]
fn reader_of_appended_rows_sees_only_complete_rows() {
    let dir = temporary();
    let path: PathBuf = dir.path().join("x.smap");
    let count = following().0;
    fast().create(&path).unwrap().create_growable("x", DType::F32, &[0, WIDTH], count).unwrap();
    let mut follower = start("grow: follow", &path);
    let mut appender = start("grow: append", &path);
    let [mut followed, mut appended] =
        [&mut follower, &mut appender].map(|process| BufReader::new(process.stdout.take().unwrap()));
    let written_bytes: u64 = read_line(&mut appended).parse().unwrap();
    let heard = read_line(&mut followed);
    assert!(appender.wait().unwrap().success() && follower.wait().unwrap().success());
    let (looks, places) = heard.split_once(' ').unwrap();
    let data_bytes = (count * WIDTH * 4) as u64;
    println!(
        "{count} rows, {data_bytes} bytes: {written_bytes} written; seen {looks} times at {places} places"
    );
    assert_eq!(places, "1");
    assert!(
        written_bytes as f64 <= 1.1 * data_bytes as f64,
        "{written_bytes} bytes written for {data_bytes}"
    );
    let store = Store::open(&path).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    // Each append writes its rows once, and its metadata and digests once.
    assert_eq!(store.load("x").unwrap().size(), [count, WIDTH]);
}
