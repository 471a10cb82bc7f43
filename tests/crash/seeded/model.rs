//! A model of the expected content of a store.

use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap::{DType, Tensor};

use crate::content::{Content, Entry};

/// The content in two halves. A transaction changes one of them, so that two can be in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) halves: [Half; 2],
}

#[derive(Clone, Debug, Default)]
pub(super) struct Half {
    pub(super) tensors: BTreeMap<String, Known>,
    pub(super) attributes: BTreeMap<String, String>,
    /// For each storage changed in place, every version since the last flush.
    pub(super) in_place: BTreeMap<u64, Vec<Vec<u8>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) dtype: DType,
    pub(super) size: Vec<usize>,
    /// Unknown until the store is read, if elements were packed.
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

    /// Returns the byte position of each element in its storage, in row-major order.
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

    /// Removes storages without a name.
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

    /// Fills all elements of a tensor in place, without a flush.
    pub(super) fn fill(&mut self, name: &str, value: u32) {
        let known = &self.tensors[name];
        let Elements::InPlace(storage) = known.elements else { panic!("{name} is sealed") };
        let (places, versions) = (known.places(), self.in_place.get_mut(&storage).unwrap());
        let mut bytes = versions.last().unwrap().clone();
        places.iter().for_each(|&at| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()));
        versions.push(bytes);
    }

    /// Records that the changes to the storage of a tensor are durable.
    pub(super) fn flushed(&mut self, name: &str) {
        let Elements::InPlace(storage) = self.tensors[name].elements else { panic!("{name} is sealed") };
        let versions = self.in_place.get_mut(&storage).unwrap();
        versions.drain(..versions.len() - 1);
    }

    fn adopt(&mut self, found: &Content, is_durable: bool) {
        for versions in self.in_place.values_mut() {
            match is_durable {
                true => drop(versions.drain(..versions.len() - 1)),
                false => versions.push(versions.last().unwrap().clone()),
            }
        }
        for (name, known) in &mut self.tensors {
            let entry = &found.tensors[name];
            (known.stride, known.offset) = (entry.stride.clone(), entry.offset);
        }
        for (name, known) in &self.tensors {
            let Elements::InPlace(storage) = known.elements else { continue };
            let (itemsize, entry) = (known.dtype.itemsize(), &found.tensors[name].elements[0]);
            let bytes = self.in_place.get_mut(&storage).unwrap().last_mut().unwrap();
            for (at, element) in known.places().into_iter().zip(entry.chunks(itemsize)) {
                bytes[at..at + itemsize].copy_from_slice(element);
            }
        }
    }
}

impl Model {
    /// Returns the content that may be found.
    pub(super) fn content(&self) -> Content {
        let mut content = Content::default();
        for half in &self.halves {
            let entries = half.tensors.iter().map(|(name, known)| (name.clone(), half.entry(known)));
            content.tensors.extend(entries);
            content.attributes.extend(half.attributes.clone());
        }
        content
    }

    /// Returns the same model with unknown strides and offsets for sealed tensors, as during or after a compaction.
    pub(super) fn relaxed(&self) -> Model {
        let mut relaxed = self.clone();
        for known in relaxed.halves.iter_mut().flat_map(|half| half.tensors.values_mut()) {
            if matches!(known.elements, Elements::Sealed(_)) {
                (known.stride, known.offset) = (None, None);
            }
        }
        relaxed
    }

    /// Sets the content to the one that was found, if several were possible: a change in place may have been interrupted. Unless
    /// it is durable, a power cut may still restore what was there before.
    pub(super) fn adopt(&mut self, found: &Content, is_durable: bool) {
        self.halves.iter_mut().for_each(|half| half.adopt(found, is_durable));
    }
}
