//! Objects that are corrupted, cut, swapped, missing, or of another store.

use std::fs;
use std::path::PathBuf;

use stridemap::{ErrorKind, Store};

use crate::support::{Place, assert_same, ignore, open};

/// A remote with each kind of object: HEAD, FORMAT, remote manifests, and objects of one and of several segments.
fn place() -> (Place, Store) {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("large", &vec![1u8; 5 << 20]).unwrap();
    store.save("small", &vec![2u32; 50_000]).unwrap();
    store.tag("v1").unwrap();
    store.write(|txn| (0..3000u32).try_for_each(|i| txn.save(&format!("many/{i}"), &i))).unwrap();
    store.write(|txn| (0..3000u32).try_for_each(|i| txn.save(&format!("more/{i}"), &i))).unwrap();
    place.push(&store);
    store.append("large", &vec![3u8; 3 << 20]).unwrap();
    place.push(&store);
    (place, store)
}

/// Reads everything that the remote has.
fn read_all(place: &Place) -> stridemap::Result<()> {
    let store = place.remote.store()?;
    for name in store.names()? {
        store.load(&name)?.to_bytes()?;
    }
    for tag in store.tags()? {
        store.at(tag.name.as_str())?.load("small")?.to_bytes()?;
    }
    let verification = store.verify(|_| ())?;
    match verification.is_whole() {
        true => Ok(()),
        false => Err(stridemap::Error::new(ErrorKind::Corrupt, format!("{verification:?}"))),
    }
}

/// Changes each object in turn, and checks that reading and pulling notice it. FORMAT is read by pushes only, and digests of
/// chunks by no pull: in `digest_count` objects, nothing else is changed.
fn each_object(digest_count: usize, change: impl Fn(&mut Vec<u8>)) {
    let (place, store) = place();
    let current = |path: &PathBuf| {
        let head = fs::read(place.path("remote/HEAD")).unwrap();
        let newest = stridemap_format::remote::Head::decode(&head, None).unwrap();
        let name = path.to_string_lossy();
        let digest = stridemap_format::remote::object_hex(&newest.manifest);
        (!name.contains("generations/") || name.contains(&digest))
            && !name.ends_with("FORMAT")
            && !name.ends_with(".lock")
    };
    let objects: Vec<PathBuf> = place.objects().into_keys().filter(current).collect();
    assert!(objects.len() >= 5, "{objects:?}");
    let mut digests = 0;
    for (round, path) in objects.iter().enumerate() {
        let original = fs::read(path).unwrap();
        let mut changed = original.clone();
        change(&mut changed);
        fs::write(path, changed).unwrap();
        let read = read_all(&place).unwrap_err();
        assert!(matches!(read.kind(), ErrorKind::Corrupt | ErrorKind::Io), "{}: {read:?}", path.display());
        let target = place.path(&format!("{round}.smap"));
        match place.remote.pull(&target, &ignore) {
            Ok(_) => {
                assert_same(&open(&target), &store);
                digests += 1;
            }
            Err(pulled) => {
                let kind = pulled.kind();
                assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Io), "{}: {pulled:?}", path.display());
                assert!(!target.exists());
            }
        }
        fs::write(path, original).unwrap();
    }
    assert_eq!(digests, digest_count, "objects of which pulls did not read what was changed");
    read_all(&place).unwrap();
    place.pull("whole.smap");
    assert_same(&open(&place.path("whole.smap")), &store);
}

#[test]
fn changed_byte_in_the_middle_of_an_object_is_noticed() {
    each_object(0, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
}

#[test]
fn changed_first_and_last_bytes_of_an_object_are_noticed() {
    each_object(0, |bytes| bytes[0] ^= 0x80);
    // Two objects end with digests.
    each_object(2, |bytes| *bytes.last_mut().unwrap() ^= 0x80);
}

#[test]
fn cut_object_is_noticed() {
    each_object(2, |bytes| bytes.truncate(bytes.len() - 1));
    each_object(0, Vec::clear);
}

/// The remote manifest that HEAD names.
fn newest_manifest(place: &Place) -> PathBuf {
    let head = fs::read(place.path("remote/HEAD")).unwrap();
    let head = stridemap_format::remote::Head::decode(&head, None).unwrap();
    place.path("remote").join(head.manifest_path())
}

#[test]
fn missing_object_is_named() {
    let (place, _) = place();
    let newest = newest_manifest(&place);
    let (mut needed, mut earlier) = (0, 0);
    for path in place.objects().into_keys() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "HEAD" || name == "FORMAT" || name.ends_with(".lock") {
            continue;
        }
        let is_earlier = path.to_string_lossy().contains("/generations/") && path != newest;
        let aside = place.path("aside");
        fs::rename(&path, &aside).unwrap();
        let target = place.path("pulled.smap");
        let pulled = place.remote.pull(&target, &ignore);
        let is_missing = |text: &str| text.contains("missing") || text.contains("does not exist");
        let verified = place.remote.store().and_then(|store| store.verify(|_| ()));
        fs::rename(&aside, &path).unwrap();
        if is_earlier {
            assert!(verified.unwrap().is_whole(), "{name}");
            pulled.unwrap();
            fs::remove_dir_all(target).unwrap();
            earlier += 1;
            continue;
        }
        let findings: Vec<String> = match verified {
            Ok(verification) => verification.findings.iter().map(ToString::to_string).collect(),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corrupt, "{name}: {e}");
                vec![e.to_string()]
            }
        };
        assert!(
            findings.iter().any(|text| text.contains(&name) && is_missing(text)),
            "{name}: {findings:#?}"
        );
        let pulled = pulled.unwrap_err();
        assert_eq!(pulled.kind(), ErrorKind::Corrupt, "{name}: {pulled}");
        assert!(pulled.to_string().contains(&name), "{name}: {pulled}");
        assert!(!target.exists());
        needed += 1;
    }
    assert!(needed >= 4 && earlier == 1, "{needed} {earlier}");
}

