//! A streaming reader of the header. The memory for what it keeps is proportional to the text that it reads.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::tensor::Dtype;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use stridemap_format::limits::MAX_RANK;

use super::METADATA_KEY;
use super::json::{FromEntries, Object};

/// A header: an object of tensors by name, in the order of the text, and attributes under a reserved key. The caller
/// checks that the names are unique: a list takes less memory than a map.
#[derive(Default)]
pub(super) struct FileHeader {
    pub(super) tensors: Vec<(String, Info)>,
    pub(super) attributes: Option<BTreeMap<String, String>>,
}

/// The header's entry for a tensor.
#[derive(serde::Deserialize)]
pub(super) struct Info {
    pub(super) dtype: Dtype,
    pub(super) shape: Shape,
    pub(super) data_offsets: (usize, usize),
}

/// The sizes of a tensor. At most one size more than the maximum rank is kept, which is enough for a later check to
/// refuse the tensor by name.
pub(super) struct Shape(pub(super) Vec<usize>);

impl<'de> FromEntries<'de> for FileHeader {
    fn has(&self, key: &str) -> bool {
        key == METADATA_KEY && self.attributes.is_some()
    }

    fn add<A: MapAccess<'de>>(&mut self, key: String, entries: &mut A) -> Result<(), A::Error> {
        if key == METADATA_KEY {
            let found: Option<Object<_>> = entries.next_value().map_err(|e| with_entry(METADATA_KEY, &e))?;
            self.attributes = Some(found.map(|Object(attributes)| attributes).unwrap_or_default());
        } else {
            let info = entries.next_value().map_err(|e| with_entry(format_args!("tensor {key:?}"), &e))?;
            self.tensors.push((key, info));
        }
        Ok(())
    }
}

/// Prefixes the message of an error with the entry in which it occurred.
fn with_entry<E: serde::de::Error>(what: impl fmt::Display, error: &E) -> E {
    E::custom(format_args!("{what}: {error}"))
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Sizes)
    }
}

struct Sizes;

impl<'de> Visitor<'de> for Sizes {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Shape, A::Error> {
        let mut kept: Vec<usize> = Vec::new();
        while let Some(size) = sizes.next_element()? {
            if kept.len() <= MAX_RANK {
                kept.push(size);
            }
        }
        Ok(Shape(kept))
    }
}
