//! How many requests an operation makes.

use stridemap::{DType, Store, Tensor, ix};
use stridemap_remote::{Remote, RemoteOptions, Requests};

use crate::support::{Place, ignore};

fn count(requests: Requests) -> u64 {
    requests.total()
}

/// The requests of an operation on a remote that was just opened.
fn requests_of(place: &Place, operation: impl FnOnce(&Remote)) -> Requests {
    let remote = Remote::open(place.remote.location()).unwrap();
    operation(&remote);
    remote.requests()
}

#[test]
fn slice_of_one_tensor_of_very_many_needs_few_requests() {
    let tensor_count: u32 =
        std::env::var("STRIDEMAP_TEST_REMOTE_TENSORS").map_or(20_000, |count| count.parse().unwrap());
    let place = Place::in_files();
    let store = place.create("a.smap");
    for first in (0..tensor_count).step_by(10_000) {
        store
            .write(|txn| {
                (first..tensor_count.min(first + 10_000)).try_for_each(|i| {
                    txn.save(
                        &format!("model.layers.{i:06}.attention.projection.weight"),
                        &[i, i + 1, i + 2, i + 3],
                    )
                })
            })
            .unwrap();
    }
    place.push(&store);
    let remote = Remote::open(place.remote.location()).unwrap();
    let opened = remote.store().unwrap();
    let load = |i: u32| {
        let tensor = opened.load(&format!("model.layers.{i:06}.attention.projection.weight")).unwrap();
        assert_eq!(tensor.narrow(0, 1, 2).unwrap().read::<u32>().unwrap(), [i + 1, i + 2]);
    };
    load(tensor_count / 2);
    let first = remote.requests();
    println!("first slice of {tensor_count}: {first:?}");
    assert!(count(first) <= 8, "{first:?}");
    assert!(first.received_bytes <= 300 * 1024, "{first:?}");
    let mut before = count(first);
    for i in [0, tensor_count - 1, tensor_count / 3, tensor_count / 7] {
        load(i);
        let after = count(remote.requests());
        println!("a further tensor: {}", after - before);
        assert!(after - before <= 3, "{}", after - before);
        before = after;
    }
}

#[test]
fn listing_a_thousand_tensors_needs_at_most_four_requests() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.write(|txn| (0..1000u32).try_for_each(|i| txn.save(&format!("layer{i}"), &i))).unwrap();
    place.push(&store);
    // The same, with a table.
    let other = Place::in_files();
    let large = other.create("a.smap");
    for first in [0, 3000u32] {
        large
            .write(|txn| (first..first + 3000).try_for_each(|i| txn.save(&format!("layer{i}"), &i)))
            .unwrap();
    }
    other.push(&large);
    for place in [place, other] {
        let requests = requests_of(&place, |remote| drop(remote.store().unwrap().names().unwrap()));
        println!("ls: {requests:?}");
        assert!(count(requests) <= 4, "{requests:?}");
    }
}

#[test]
fn push_of_a_header_needs_at_most_four_requests_and_without_a_change_two() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("x", &Tensor::zeros(DType::F32, &[1000, 100]).unwrap()).unwrap();
    for i in 0..100 {
        store.save(&format!("other{i}"), &vec![i; 10]).unwrap();
    }
    place.push(&store);
    for column in 0..10 {
        store.save_view("column", &store.load("x").unwrap().select(1, column).unwrap()).unwrap();
        let requests = requests_of(&place, |remote| {
            remote.push(&store, &ignore).unwrap();
        });
        println!("push of a header: {requests:?}");
        assert!(count(requests) <= 4, "{requests:?}");
        let requests = requests_of(&place, |remote| {
            remote.push(&store, &ignore).unwrap();
        });
        println!("push without a change: {requests:?}");
        assert!(count(requests) <= 2, "{requests:?}");
    }
}

#[test]
fn pull_requests_no_digests_of_segments_that_it_reads_as_a_whole() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("x", &vec![7u8; 6 << 20]).unwrap();
    place.push(&store);
    let requests = requests_of(&place, |remote| {
        remote.pull(&place.path("b.smap"), &ignore).unwrap();
    });
    // HEAD, the remote manifest, and the elements.
    assert_eq!((requests.get, count(requests)), (3, 3), "{requests:?}");
    store.append("x", &vec![8u8; 5 << 20]).unwrap();
    place.push(&store);
    let requests = requests_of(&place, |remote| {
        remote.pull(&place.path("b.smap"), &ignore).unwrap();
    });
    // Also the remote manifest that was pulled last.
    assert_eq!((requests.get, count(requests)), (4, 4), "{requests:?}");
}

#[test]
fn hundred_pushes_send_what_changed_and_little_more() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("frozen", &vec![0u8; 1 << 20]).unwrap();
    store.save("rows", &vec![[0f32; 256]; 100]).unwrap();
    place.push(&store);
    let (mut sent, mut changed, mut worst) = (0, 0, 0u64);
    for step in 0..100u32 {
        store
            .write(|txn| {
                let mut bytes = 0;
                match step % 5 {
                    0 => {
                        txn.save("weight", &vec![step; 100_000])?;
                        bytes = 400_000;
                    }
                    1 => {
                        txn.append("rows", &vec![[step as f32; 256]; 300])?;
                        bytes = 300 * 1024;
                    }
                    2 => {
                        let view = txn.load("frozen")?.narrow(0, step as usize, 10)?;
                        txn.save_view("view", &view)?;
                    }
                    3 => txn.remove("weight")?,
                    _ => txn.restore(&store.at(format!("step{}", step - 3).as_str())?, "weight")?,
                }
                txn.tag(&format!("step{step}"))?;
                Ok::<u64, stridemap::Error>(bytes)
            })
            .map(|bytes| {
                let pushed = place.push(&store);
                let extra = pushed.sent_bytes.saturating_sub(bytes + bytes / 50);
                assert!(extra <= 64 * 1024, "step {step}: {pushed:?}");
                worst = worst.max(extra);
                sent += pushed.sent_bytes;
                changed += bytes;
            })
            .unwrap();
    }
    println!(
        "100 pushes: {sent} bytes sent for {changed} changed; at most {worst} more than 1.02 times in one"
    );
}

