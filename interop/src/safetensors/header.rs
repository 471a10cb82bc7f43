//! A streaming reader of the header. The memory for what it keeps is proportional to the text that it reads.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::tensor::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use stridemap_format::limits::MAX_RANK;

use super::METADATA_KEY;
use super::json::Object;

/// A header: an object of tensors, with the attributes under a key of their own. Keys are unique.
#[derive(Default)]
pub(super) struct Header {
    pub(super) tensors: BTreeMap<String, Info>,
    pub(super) attributes: BTreeMap<String, String>,
}

/// The header's entry for a tensor.
#[derive(serde::Deserialize)]
pub(super) struct Info {
    pub(super) dtype: Dtype,
    pub(super) shape: Shape,
    pub(super) data_offsets: (usize, usize),
}

/// Sizes. One more than a tensor may have is kept, so that an error can name the tensor.
pub(super) struct Shape(pub(super) Vec<usize>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Header, A::Error> {
        let (mut header, mut has_attributes) = (Header::default(), false);
        while let Some(key) = entries.next_key::<String>()? {
            let is_taken =
                if key == METADATA_KEY { has_attributes } else { header.tensors.contains_key(&key) };
            if is_taken {
                return Err(A::Error::custom(format_args!("{key:?} appears twice")));
            }
            if key == METADATA_KEY {
                let Object(attributes) = entries.next_value().map_err(|e| at(METADATA_KEY, &e))?;
                (header.attributes, has_attributes) = (attributes, true);
            } else {
                let info = entries.next_value().map_err(|e| at(format_args!("tensor {key:?}"), &e))?;
                header.tensors.insert(key, info);
            }
        }
        Ok(header)
    }
}

/// Returns the same error with its position.
fn at<E: serde::de::Error>(what: impl fmt::Display, error: &E) -> E {
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
        let mut kept = Vec::new();
        while let Some(size) = sizes.next_element()? {
            if kept.len() <= MAX_RANK {
                kept.push(size);
            }
        }
        Ok(Shape(kept))
    }
}
