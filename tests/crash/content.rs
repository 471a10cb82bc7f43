//! The content of a store, and the contents allowed after a power cut.

use std::collections::BTreeMap;

use stridemap::{DType, Snapshot, Store};

/// Tensors (name, header and elements), attributes, and the tensors of each tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    pub(crate) tensors: BTreeMap<String, Entry>,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) tags: BTreeMap<String, BTreeMap<String, Entry>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) dtype: DType,
    pub(crate) size: Vec<usize>,
    /// `None` if unknown.
    pub(crate) stride: Option<Vec<isize>>,
    pub(crate) offset: Option<usize>,
    /// In row-major order. For elements changed in place there is one version for each change since the last flush,
    /// and each element may be that of any version.
    pub(crate) elements: Vec<Vec<u8>>,
}

fn entries(snapshot: &Snapshot) -> stridemap::Result<BTreeMap<String, Entry>> {
    let mut tensors = BTreeMap::new();
    for name in snapshot.names()? {
        // A power cut may leave the mark of a complete change.
        let tensor = snapshot.load(&name)?.allow_interrupted();
        let entry = Entry {
            dtype: tensor.dtype(),
            size: tensor.size().to_vec(),
            stride: Some(tensor.stride().to_vec()),
            offset: Some(tensor.storage_offset()),
            elements: vec![tensor.to_bytes()?],
        };
        tensors.insert(name, entry);
    }
    Ok(tensors)
}

impl Content {
    pub(crate) fn of(store: &Store) -> stridemap::Result<Content> {
        let mut tags = BTreeMap::new();
        for tag in store.tags()? {
            tags.insert(tag.name.clone(), entries(&store.at(&*tag.name)?)?);
        }
        let tensors = entries(&store.snapshot())?;
        Ok(Content { tensors, attributes: store.attributes(""), tags })
    }

    /// Compares found content with this one. Returns the first difference that is not allowed.
    pub(crate) fn compare(&self, found: &Content) -> Result<(), String> {
        if self.attributes != found.attributes {
            return Err(format!("attributes {:?}, and not {:?}", found.attributes, self.attributes));
        }
        if self.tags != found.tags {
            return Err(format!("tags {:?}, and not {:?}", found.tags, self.tags));
        }
        if !self.tensors.keys().eq(found.tensors.keys()) {
            let (found, expected) = (found.tensors.keys(), self.tensors.keys());
            return Err(format!(
                "names {:?}, and not {:?}",
                found.collect::<Vec<_>>(),
                expected.collect::<Vec<_>>()
            ));
        }
        for (name, entry) in &self.tensors {
            entry.compare(&found.tensors[name]).map_err(|wrong| format!("{name}: {wrong}"))?;
        }
        Ok(())
    }

    /// Returns this content, with the unflushed versions before a commit still unflushed after it.
    pub(crate) fn carrying(mut self, before: &Content) -> Content {
        for (name, entry) in &mut self.tensors {
            if let Some(earlier) = before.tensors.get(name)
                && earlier.elements.last() == entry.elements.last()
            {
                entry.elements.clone_from(&earlier.elements);
            }
        }
        self
    }

    /// Returns this content after elements were changed in place and not flushed.
    pub(crate) fn unflushed(mut self, before: &Content) -> Content {
        for (name, entry) in &mut self.tensors {
            let mut versions = before.tensors[name].elements.clone();
            if versions.last() != entry.elements.last() {
                versions.append(&mut entry.elements);
            }
            entry.elements = versions;
        }
        self
    }
}

impl Entry {
    pub(crate) fn compare(&self, found: &Entry) -> Result<(), String> {
        let header = |entry: &Entry| {
            let stride = entry.stride.clone().filter(|_| self.stride.is_some());
            (entry.dtype, entry.size.clone(), stride, entry.offset.filter(|_| self.offset.is_some()))
        };
        if header(self) != header(found) {
            return Err(format!("header {:?}, and not {:?}", header(found), header(self)));
        }
        let itemsize = self.dtype.itemsize();
        let found = &found.elements[0];
        let is_any = |at: usize| {
            let range = at..at + itemsize;
            self.elements.iter().any(|version| version.get(range.clone()) == found.get(range.clone()))
        };
        match (0..found.len()).step_by(itemsize).find(|&at| !is_any(at)) {
            None if self.elements.iter().all(|version| version.len() == found.len()) => Ok(()),
            None => Err(format!("{} bytes of elements", found.len())),
            Some(at) => Err(format!(
                "element {} is {:02x?}, in none of the {} versions that may be",
                at / itemsize,
                &found[at..at + itemsize],
                self.elements.len()
            )),
        }
    }
}
