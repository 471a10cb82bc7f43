//! Objects that are corrupted, cut, swapped, missing, or of another store.

use std::fs;
use std::path::PathBuf;

use stridemap::{ErrorKind, StorageKind, Store};
use stridemap_remote::RemoteOptions;

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

/// The number of objects of which pulls, or all readers, do not need the changed bytes.
#[derive(Debug, PartialEq)]
struct Unread {
    by_pulls: usize,
    by_all: usize,
}

const NONE: Unread = Unread { by_pulls: 0, by_all: 0 };

/// Changes each object in turn, and checks that reading and pulling notice it. FORMAT is read by pushes only. A pull needs no
/// digests of chunks and blocks, and nobody those of blocks of tables, whose nodes have their own: in as many objects as
/// stated, nothing else is changed.
fn each_object(unread: Unread, change: impl Fn(&mut Vec<u8>)) {
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
    let mut found = Unread { by_pulls: 0, by_all: 0 };
    for (round, path) in objects.iter().enumerate() {
        let original = fs::read(path).unwrap();
        let mut changed = original.clone();
        change(&mut changed);
        fs::write(path, changed).unwrap();
        match read_all(&place) {
            Ok(()) => found.by_all += 1,
            Err(read) => {
                let kind = read.kind();
                assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Io), "{}: {read:?}", path.display());
            }
        }
        let target = place.path(&format!("{round}.smap"));
        match place.remote.pull(&target, &ignore) {
            Ok(_) => {
                assert_same(&open(&target), &store);
                found.by_pulls += 1;
            }
            Err(pulled) => {
                let kind = pulled.kind();
                assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Io), "{}: {pulled:?}", path.display());
                assert!(!target.exists());
            }
        }
        fs::write(path, original).unwrap();
    }
    assert_eq!(found, unread, "objects of which pulls, or all, did not read what was changed");
    read_all(&place).unwrap();
    place.pull("whole.smap");
    assert_same(&open(&place.path("whole.smap")), &store);
}

