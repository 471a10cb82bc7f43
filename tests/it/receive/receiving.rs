//! What is received, and what readers of the replica see.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use stridemap::replica::ReceiveOptions;
use stridemap::{OnExisting, Store};

use super::{assert_same, files, pair, receive, tensors};
use crate::harness::{arange, open_mapped};
use crate::support::temporary;

#[test]
fn only_what_is_new_is_read() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    store.append("log", &arange(&[10])).unwrap();
    store.save("new", &arange(&[1000])).unwrap();
    let received = receive(&replica, &store).unwrap();
    // The rows, the new tensor, those that may have changed in place, and a little metadata.
    assert_eq!(received.storage_count, 4);
    let elements = 8 * (10 + 1000 + 5 + 5);
    assert!((elements..elements + 20_000).contains(&received.received_bytes), "{received:?}");
    assert_same(&replica, &store);
}

#[test]
fn changes_in_place_are_received_without_a_commit() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    let loaded = [("live", "as it was loaded"), ("mutable", "as it was loaded")];
    let before: Vec<_> = loaded.iter().map(|(name, _)| replica.load(name).unwrap()).collect();
    store.load("mutable").unwrap().lock_exclusive().unwrap().fill_(7i64).unwrap();
    let mapped = open_mapped(store.path());
    mapped.load("live").unwrap().as_live::<i64>().unwrap().set([3], 9).unwrap();
    let received = receive(&replica, &store).unwrap();
    assert_eq!((received.generation, received.storage_count), (store.generation(), 2));
    assert_eq!(before[0].read::<i64>().unwrap(), [0, 1, 2, 9, 4]);
    assert_eq!(before[1].read::<i64>().unwrap(), [7; 5]);
    assert_same(&replica, &store);
}

#[test]
fn interrupted_tensor_of_a_replica_is_whole_after_a_receive() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    let marked = |path: &std::path::Path| {
        let snapshot = Store::open(path).unwrap().snapshot();
        let infos: Vec<_> = snapshot.storages().map(Result::unwrap).collect();
        infos.into_iter().find(|info| info.kind == stridemap::StorageKind::Mutable).unwrap().file
    };
    let file = marked(replica.path());
    let mut bytes = fs::read(&file).unwrap();
    bytes[0] ^= 1;
    *bytes.last_mut().unwrap() = 1;
    fs::write(&file, bytes).unwrap();
    receive(&replica, &store).unwrap();
    assert_same(&replica, &store);
}

#[test]
fn readers_keep_their_generation_and_its_files() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    let (newest, tagged) = (replica.snapshot(), replica.at("v1").unwrap());
    let seen = [tensors(&newest), tensors(&tagged)];
    let storages = files(&replica, "storages").len();
    store.untag("v1").unwrap();
    for name in store.names().unwrap() {
        store.remove(&name).unwrap();
    }
    receive(&replica, &store).unwrap();
    let _ = replica.gc().unwrap();
    assert_eq!(files(&replica, "storages").len(), storages);
    assert_eq!([tensors(&newest), tensors(&tagged)], seen);
    drop((newest, tagged));
    let _ = replica.gc().unwrap();
    assert_eq!(files(&replica, "storages").len(), 0);
    assert_eq!(files(&replica, "generations").len(), 0);
    assert_same(&replica, &store);
}

#[test]
fn waiting_reader_wakes() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    let reader = Store::open(replica.path()).unwrap();
    store.save("new", &1i32).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| reader.wait_for_change(Duration::from_secs(60)).unwrap());
        receive(&replica, &store).unwrap();
        assert!(waiting.join().unwrap());
    });
    assert_eq!(reader.generation(), store.generation());
    assert!(reader.contains("new").unwrap());
}

#[test]
fn what_a_killed_receive_has_read_is_not_read_again() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    store.save("long", &arange(&[600_000])).unwrap();
    store.save("short", &arange(&[100])).unwrap();
    // The long one is read first. Then the caller ends it.
    let (read, base) = (AtomicU64::new(0), replica.snapshot().id().unwrap());
    let progress = |bytes| match read.fetch_add(bytes, Ordering::Relaxed) {
        4_800_000.. => Err(stridemap::Error::new(stridemap::ErrorKind::Busy, "killed")),
        _ => Ok(()),
    };
    let options = ReceiveOptions { jobs: 1, progress: &progress, ..ReceiveOptions::default() };
    let _ = replica.receive(&store.snapshot(), Some(base), &options).unwrap_err();
    let received = receive(&replica, &store).unwrap();
    assert!(received.received_bytes < 600_000, "{received:?}");
    assert_same(&replica, &store);

    // A file that is not whole is replaced.
    for bytes in [vec![1; 8 * 700_000], vec![1; 10]] {
        store.save("long", &arange(&[700_000])).unwrap();
        let id = store.snapshot().storages().map(|info| info.unwrap().id).max().unwrap();
        fs::write(replica.path().join(format!("storages/{id:016x}.bin")), bytes).unwrap();
        fs::write(replica.path().join(format!("storages/{id:016x}.sum")), [1; 80]).unwrap();
        let part = Store::open(replica.path()).unwrap();
        receive(&part, &store).unwrap();
        assert_same(&replica, &store);
    }
}

#[test]
fn many_tags_and_names_are_received_with_tables() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    for round in 0..2 {
        store
            .write(|txn| {
                txn.on_existing(OnExisting::Replace);
                (0..3000).try_for_each(|i| txn.save(&format!("n{i}"), &(i + round)))
            })
            .unwrap();
        for tag in 0..200 {
            store.tag(&format!("t{round}.{tag}")).unwrap();
        }
        receive(&replica, &store).unwrap();
        assert_same(&replica, &store);
    }
    store.write(|txn| (0..200).try_for_each(|tag| txn.untag(&format!("t1.{tag}")))).unwrap();
    receive(&replica, &store).unwrap();
    assert_same(&replica, &store);
    let _ = (store.gc().unwrap(), replica.gc().unwrap());
    for name in ["storages", "generations"] {
        assert_eq!(files(&replica, name), files(&store, name));
    }
}

#[test]
fn elements_that_the_other_store_has_not_changed_stay_as_they_are() {
    let dir = temporary();
    let (store, replica) = pair(dir.path());
    let fill = |store: &Store, name: &str, value: i64| {
        let tensor = open_mapped(store.path()).load(name).unwrap();
        match name {
            "live" => tensor.as_live::<i64>().unwrap().set([3], value).unwrap(),
            _ => drop(tensor.lock_exclusive().unwrap().fill_(value).unwrap()),
        }
    };
    for name in ["mutable", "live"] {
        fill(&replica, name, 7);
        fill(&store, name, 8);
    }
    store.save("new", &1i32).unwrap();
    let changed = store.load("live").unwrap().storage_id();
    let options = ReceiveOptions { is_unchanged: &|id| Some(id) != changed, ..ReceiveOptions::default() };
    let base = replica.snapshot().id().unwrap();
    let received = replica.receive(&store.latest().unwrap(), Some(base), &options).unwrap();
    assert_eq!(received.storage_count, 2);
    let element = |name: &str| replica.load(name).unwrap().read::<i64>().unwrap()[3];
    assert_eq!((element("mutable"), element("live")), (7, 8));
}
