//! GGUF files: candle reads the same from a file of the `gguf` package and from what a store writes back.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, Value};
use stridemap::{Store, Tensor};
use stridemap_interop::gguf::{Export, TYPE_KEY};
use stridemap_interop::import;

const ORIGINAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../interop/tests/data/gguf/common.gguf");

/// Imports the file into a store, and writes it from there.
fn write_back(store: &Store, path: &Path) {
    import(store, ORIGINAL, "").unwrap();
    let snapshot = store.snapshot();
    let tensors: Vec<(String, Tensor)> = snapshot.iter_loaded("").unwrap().map(Result::unwrap).collect();
    let type_of = |name: &String| Some((name.clone(), snapshot.attributes(name).remove(TYPE_KEY)?));
    let types: BTreeMap<_, _> = tensors.iter().filter_map(|(name, _)| type_of(name)).collect();
    let metadata = snapshot.attributes("");
    Export::new().metadata(&metadata).types(&types).write(path, &tensors, |_| ()).unwrap();
}

#[test]
fn candle_reads_what_a_store_writes_back_like_the_original() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    let path = dir.path().join("written.gguf");
    write_back(&store, &path);
    let mut files = [File::open(ORIGINAL).unwrap(), File::open(&path).unwrap()];
    let [original, written] = files.each_mut().map(|file| Content::read(file).unwrap());
    assert_eq!(original.tensor_infos.len(), 14);
    assert_eq!(written.tensor_infos.len(), 14);
    let mut quantized_count = 0;
    for (name, info) in &original.tensor_infos {
        let found = &written.tensor_infos[name];
        assert_eq!((found.ggml_dtype, &found.shape), (info.ggml_dtype, &info.shape), "{name}");
        if info.ggml_dtype == GgmlDType::Q8K {
            continue; // candle knows its size, and does not load it
        }
        let [theirs, ours] = [(&original, 0), (&written, 1)]
            .map(|(content, file)| content.tensor(&mut files[file], name, &Device::Cpu).unwrap());
        assert_eq!(theirs.data().unwrap(), ours.data().unwrap(), "{name}");
        // The store has the same bytes: those of the blocks, or of the elements.
        let stored = store.load(name).unwrap();
        assert_eq!(stored.to_bytes().unwrap(), *theirs.data().unwrap(), "{name}");
        let rows = info.shape.dims().split_last().unwrap().1;
        assert_eq!(&stored.size()[..stored.ndim() - 1], rows, "{name}");
        quantized_count += usize::from(info.ggml_dtype.block_size() > 1);
    }
    assert_eq!(quantized_count, 10);
    let shown = |metadata: &std::collections::HashMap<String, Value>| {
        let texts = metadata.iter().map(|(key, value)| (key.clone(), format!("{value:?}")));
        texts.collect::<BTreeMap<_, _>>()
    };
    assert!(original.metadata.len() > 20);
    assert_eq!(shown(&original.metadata), shown(&written.metadata));
}
