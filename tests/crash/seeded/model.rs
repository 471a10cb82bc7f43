//! What a store should hold, followed beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap::{DType, Tensor};

use crate::content::{Content, Entry};

/// Of two halves, of which a transaction changes one: so two may be under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) halves: [Half; 2],
}

#[derive(Clone, Debug, Default)]
pub(super) struct Half {
    pub(super) tensors: BTreeMap<String, Known>,
    pub(super) attributes: BTreeMap<String, String>,
    /// Of storages that are changed in place: every version since the last flush.
    pub(super) in_place: BTreeMap<u64, Vec<Vec<u8>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) dtype: DType,
    pub(super) size: Vec<usize>,
    /// Neither is known before the store was read, where elements were packed.
    pub(super) stride: Option<Vec<isize>>,
    pub(super) offset: Option<usize>,
    pub(super) elements: Elements,
    pub(super) grows: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Elements {
    Sealed(Arc<Vec<u8>>),
    /// On a storage that is changed in place.
    InPlace(u64),
}

impl Known {
    pub(super) fn of(tensor: &Tensor, elements: Elements) -> Self {
        Known {
            dtype: tensor.dtype(),
            size: tensor.size().to_vec(),
            stride: Some(tensor.stride().to_vec()),
            offset: Some(tensor.storage_offset()),
            elements,
            grows: false,
        }
    }

    /// Where in its storage each element is, in row-major order, in bytes.
    fn places(&self) -> Vec<usize> {
        let itemsize = self.dtype.itemsize();
        let stride = self.stride.as_ref().unwrap();
        let mut places = vec![self.offset.unwrap() as isize];
        for (&size, &stride) in self.size.iter().zip(stride) {
            places = places.iter().flat_map(|&at| (0..size as isize).map(move |i| at + i * stride)).collect();
        }
        places.into_iter().map(|at| at as usize * itemsize).collect()
    }
}

impl Half {
    fn entry(&self, known: &Known) -> Entry {
        let itemsize = known.dtype.itemsize();
        let elements = match &known.elements {
            Elements::Sealed(bytes) => vec![bytes.to_vec()],
            Elements::InPlace(storage) => {
                let places = known.places();
                let read = |bytes: &Vec<u8>| {
                    places.iter().flat_map(|&at| bytes[at..at + itemsize].to_vec()).collect()
                };
                self.in_place[storage].iter().map(read).collect()
            }
        };
        let (size, stride) = (known.size.clone(), known.stride.clone());
        Entry { dtype: known.dtype, size, stride, offset: known.offset, elements }
    }

    /// Forgets what no name stands on any more.
    pub(super) fn tidy(&mut self) {
        let names: Vec<u64> = self
            .tensors
            .values()
            .filter_map(|known| match known.elements {
                Elements::InPlace(storage) => Some(storage),
                Elements::Sealed(_) => None,
            })
            .collect();
        self.in_place.retain(|storage, _| names.contains(storage));
    }

    /// Elements of a storage that is changed in place: all of a tensor becomes one value. Not flushed.
    pub(super) fn fill(&mut self, name: &str, value: u32) {
        let known = &self.tensors[name];
        let Elements::InPlace(storage) = known.elements else { panic!("{name} is sealed") };
        let (places, versions) = (known.places(), self.in_place.get_mut(&storage).unwrap());
        let mut bytes = versions.last().unwrap().clone();
        places.iter().for_each(|&at| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()));
        versions.push(bytes);
    }

    /// What was written to the storage of a tensor is durable.
    pub(super) fn flushed(&mut self, name: &str) {
        let Elements::InPlace(storage) = self.tensors[name].elements else { panic!("{name} is sealed") };
        let versions = self.in_place.get_mut(&storage).unwrap();
        versions.drain(..versions.len() - 1);
    }

    fn adopt(&mut self, found: &Content) {
        for (name, known) in &mut self.tensors {
            let entry = &found.tensors[name];
            (known.stride, known.offset) = (entry.stride.clone(), entry.offset);
        }
        for (name, known) in &self.tensors {
            let Elements::InPlace(storage) = known.elements else { continue };
            let (itemsize, entry) = (known.dtype.itemsize(), &found.tensors[name].elements[0]);
            let versions = self.in_place.get_mut(&storage).unwrap();
            versions.drain(..versions.len() - 1);
            for (at, element) in known.places().into_iter().zip(entry.chunks(itemsize)) {
                versions[0][at..at + itemsize].copy_from_slice(element);
            }
        }
    }
}

impl Model {
    /// What may be found of it.
    pub(super) fn content(&self) -> Content {
        let mut content = Content::default();
        for half in &self.halves {
            let entries = half.tensors.iter().map(|(name, known)| (name.clone(), half.entry(known)));
            content.tensors.extend(entries);
            content.attributes.extend(half.attributes.clone());
        }
        content
    }

    /// The same with any strides and offsets, of what is sealed: after or in a compaction.
    pub(super) fn relaxed(&self) -> Model {
        let mut relaxed = self.clone();
        for known in relaxed.halves.iter_mut().flat_map(|half| half.tensors.values_mut()) {
            if matches!(known.elements, Elements::Sealed(_)) {
                (known.stride, known.offset) = (None, None);
            }
        }
        relaxed
    }

    /// Takes on what was found, where several things might have been. Nothing of it is unflushed.
    pub(super) fn adopt(&mut self, found: &Content) {
        self.halves.iter_mut().for_each(|half| half.adopt(found));
    }
}