#[test]
fn objects_of_two_stores_that_were_swapped_are_noticed() {
    let (first, _) = place();
    let (second, _) = place();
    for name in ["HEAD", "FORMAT"] {
        let path = first.path("remote").join(name);
        let original = fs::read(&path).unwrap();
        fs::write(&path, fs::read(second.path("remote").join(name)).unwrap()).unwrap();
        if name == "HEAD" {
            assert_eq!(first.remote.store().unwrap_err().kind(), ErrorKind::Corrupt);
        }
        fs::write(&path, original).unwrap();
    }
    // Objects of the same remote.
    let objects: Vec<PathBuf> =
        first.objects().into_keys().filter(|path| path.to_string_lossy().contains("objects/")).collect();
    let contents: Vec<Vec<u8>> = objects.iter().map(|path| fs::read(path).unwrap()).collect();
    for at in 0..objects.len() {
        fs::write(&objects[at], &contents[(at + 1) % contents.len()]).unwrap();
        let read = read_all(&first).unwrap_err();
        assert!(matches!(read.kind(), ErrorKind::Corrupt | ErrorKind::Io), "{read:?}");
        fs::write(&objects[at], &contents[at]).unwrap();
    }
    read_all(&first).unwrap();
}

/// A change of an object, or `None` to delete it.
type Change = fn(&mut Vec<u8>);

#[test]
fn verification_lists_each_damaged_object_and_goes_on() {
    let changes: [(&str, Option<Change>); 3] = [
        ("missing", None),
        ("cut", Some(|bytes| bytes.truncate(bytes.len() / 2))),
        (
            "wrong",
            Some(|bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }),
        ),
    ];
    for (what, change) in changes {
        let place = Place::in_files();
        let store = place.create("a.smap");
        let state = stridemap::StorageKind::Mutable;
        place.push(&store);
        let mut objects = std::collections::BTreeMap::new();
        // Each in an object of its own, but for the two small ones.
        for name in ["first", "good", "second", "state"] {
            let before = place.objects();
            let length = 5 << 20;
            let byte = name.as_bytes()[0] + name.as_bytes()[1];
            match name {
                "state" => store.write(|txn| txn.save_as(name, &vec![byte; length], state)).unwrap(),
                _ => store.save(name, &vec![byte; length]).unwrap(),
            }
            place.push(&store);
            let new = place.objects().into_iter().filter(|(path, bytes)| {
                !before.contains_key(path) && path.to_string_lossy().contains("objects/") && *bytes >= 5 << 20
            });
            objects.insert(name, new.map(|(path, _)| path).next().unwrap());
        }
        store.write(|txn| ["small", "tiny"].iter().try_for_each(|name| txn.save(name, &[7u8; 9]))).unwrap();
        store.tag("v1").unwrap();
        place.push(&store);
        for name in ["first", "second", "state"] {
            let path = &objects[name];
            let mut bytes = fs::read(path).unwrap();
            fs::remove_file(path).unwrap();
            if let Some(change) = change {
                change(&mut bytes);
                fs::write(path, bytes).unwrap();
            }
        }
        let damaged = place.remote.store().unwrap();
        let verification = damaged.verify(|_| ()).unwrap();
        let findings: Vec<String> = verification.findings.iter().map(ToString::to_string).collect();
        for name in ["first", "second", "state"] {
            let about = verification.findings.iter().filter(|finding| finding.affects(name));
            assert_eq!(about.count(), 1, "{what} {name}: {findings:#?}");
        }
        for name in ["good", "small", "tiny"] {
            assert!(
                !verification.findings.iter().any(|finding| finding.affects(name)),
                "{what}: {findings:#?}"
            );
            let one = damaged.verify_tensors(&[name], |_| ()).unwrap();
            assert!(one.is_whole(), "{what} {name}: {one:?}");
        }
        let is_named = |text: &String| text.contains("/objects/") || text.contains("/storages/");
        assert!(findings.iter().all(is_named), "{what}: {findings:#?}");
        assert!(verification.findings.iter().all(|finding| finding.tags == ["v1"]), "{what}: {findings:#?}");
        let one = damaged.verify_tensors(&["first"], |_| ()).unwrap();
        assert_eq!(one.findings.len(), 1, "{what}: {one:?}");
    }
}

#[test]
fn object_that_many_tensors_need_is_one_finding() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.write(|txn| (0..40u8).try_for_each(|i| txn.save(&format!("x{i}"), &[i; 9]))).unwrap();
    place.push(&store);
    let pack = place.objects().into_iter().filter(|(path, _)| path.to_string_lossy().contains("objects/"));
    let pack = pack.max_by_key(|(_, bytes)| *bytes).unwrap().0;
    fs::remove_file(pack).unwrap();
    let verification = place.remote.store().unwrap().verify(|_| ()).unwrap();
    assert_eq!(verification.findings.len(), 1, "{verification:?}");
    assert_eq!(verification.findings[0].names.len(), 40);
}
