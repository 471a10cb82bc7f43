//! Elements borrowed from external files, and files larger than memory.

use crate::harness::hooked::Hooked;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use ndarray::ArrayViewD;

use super::*;
use crate::harness::assert_refused;

/// Writes a safetensors file with this header, padded to `header_bytes`, and `elements_bytes` of zeros.
fn write_raw(path: &Path, json: &str, header_bytes: usize, elements_bytes: u64) -> File {
    let file = File::create(path).unwrap();
    file.write_all_at(&(header_bytes as u64).to_le_bytes(), 0).unwrap();
    file.write_all_at(format!("{json:header_bytes$}").as_bytes(), 8).unwrap();
    file.set_len(8 + header_bytes as u64 + elements_bytes).unwrap();
    file
}

/// Returns the number of mappings of a file in this process.
fn mapping_count(path: &Path) -> usize {
    let name = fs::canonicalize(path).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(name.to_str().unwrap())).count()
}

fn open_count(path: &Path) -> usize {
    let name = fs::canonicalize(path).unwrap();
    let links =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| *link == name).count()
}

#[test]
fn mapped_store_borrows_elements_from_the_external_file() {
    let adopted = Adopted::new();
    let store = mapped(&external_beside(), &adopted.path);
    let tensor = store.load("weight").unwrap();
    assert_eq!(tensor.as_slice::<f32>().unwrap(), weight());
    let t = tensor.t().unwrap();
    let array = ArrayViewD::<f32>::try_from(&t).unwrap();
    assert_eq!((array.shape(), array[[3, 2]]), (&[4, 3][..], 11.));
    assert_eq!(store.load("bias").unwrap().as_slice::<f64>().unwrap(), [0., 1., 2., 3.]);
    assert_eq!(mapping_count(&adopted.file), 1);
}

/// Each of these tensors has its own storage, because no offset is a multiple of its item size.
#[test]
fn external_file_with_many_storages_is_mapped_or_opened_once() {
    let dir = crate::support::temporary();
    let (file, path) = (dir.path().join("many.safetensors"), dir.path().join("many.smap"));
    let count = 300;
    let entries: Vec<String> = (0..count)
        .map(|i| {
            format!(r#""t{i}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}}"#, 4 * i + 1, 4 * i + 5)
        })
        .collect();
    let json =
        format!(r#"{{"pad":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},{}}}"#, entries.join(","));
    write_raw(&file, &json, json.len(), 1 + 4 * count);
    stridemap_interop::adopt(&external_beside().create(&path).unwrap(), &file, "").unwrap();
    for (store, is_mapped) in
        [(external_beside().open(&path).unwrap(), false), (mapped(&external_beside(), &path), true)]
    {
        let snapshot = store.snapshot();
        let tensors: Vec<_> = snapshot.iter_loaded("").unwrap().map(|entry| entry.unwrap().1).collect();
        assert_eq!((tensors.len(), store.snapshot().storages().count()), (301, 301));
        assert_eq!(tensors[300].to_bytes().unwrap(), [0; 4]);
        let expected = if is_mapped { (1, 0) } else { (0, 1) };
        assert_eq!((mapping_count(&file), open_count(&file)), expected);
    }
    assert_eq!((mapping_count(&file), open_count(&file)), (0, 0));
}

#[test]
fn misaligned_elements_are_copied_and_not_borrowed() {
    let dir = crate::support::temporary();
    let (file, path) = (dir.path().join("odd.safetensors"), dir.path().join("odd.smap"));
    let json = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let written = write_raw(&file, json, 57, 8);
    written.write_all_at(&2.5f32.to_le_bytes(), 65 + 4).unwrap();
    drop(written);
    stridemap_interop::adopt(&external_beside().create(&path).unwrap(), &file, "").unwrap();
    let store = mapped(&external_beside(), &path);
    let odd = store.load("a").unwrap();
    assert_refused(odd.as_slice::<f32>(), ErrorKind::NeedsCopy, &["as_slice", "read", "clone_data"]);
    assert_refused(
        ArrayViewD::<f32>::try_from(&odd).map(drop),
        ErrorKind::NeedsCopy,
        &["borrow as an array", "clone_data"],
    );
    assert_eq!(odd.read::<f32>().unwrap(), [0., 2.5]);
    assert_eq!(ndarray::ArrayD::<f32>::try_from(&odd).unwrap().as_slice().unwrap(), [0., 2.5]);
    assert_eq!(odd.clone_data().unwrap().as_slice::<f32>().unwrap(), [0., 2.5]);
    store.materialize(|_| ()).unwrap();
    assert_eq!(store.load("a").unwrap().as_slice::<f32>().unwrap(), [0., 2.5]);
}

#[test]
fn adopting_a_4_gib_file_writes_almost_nothing() {
    let dir = crate::support::temporary();
    let (file, path) = (dir.path().join("big.safetensors"), dir.path().join("big.smap"));
    let big: u64 = 4 << 30;
    let json = format!(
        r#"{{"first":{{"dtype":"F32","shape":[1024],"data_offsets":[0,4096]}},"big":{{"dtype":"U8","shape":[{big}],"data_offsets":[4096,{end}]}},"last":{{"dtype":"I64","shape":[2,4],"data_offsets":[{end},{}]}}}}"#,
        big + 4096 + 64,
        end = big + 4096,
    );
    let written = write_raw(&file, &json, 1024, big + 4096 + 64);
    written.write_all_at(&7f32.to_le_bytes(), 8 + 1024).unwrap();
    written.write_all_at(&(-9i64).to_le_bytes(), 8 + 1024 + 4096 + big + 56).unwrap();
    drop(written);

    let disk = Hooked::default();
    let options = external_beside().disk(Arc::new(disk.clone()));
    let store = options.create(&path).unwrap();
    disk.take_counts();
    stridemap_interop::adopt(&store, &file, "").unwrap();
    let counts = disk.take_counts();
    assert!(counts.metadata_written_bytes < 100 << 10, "{counts:?}");
    assert_eq!((counts.data_written_bytes, counts.data_read_bytes), (0, 0), "{counts:?}");

    for store in [external_beside().open(&path).unwrap(), mapped(&external_beside(), &path)] {
        assert_eq!(store.load("first").unwrap().get::<f32>(&[0]).unwrap(), 7.);
        assert_eq!(store.load("last").unwrap().get::<i64>(&[1, 3]).unwrap(), -9);
        assert_eq!(store.load("big").unwrap().get::<u8>(&[-1]).unwrap(), 0);
    }
    assert_eq!(mapped(&external_beside(), &path).load("last").unwrap().as_slice::<i64>().unwrap()[7], -9);
    File::options().write(true).open(&file).unwrap().write_all_at(&[1], big).unwrap();
    assert_refused(store.load("big"), ErrorKind::ExternalChanged, &["mtime in ns"]);
}

/// The export reads from the file that it replaces.
#[test]
fn export_over_a_file_that_is_mapped_as_its_source_writes_the_right_bytes() {
    let adopted = Adopted::new();
    let store = mapped(&external_beside(), &adopted.path);
    let tensor = store.load("weight").unwrap();
    let lent = tensor.as_slice::<f32>().unwrap();
    let turned = [("t".to_owned(), tensor.t().unwrap())];
    safetensors::Export::new().write(&adopted.file, &turned, |_| ()).unwrap();
    assert_eq!(lent, weight());
    let written = ForeignFile::open(&adopted.file).unwrap().load("t").unwrap();
    assert_eq!(written.t().unwrap().to_bytes().unwrap(), tensor.to_bytes().unwrap());
    adopted.assert_changed(&["inode"]);
}
