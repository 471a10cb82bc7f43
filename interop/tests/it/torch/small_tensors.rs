//! Checkpoints of very many very small tensors, and of storages that are mentioned repeatedly.

use std::fs;

use stridemap_interop::ForeignFile;

use super::forge::{archive, legacy, tensor, text};
use crate::place::Place;
use crate::support::temporary;

/// A pickle as Python's pickler writes it: every value has an entry in the memo.
struct Pickle {
    bytes: Vec<u8>,
    memo_count: u32,
}

impl Pickle {
    /// Appends instructions, and memorizes the value that they leave.
    fn memorized(&mut self, instructions: &[u8]) {
        self.bytes.extend(instructions);
        match u8::try_from(self.memo_count) {
            Ok(index) => self.bytes.extend([b'q', index]),
            Err(_) => self.bytes.extend([&b"r"[..], &self.memo_count.to_le_bytes()].concat()),
        }
        self.memo_count += 1;
    }
}

/// A `state_dict` of float32 scalars, each with its own storage.
fn scalars(names: &[String], keys: &[String]) -> Vec<u8> {
    let mut pickle = Pickle { bytes: b"\x80\x02".to_vec(), memo_count: 0 };
    pickle.memorized(b"ccollections\nOrderedDict\n");
    pickle.memorized(b")R");
    pickle.bytes.push(b'(');
    for (i, (name, key)) in names.iter().zip(keys).enumerate() {
        pickle.memorized(&text(name));
        if i == 0 {
            pickle.memorized(b"ctorch._utils\n_rebuild_tensor_v2\n");
            pickle.bytes.extend(b"((");
            pickle.memorized(&text("storage"));
            pickle.memorized(b"ctorch\nFloatStorage\n");
            pickle.memorized(&text(key));
            pickle.memorized(&text("cpu"));
        } else {
            pickle.bytes.extend(b"h\x03((h\x04h\x05");
            pickle.memorized(&text(key));
            pickle.bytes.extend(b"h\x07");
        }
        pickle.memorized(b"K\x01Nt");
        pickle.memorized(b"QK\x00))\x89h\x00)R");
        pickle.memorized(b"t");
        pickle.memorized(b"R");
    }
    pickle.bytes.extend(b"u.");
    pickle.bytes
}

#[test]
fn twenty_thousand_scalars_are_read_in_the_old_layout() {
    let names: Vec<_> = (0..20_000).map(|i| format!("scales.{i}")).collect();
    let keys: Vec<_> = (0..20_000).map(|i| (94_000_000_000_000u64 + 64 * i).to_string()).collect();
    let elements: Vec<f32> = (0..20_000u16).map(f32::from).collect();
    let storages: Vec<_> = keys.iter().map(String::as_str).zip(elements.chunks(1)).collect();
    let file = legacy(&scalars(&names, &keys), &storages);
    assert!((115..125).contains(&(file.len() / 20_000)), "{} bytes", file.len());
    let dir = temporary();
    let path = dir.path().join("scalars.pt");
    fs::write(&path, file).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    assert_eq!(file.tensors().count(), 20_000);
    assert_eq!(file.load("scales.19999").unwrap().read::<f32>().unwrap(), [19999.]);
}

#[test]
fn small_storages_become_one_file_in_both_layouts() {
    let names: Vec<_> = (0..300).map(|i| format!("p{i}")).collect();
    let keys: Vec<_> = (0..300).map(|i| i.to_string()).collect();
    let elements: Vec<f32> = (0..300u16).map(f32::from).collect();
    let storages: Vec<_> = keys.iter().map(String::as_str).zip(elements.chunks(1)).collect();
    let pickle = scalars(&names, &keys);
    let members: Vec<(String, Vec<u8>)> =
        storages.iter().map(|(key, x)| (format!("m/data/{key}"), x[0].to_le_bytes().to_vec())).collect();
    let mut members: Vec<(&str, &[u8])> =
        members.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    members.push(("m/data.pkl", &pickle));
    for bytes in [legacy(&pickle, &storages), archive(&members)] {
        let place = Place::new();
        place.import(&place.file("x.pt", &bytes)).unwrap();
        for (i, name) in names.iter().enumerate() {
            assert_eq!(place.store.load(name).unwrap().item::<f32>().unwrap(), i as f32);
        }
        let files = fs::read_dir(place.store.path().join("storages")).unwrap();
        assert_eq!(files.count(), 1);
        assert!(place.store.verify(|_| ()).unwrap().findings.is_empty());
    }
}

#[test]
fn memo_indices_need_not_be_consecutive() {
    // Entries 2 and 0, then 1 and 2 again, and MEMOIZE as entry 3.
    let object = [
        &b"\x80\x04}("[..],
        &text("a"),
        b"q\x02",
        &text("b"),
        b"q\x00",
        &text("c"),
        b"q\x01",
        &text("d"),
        b"q\x02",
        &text("e"),
        b"\x94h\x02h\x00h\x03",
        &text("f"),
        b"h\x01u.",
    ]
    .concat();
    let dir = temporary();
    let path = dir.path().join("memo.pt");
    fs::write(&path, legacy(&object, &[])).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    let found: Vec<_> = file.attributes().iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(found, ["a=b", "b=e", "c=d", "e=d", "f=c"]);
}

#[cfg(target_os = "linux")]
#[test]
fn file_name_that_is_not_utf8_is_refused_only_where_it_names_a_tensor() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let dir = temporary();
    let path = dir.path().join(OsStr::from_bytes(b"\xff.pt"));
    let object = tensor(b"K\x02", b"K\x00", b"K\x02\x85", b"K\x01\x85");
    fs::write(&path, legacy(&object, &[("0", &[0.5, 1.5])])).unwrap();
    assert_eq!(ForeignFile::open(&path).unwrap().load("w").unwrap().read::<f32>().unwrap(), [0.5, 1.5]);
    fs::write(&path, legacy(b"\x80\x02K\x01.", &[])).unwrap();
    let error = ForeignFile::open(&path).unwrap_err().to_string();
    assert!(error.ends_with("is not UTF-8; rename the file"), "{error}");
}