#[test]
fn changed_byte_in_the_middle_of_an_object_is_noticed() {
    each_object(NONE, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
}

#[test]
fn changed_first_and_last_bytes_of_an_object_are_noticed() {
    // Three objects begin with digests of blocks: two with those of tables.
    each_object(Unread { by_pulls: 3, by_all: 2 }, |bytes| bytes[0] ^= 0x80);
    // Two objects end with digests of chunks.
    each_object(Unread { by_pulls: 2, by_all: 0 }, |bytes| *bytes.last_mut().unwrap() ^= 0x80);
}

#[test]
fn cut_object_is_noticed() {
    each_object(Unread { by_pulls: 2, by_all: 0 }, |bytes| bytes.truncate(bytes.len() - 1));
    each_object(NONE, Vec::clear);
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
fn head_and_manifest_that_are_too_long_are_damage() {
    let (place, _) = place();
    for (path, length_bytes) in [(place.path("remote/HEAD"), 2 << 20), (newest_manifest(&place), 65 << 20)] {
        let whole = fs::read(&path).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(length_bytes).unwrap();
        let opened = place.remote.store().unwrap_err();
        let pulled = place.remote.pull(&place.path("pulled.smap"), &ignore).unwrap_err();
        for error in [opened, pulled] {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let name = path.file_name().unwrap().to_str().unwrap();
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("it has more than"), "{text}");
        }
        fs::write(&path, whole).unwrap();
    }
    read_all(&place).unwrap();
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
        let state = StorageKind::Mutable;
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

/// A few elements that were pushed: the tensor, the first one, and their bytes.
type Slice = (&'static str, usize, Vec<u8>);

/// A remote with tensors of several lengths and kinds, and slices of them: two elements of each block, and the last ones.
fn slices() -> (Place, Vec<Slice>) {
    let (place, mut slices) = (Place::in_files(), Vec::new());
    let store = place.create("a.smap");
    let elements =
        |length: usize| (0..length as u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let tensors: [(&str, StorageKind, Vec<u64>); 5] = [
        ("long", StorageKind::Sealed, elements(700_000)),
        ("middle", StorageKind::Sealed, elements(20_000)),
        ("short", StorageKind::Sealed, elements(100)),
        ("mutable", StorageKind::Mutable, elements(150_000)),
        ("live", StorageKind::Live, elements(150_001)),
    ];
    for (name, kind, elements) in &tensors {
        store.write(|txn| txn.save_as(name, elements, *kind)).unwrap();
    }
    place.push(&store);
    store.append("long", &vec![7u64; 90_000]).unwrap();
    place.push(&store);
    for (name, ..) in tensors {
        let tensor = store.load(name).unwrap();
        let length = tensor.size()[0];
        for first in (0..length - 2).step_by(8192).chain([length - 2]) {
            slices.push((name, first, tensor.narrow(0, first, 2).unwrap().to_bytes().unwrap()));
        }
    }
    (place, slices)
}

/// Reads each slice with a handle of its own. Returns how many were errors: none may be wrong.
fn failed_slices(place: &Place, slices: &[Slice], what: &str) -> usize {
    let read = |(name, first, _): &Slice| place.remote.store()?.load(name)?.narrow(0, *first, 2)?.to_bytes();
    let is_failed = |slice: &&Slice| match read(slice) {
        Ok(found) => {
            assert_eq!(found, slice.2, "{what}: {} from element {}", slice.0, slice.1);
            false
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
            assert!(e.to_string().contains("/objects/"), "{what}: {e}");
            true
        }
    };
    slices.iter().filter(is_failed).count()
}

#[test]
fn slice_of_a_damaged_object_is_right_or_an_error_that_names_the_object() {
    let (place, slices) = slices();
    assert_eq!(failed_slices(&place, &slices, "whole"), 0);
    let of_elements = |path: &PathBuf| path.to_string_lossy().contains("objects/");
    let objects: Vec<PathBuf> = place.objects().into_keys().filter(of_elements).collect();
    assert!(objects.len() >= 3, "{objects:?}");
    let contents: Vec<Vec<u8>> = objects.iter().map(|path| fs::read(path).unwrap()).collect();
    for (number, (path, bytes)) in objects.iter().zip(&contents).enumerate() {
        let failed = |changed: Option<&[u8]>, what: &str| {
            match changed {
                Some(changed) => fs::write(path, changed).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
            let failed = failed_slices(&place, &slices, &format!("{} {what}", path.display()));
            // verify finds whatever a slice does.
            let is_whole =
                || place.remote.store().and_then(|store| store.verify(|_| ())).is_ok_and(|v| v.is_whole());
            assert!(failed == 0 || !is_whole(), "{} {what}", path.display());
            failed
        };
        assert!(failed(None, "missing") > 0);
        assert!(failed(Some(&vec![0; bytes.len()]), "zeros") > 0);
        assert!(failed(Some(&contents[(number + 1) % contents.len()]), "of other bytes") > 0);
        assert!(failed(Some(&bytes[..bytes.len() / 2]), "cut") > 0);
        // Each block of 64 KiB, somewhere.
        let mut found = 0;
        for at in (0..bytes.len()).step_by(64 << 10).map(|start| start + start / 7 % (60 << 10)) {
            let mut changed = bytes.clone();
            let Some(byte) = changed.get_mut(at) else { continue };
            *byte ^= 0x10;
            found += failed(Some(&changed), &format!("with another byte {at}"));
        }
        assert!(found > 0, "{}", path.display());
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(failed_slices(&place, &slices, "whole again"), 0);
}

/// A remote with one object that has several segments of these tensors, and the path of the object.
fn packed(tensors: &[(&str, StorageKind, Vec<u8>)]) -> (Place, Store, PathBuf) {
    let place = Place::in_files();
    let store = place.create("a.smap");
    for (name, kind, elements) in tensors {
        store.write(|txn| txn.save_as(name, elements, *kind)).unwrap();
    }
    place.push(&store);
    let objects = place.objects().into_iter().filter(|(path, _)| path.to_string_lossy().contains("objects/"));
    let pack = objects.max_by_key(|(_, bytes)| *bytes).unwrap().0;
    assert!(
        fs::metadata(&pack).unwrap().len() as usize
            >= tensors.iter().map(|(.., elements)| elements.len()).sum()
    );
    (place, store, pack)
}

#[test]
fn digests_that_were_wrong_once_are_read_again() {
    let tensors = ["y", "z"].map(|name| (name, StorageKind::Sealed, vec![name.as_bytes()[0]; 480_000]));
    let (place, _store, pack) = packed(&tensors);
    let whole = fs::read(&pack).unwrap();
    // The eight digests of y are first, then those of z.
    let mut changed = whole.clone();
    changed[8 * 16 + 5] ^= 1;
    fs::write(&pack, changed).unwrap();
    let store = place.remote.store().unwrap();
    let slice = |name: &str| store.load(name).unwrap().narrow(0, 100, 3).unwrap().read::<u8>();
    assert_eq!(slice("y").unwrap(), b"yyy");
    assert_eq!(slice("z").unwrap_err().kind(), ErrorKind::Corrupt);
    fs::write(&pack, whole).unwrap();
    assert_eq!(slice("z").unwrap(), b"zzz");
}

#[test]
fn damaged_segment_of_a_pack_is_not_pulled() {
    let tensors: Vec<_> = ["a", "b", "c", "d", "e", "f"]
        .into_iter()
        .map(|name| (name, StorageKind::Live, vec![name.as_bytes()[0]; 30_000]))
        .collect();
    let (place, store, pack) = packed(&tensors);
    let whole = fs::read(&pack).unwrap();
    // One after another, so that the last ones come from the pack in memory.
    let remote = RemoteOptions::new().jobs(1).open(place.remote.location()).unwrap();
    // The pack is read as a whole before its last segments are needed.
    for name in ["a", "f"] {
        let mut changed = whole.clone();
        let at = whole
            .windows(100)
            .position(|bytes| bytes.iter().all(|byte| *byte == name.as_bytes()[0]))
            .unwrap();
        changed[at + 15_000] ^= 1;
        fs::write(&pack, changed).unwrap();
        let error = remote.pull(&place.path("b.smap"), &ignore).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert!(!place.path("b.smap").exists());
    }
    fs::write(&pack, whole).unwrap();
    place.pull("b.smap");
    assert_same(&open(&place.path("b.smap")), &store);
}
