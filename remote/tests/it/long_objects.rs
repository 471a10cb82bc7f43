//! Pulls of objects of many MiB, each by one request whose bytes are written as they arrive.

use std::sync::Arc;
use std::time::Duration;

use stridemap::{Error, ErrorKind, StorageKind};
use stridemap_remote::faults::{Fault, Faults};
use stridemap_remote::{Put, Remote};

use crate::support::{Place, assert_same, assert_whole, ignore, open};

const TIMEOUT: Duration = Duration::from_secs(5);

const SIZE: usize = 12 << 20;
/// The digests of its blocks are before the elements.
const OBJECT_SIZE: usize = SIZE + SIZE.div_ceil(64 << 10) * 16;

/// A remote that has a store with a long object, and makes one request at a time.
fn pushed() -> (Place, Faults, Remote) {
    let (place, faults) = (Place::in_memory(), Faults::new());
    let remote = Remote::with_client(faults.client(TIMEOUT), 1);
    let store = place.create("a.smap");
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 1000 % 251) as u8).collect();
    store.save("x", &bytes).unwrap();
    remote.push(&store, &ignore).unwrap();
    faults.reset();
    (place, faults, remote)
}

fn requests_of_objects(faults: &Faults) -> usize {
    faults.log().iter().filter(|request| request.starts_with("get objects/")).count()
}

#[test]
fn range_goes_on_where_the_connection_broke() {
    let faults = Faults::new();
    let client = faults.client(TIMEOUT);
    client.put("objects/a", "0123456789".into()).unwrap();
    faults.reset();
    let before = client.requests().received_bytes;
    for request in 0..3 {
        faults.inject(request, Fault::Truncated);
    }
    assert_eq!(client.get_range("objects/a", 0..10).unwrap(), "0123456789");
    assert_eq!(faults.log().len(), 4);
    assert_eq!(client.requests().received_bytes - before, 10, "no byte comes twice");
}

#[test]
fn range_of_an_object_that_is_replaced_meanwhile_is_of_one_version() {
    let faults = Faults::new();
    let (client, other) = (faults.client(TIMEOUT), faults.client(TIMEOUT));
    let Put::Written(_) = client.put_new("HEAD", "0123456789".into()).unwrap() else { panic!("it exists") };
    faults.reset();
    faults.inject(0, Fault::Truncated);
    faults.inject(1, Fault::Before(Arc::new(move || drop(other.put("HEAD", "abcdefghij".into()).unwrap()))));
    assert_eq!(client.get_range("HEAD", 0..10).unwrap(), "abcdefghij");
}

#[test]
fn pull_goes_on_where_the_connection_broke() {
    let (place, faults, remote) = pushed();
    remote.pull(&place.path("whole.smap"), &ignore).unwrap();
    assert_eq!(requests_of_objects(&faults), 1, "{:?}", faults.log());
    faults.reset();
    // Each second request breaks.
    for request in (0..40).step_by(2) {
        faults.inject(request, Fault::Truncated);
    }
    let before = remote.requests().received_bytes;
    remote.pull(&place.path("b.smap"), &ignore).unwrap();
    let received = remote.requests().received_bytes - before;
    assert!(
        (OBJECT_SIZE as u64..OBJECT_SIZE as u64 + 100_000).contains(&received),
        "{received}: no byte comes twice"
    );
    assert!(requests_of_objects(&faults) > 1, "{:?}", faults.log());
    let replica = open(&place.path("b.smap"));
    assert_same(&replica, &open(&place.path("a.smap")));
    assert_whole(&replica);
}

#[test]
fn wrong_byte_in_a_long_object_is_found_and_nothing_is_made() {
    let (place, faults, remote) = pushed();
    remote.pull(&place.path("whole.smap"), &ignore).unwrap();
    let last = faults.log().iter().rposition(|request| request.starts_with("get objects/")).unwrap();
    faults.reset();
    faults.inject(last as u64, Fault::Wrong);
    let error = remote.pull(&place.path("b.smap"), &ignore).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("objects/"), "{error}");
    assert!(!place.path("b.smap").exists());
}

#[test]
fn wrong_byte_in_a_tensor_that_changes_in_place_is_found() {
    for kind in [StorageKind::Mutable, StorageKind::Live] {
        let (place, faults) = (Place::in_memory(), Faults::new());
        let remote = Remote::with_client(faults.client(TIMEOUT), 1);
        let store = place.create("a.smap");
        let elements: Vec<u64> = (0..400_000).collect();
        store.write(|txn| txn.save_as("x", &elements, kind)).unwrap();
        remote.push(&store, &ignore).unwrap();
        faults.reset();
        remote.pull(&place.path("whole.smap"), &ignore).unwrap();
        assert_eq!(open(&place.path("whole.smap")).load("x").unwrap().read::<u64>().unwrap(), elements);
        let requests = faults.log();
        let objects = requests.iter().enumerate().filter(|(_, request)| request.starts_with("get objects/"));
        let mut kinds = Vec::new();
        for (number, _) in objects {
            faults.reset();
            faults.inject(number as u64, Fault::Wrong);
            kinds.push(remote.pull(&place.path("b.smap"), &ignore).unwrap_err().kind());
            assert!(!place.path("b.smap").exists());
        }
        // The block with the mark of a mutable storage, and the digests of the blocks, are read first.
        let count = if kind == StorageKind::Mutable { 3 } else { 1 };
        assert_eq!(kinds, vec![ErrorKind::Corrupt; count]);
    }
}

#[test]
fn object_that_is_too_short_is_damaged_and_more_bytes_at_its_end_are_not_read() {
    let (place, faults, remote) = pushed();
    remote.pull(&place.path("whole.smap"), &ignore).unwrap();
    let name =
        faults.log().iter().find_map(|request| request.strip_prefix("get objects/").map(str::to_owned));
    let name = format!("objects/{}", name.unwrap());
    let client = faults.client(TIMEOUT);
    let bytes = client.get(&name, 1 << 30).unwrap().unwrap().bytes;
    assert_eq!(bytes.len(), OBJECT_SIZE);
    let longer = [&bytes[..], &[0; 100]].concat();
    client.put(&name, longer.into()).unwrap();
    let before = remote.requests().received_bytes;
    remote.pull(&place.path("longer.smap"), &ignore).unwrap();
    let received = remote.requests().received_bytes - before;
    assert!((OBJECT_SIZE as u64..OBJECT_SIZE as u64 + 100_000).contains(&received), "{received}");
    for length in [OBJECT_SIZE - 1, 1, 0] {
        client.put(&name, bytes.slice(..length)).unwrap();
        let error = remote.pull(&place.path("b.smap"), &ignore).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{length} bytes: {error}");
        assert!(error.to_string().contains(&name), "{length} bytes: {error}");
        assert!(!place.path("b.smap").exists());
    }
}

#[test]
fn error_of_the_progress_ends_the_request() {
    let (place, faults, remote) = pushed();
    let end = |_| Err(Error::new(ErrorKind::Busy, "that is enough"));
    let error = remote.pull(&place.path("b.smap"), &end).unwrap_err();
    assert!(error.to_string().contains("that is enough"), "{error}");
    assert!(!place.path("b.smap").exists());
    faults.reset();
    remote.pull(&place.path("b.smap"), &ignore).unwrap();
    assert_same(&open(&place.path("b.smap")), &open(&place.path("a.smap")));
}