#[test]
fn digests_of_an_object_are_read_once() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    for name in ["y", "z"] {
        store.save(name, &vec![name.as_bytes()[0]; 480_000]).unwrap();
    }
    place.push(&store);
    let remote = Remote::open(place.remote.location()).unwrap();
    let opened = remote.store().unwrap();
    let gets_of = |name: &str, first: usize| {
        let before = count(remote.requests());
        let slice = opened.load(name).unwrap().narrow(0, first, 2).unwrap();
        assert_eq!(slice.read::<u8>().unwrap(), [name.as_bytes()[0]; 2]);
        count(remote.requests()) - before
    };
    // A block of elements, and the digests; then only blocks, also those of another segment of the pack.
    assert_eq!(
        [gets_of("y", 5), gets_of("y", 300_000), gets_of("z", 7), gets_of("z", 200_000)],
        [2, 1, 1, 1]
    );
    // Columns are read by many ranges at the same time.
    let rows = vec![[9u8; 1 << 20]; 12];
    store.save("rows", &rows).unwrap();
    place.push(&store);
    let remote = Remote::open(place.remote.location()).unwrap();
    let column = remote.store().unwrap().load("rows").unwrap().select(1, 500_000).unwrap();
    let before = count(remote.requests());
    assert_eq!(column.read::<u8>().unwrap(), [9; 12]);
    assert_eq!(count(remote.requests()) - before, 12 + 1);
}

/// The operations that read a view of a tensor at a URL.
#[derive(Clone, Copy, Debug)]
enum Reading {
    Copy,
    CopyAgain,
    Statistics,
    Save,
    FourThreads,
}

fn read(view: &Tensor, reading: Reading, expected: &[u8]) {
    match reading {
        Reading::Copy | Reading::CopyAgain => assert!(view.to_bytes().unwrap() == expected),
        Reading::Statistics => {
            let _ = view.statistics(|_| ()).unwrap();
        }
        Reading::Save => {
            let dir = tempfile::tempdir().unwrap();
            let copy = Store::create(dir.path().join("copy.smap")).unwrap();
            copy.save("x", view).unwrap();
            assert!(copy.load("x").unwrap().to_bytes().unwrap() == expected);
        }
        Reading::FourThreads => {
            let parts = view.split(view.size()[0].div_ceil(4), 0).unwrap();
            let read: Vec<Vec<u8>> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    parts.iter().map(|part| scope.spawn(|| part.to_bytes().unwrap())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(read.concat() == expected);
        }
    }
}

#[test]
fn views_with_strides_need_about_as_many_requests_and_bytes_as_their_whole_tensor() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    let rows: Vec<[u32; 1024]> =
        (0..20_000u32).map(|row| std::array::from_fn(|column| row * 1024 + column as u32)).collect();
    store.save("x", &rows).unwrap();
    place.push(&store);
    // 80 MB, in requests of 4 MiB, and the digests of segments.
    let (whole_requests, whole_bytes) = (25, 84 << 20);
    let is_far = |name: &str| name == "far rows";
    let view_of = |name: &str, x: &Tensor| match name {
        "whole" => x.clone(),
        "columns" => x.index(ix![..;7, 3..900;5]).unwrap(),
        "rows" => x.index(ix![..;3]).unwrap(),
        "far rows" => x.index(ix![..;70]).unwrap(),
        "transposed" => x.t().unwrap(),
        _ => x.index(ix![..;3, ..;2]).unwrap().flip([0]).unwrap().t().unwrap(),
    };
    for jobs in [8, 256] {
        for name in ["whole", "columns", "rows", "far rows", "transposed", "backwards"] {
            let expected = view_of(name, &store.load("x").unwrap()).to_bytes().unwrap();
            let open = || {
                let remote = RemoteOptions::new().jobs(jobs).open(place.remote.location()).unwrap();
                let view = view_of(name, &remote.store().unwrap().load("x").unwrap());
                (remote, view)
            };
            let (mut remote, mut view) = open();
            for reading in
                [Reading::Copy, Reading::CopyAgain, Reading::Statistics, Reading::Save, Reading::FourThreads]
            {
                if !matches!(reading, Reading::CopyAgain) {
                    (remote, view) = open();
                }
                let before = remote.requests();
                read(&view, reading, &expected);
                let after = remote.requests();
                let found = (count(after) - count(before), after.received_bytes - before.received_bytes);
                println!("{jobs} jobs, {name}, {reading:?}: {} requests, {} bytes", found.0, found.1);
                // Threads that read all rows at different times share what is kept, as far as there is room.
                let (request_rounds, byte_rounds) = match reading {
                    Reading::Save | Reading::FourThreads => (12, 5),
                    Reading::Statistics => (2, 2),
                    _ => (1, 1),
                };
                let most = match is_far(name) {
                    // A block for each.
                    true => (expected.len() as u64 / 4096 + whole_requests, 40 << 20),
                    false => (request_rounds * whole_requests, byte_rounds * whole_bytes),
                };
                assert!(
                    found.0 <= most.0 && found.1 <= most.1,
                    "{jobs} jobs, {name}, {reading:?}: {found:?}"
                );
            }
        }
    }
}
