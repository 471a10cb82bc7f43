//! What every store must do, whatever is behind its URL.

use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use stridemap::ErrorKind;
use stridemap_remote::{Client, Put, Version};
use tempfile::TempDir;

use crate::common::azurite::Azurite;
use crate::common::moto::{CANARY, Moto};

const MINUTE: Duration = Duration::from_secs(60);

fn written(put: Put) -> Version {
    match put {
        Put::Written(version) => version,
        Put::Exists => panic!("it exists"),
    }
}

/// The whole contract of a remote that can be written, which is empty.
fn check_contract(client: &Client) {
    assert!(client.get("HEAD", 100).unwrap().is_none());
    assert!(client.info("HEAD").unwrap().is_none());
    assert_eq!(client.list("").unwrap(), []);

    // A new object is written once.
    let first = written(client.put_new("HEAD", "first".into()).unwrap());
    assert_eq!(client.put_new("HEAD", "other".into()).unwrap(), Put::Exists);
    let object = client.get("HEAD", 5).unwrap().unwrap();
    assert_eq!((&object.bytes[..], &object.version), (&b"first"[..], &first));
    assert!(client.get_if_changed("HEAD", &first, 5).unwrap().is_none());
    let age = SystemTime::now().duration_since(object.modified).unwrap_or_default();
    assert!(age < MINUTE, "{age:?}");

    // It is replaced only by who knows its version.
    let second = written(client.put_if_match("HEAD", "second".into(), &first).unwrap());
    assert_ne!(first, second);
    assert_eq!(client.put_if_match("HEAD", "other".into(), &first).unwrap(), Put::Exists);
    assert_eq!(client.put_if_match("absent", "other".into(), &first).unwrap(), Put::Exists);
    assert!(client.get("absent", 100).unwrap().is_none());
    let object = client.get_if_changed("HEAD", &first, 100).unwrap().unwrap();
    assert_eq!((&object.bytes[..], &object.version), (&b"second"[..], &second));

    // An object can be longer than the caller wants.
    let error = client.get("HEAD", 5).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");

    // Ranges are exact, or an error.
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    client.put("objects/abc", bytes.clone().into()).unwrap();
    client.put("objects/abc", bytes.clone().into()).unwrap();
    let ranges: [Range<u64>; 5] = [0..1, 299_999..300_000, 0..300_000, 7..7, 1000..250_000];
    let part = |range: &Range<u64>| Bytes::copy_from_slice(&bytes[range.start as usize..range.end as usize]);
    for range in &ranges {
        assert_eq!(client.get_range("objects/abc", range.clone()).unwrap(), part(range));
    }
    let mut parts: Vec<(String, Range<u64>)> =
        ranges.iter().cycle().take(40).map(|range| ("objects/abc".to_owned(), range.clone())).collect();
    parts.insert(3, ("objects/missing".to_owned(), 0..1));
    parts.insert(7, ("objects/abc".to_owned(), 299_990..300_001));
    parts.push(("objects/abc".to_owned(), 300_000..300_001));
    for ((name, range), result) in parts.iter().zip(client.get_ranges(&parts)) {
        if name == "objects/abc" && range.end <= 300_000 {
            assert_eq!(result.unwrap(), part(range));
        } else {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    // Listings.
    client.put("objects/abd", "x".into()).unwrap();
    client.put("objectsx/abd", Bytes::new()).unwrap();
    assert_eq!(client.get("objectsx/abd", 0).unwrap().unwrap().bytes, Bytes::new());
    let names = |prefix: &str| {
        let mut names: Vec<(String, u64)> =
            client.list(prefix).unwrap().into_iter().map(|info| (info.name, info.length_bytes)).collect();
        names.sort();
        names
    };
    let objects = [("objects/abc".to_owned(), 300_000), ("objects/abd".to_owned(), 1)];
    assert_eq!(names("objects"), objects);
    assert_eq!(names("generations"), []);
    assert_eq!(names("").len(), 4);
    let info = client.info("objects/abc").unwrap().unwrap();
    assert_eq!((info.name.as_str(), info.length_bytes), ("objects/abc", 300_000));

    // Deletion.
    client.delete("objects/abd").unwrap();
    client.delete("objects/abd").unwrap();
    assert_eq!(names("objects"), objects[..1]);

    let requests = client.requests();
    assert!(
        requests.get >= 40 && requests.put >= 9 && requests.list >= 5 && requests.delete == 2,
        "{requests:?}"
    );
    assert!(requests.received_bytes > 3_000_000 && requests.sent_bytes > 600_000, "{requests:?}");
}

/// Of writers that race, exactly one wins each round.
fn check_races(client: &Client, rounds: usize) {
    const WRITERS: usize = 8;
    let mut known: Option<Version> = None;
    for round in 0..rounds {
        let (barrier, known_version) = (&Barrier::new(WRITERS), &known);
        let race = |writer: usize| {
            let bytes = Bytes::from(format!("{round} {writer}"));
            barrier.wait();
            let put = match known_version {
                None => client.put_new("RACE", bytes.clone()).unwrap(),
                Some(version) => client.put_if_match("RACE", bytes.clone(), version).unwrap(),
            };
            match put {
                Put::Written(version) => Some((bytes, version)),
                Put::Exists => None,
            }
        };
        let won: Vec<(Bytes, Version)> = thread::scope(|scope| {
            let race = &race;
            let racing: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || race(writer))).collect();
            racing.into_iter().filter_map(|writer| writer.join().unwrap()).collect()
        });
        let object = client.get("RACE", 100).unwrap().unwrap();
        assert_eq!(won, [(object.bytes, object.version.clone())], "round {round}");
        known = Some(object.version);
    }
}

fn directory() -> (TempDir, Client) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/a/b/", dir.path().display());
    let client = Client::open(&url, MINUTE).unwrap();
    (dir, client)
}

#[test]
fn memory_does_what_a_remote_must() {
    let client = Client::open("memory://contract/a", MINUTE).unwrap();
    check_contract(&client);
    check_races(&client, 100);
    let again = Client::open("memory://contract/a/", MINUTE).unwrap();
    assert!(again.get("HEAD", 100).unwrap().is_some());
    assert!(Client::open("memory://contract/b", MINUTE).unwrap().get("HEAD", 100).unwrap().is_none());
}

#[test]
fn a_directory_does_what_a_remote_must() {
    let (_dir, client) = directory();
    check_contract(&client);
    check_races(&client, 100);
}

#[test]
fn s3_does_what_a_remote_must() {
    let Some(moto) = Moto::shared() else { return };
    let client = moto.client("contract");
    check_contract(&client);
    check_races(&client, 100);
}

#[test]
fn a_bucket_that_is_not_there_is_named_and_no_secret_is() {
    let Some(moto) = Moto::shared() else { return };
    let client = Client::open_with("s3://no-such-bucket/x", MINUTE, moto.variables()).unwrap();
    for error in [
        client.get("HEAD", 100).unwrap_err(),
        client.put_new("HEAD", "x".into()).unwrap_err(),
        client.put("HEAD", "x".into()).unwrap_err(),
        client.list("").unwrap_err(),
        client.get_range("HEAD", 0..1).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let shown = format!("{error} {error:?} {client:?}");
        assert!(shown.contains("s3://no-such-bucket/x") && !shown.contains(CANARY), "{shown}");
    }
    assert_eq!(client.requests().total(), 5, "nothing is repeated");
}

#[test]
fn azure_does_what_a_remote_must() {
    let Some(azurite) = Azurite::shared() else { return };
    let client = azurite.client("contract");
    check_contract(&client);
    check_races(&client, 50);
}
