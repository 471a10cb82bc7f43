//! Reads the metadata of a file.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::ops::Range;

use stridemap::{DType, Header, Result};

use super::limits::{MAX_ALIGNMENT, is_alignment};
use super::read::{Opening, TENSOR_BYTES};
use super::reader::Reader;
use super::types::{Shape, ValueType};
use super::value::{Encoded, JSON, to_attribute};
use super::{ALIGNMENT_KEY, VALUE_TYPE_PREFIX};
use crate::contents::{ATTRIBUTE_BYTES, ForeignTensor};
use crate::foreign_storage::ForeignStorage;

/// The maximum number of values of an array that is an attribute, and the maximum number of their bytes.
const MAX_LIST: u64 = 1024;
const MAX_LIST_BYTES: u64 = 16 << 10;

/// The approximate memory that a value takes while all are fitted into a store, besides its key and text.
const VALUE_BYTES: usize = 2 * ATTRIBUTE_BYTES;

/// A value of the metadata: an attribute with its type, a range of the file, or why it cannot be read.
enum Read {
    Attribute(String, Option<&'static str>),
    Bytes(Range<u64>, &'static str),
    Bad(String),
}

impl Opening<'_> {
    /// Reads a value of the metadata, with its key.
    pub(super) fn read_value(&mut self) -> Result<()> {
        let key = self.text(4)?;
        self.charge(VALUE_BYTES)?;
        let of = self.reader.value_type()?;
        let (key, problem) = match key {
            Ok(key) if key.starts_with(VALUE_TYPE_PREFIX) => {
                (key, Some("stridemap keeps the types of values under such keys"))
            }
            Ok(key) => (key, None),
            Err(key) => (key, Some("the key is not UTF-8")),
        };
        let is_new = !self.keys.contains(&key) && !self.contents.attributes.contains_key(&key);
        if !is_new {
            return Err(self.file.bad(format!("the metadata have {key:?} twice")));
        }
        if key == ALIGNMENT_KEY && of != ValueType::U32 {
            return Err(self.file.bad(format!("{ALIGNMENT_KEY} is not of the type uint32")));
        }
        let read = match of {
            ValueType::Text => self.read_text()?,
            ValueType::Array => self.read_list()?,
            of => {
                let bytes = self.reader.check("a value", Some(of.size_bytes().unwrap_or(0) as u64))?;
                let bytes = self.reader.bytes(bytes)?;
                if key == ALIGNMENT_KEY {
                    self.set_alignment(&bytes)?;
                }
                self.attribute(Shape::One(of), &bytes)?
            }
        };
        let read = match (problem, read) {
            (Some(what), _) => Read::Bad(what.to_owned()),
            (None, read) => read,
        };
        match read {
            Read::Attribute(text, None) => drop(self.contents.attributes.insert(key, text)),
            Read::Attribute(text, Some(type_name)) => {
                let type_key = format!("{VALUE_TYPE_PREFIX}{key}");
                self.charge(type_key.len().saturating_mul(4).saturating_add(VALUE_BYTES))?;
                self.contents.attributes.insert(type_key, type_name.to_owned());
                self.contents.attributes.insert(key, text);
            }
            Read::Bytes(range, gguf_type) => {
                self.charge(TENSOR_BYTES)?;
                self.keys.insert(key.clone());
                self.contents.too_long.push(key.clone());
                let length_bytes = range.end.saturating_sub(range.start);
                let storage = ForeignStorage::of_range(self.file, range.start, length_bytes);
                let header = Header::contiguous(DType::U8, &[length_bytes as usize]);
                let header = header.map_err(|e| self.file.bad(format!("{key:?}: {e}")))?;
                let tensor = ForeignTensor::new(key, header, self.contents.storages.len());
                self.contents.tensors.push(tensor.of_type(gguf_type));
                self.contents.storages.push(storage);
            }
            Read::Bad(what) => {
                self.keys.insert(key.clone());
                let reason = self.file.bad(format!("the value of {key:?} in the metadata: {what}"));
                self.contents.skip(self.options, key, reason)?;
            }
        }
        Ok(())
    }

    fn read_text(&mut self) -> Result<Read> {
        Ok(match self.text(2)? {
            // What begins like JSON is not taken for it when it is written.
            Ok(text) if text.starts_with(JSON) => {
                Read::Attribute(text, Some(Shape::One(ValueType::Text).name()))
            }
            Ok(text) => Read::Attribute(text, None),
            Err(_) => Read::Bad("the text is not UTF-8".to_owned()),
        })
    }

    fn read_list(&mut self) -> Result<Read> {
        let (of, count) = (self.reader.value_type()?, self.reader.u64()?);
        let range = self.reader.skip_values(of, count, 0)?;
        let length_bytes = range.end.saturating_sub(range.start);
        if of == ValueType::Array || count > MAX_LIST || length_bytes > MAX_LIST_BYTES {
            return Ok(Read::Bytes(range, Shape::List(of).name()));
        }
        let bytes = Reader::new(self.file, range.start).bytes(length_bytes)?;
        self.attribute(Shape::List(of), &bytes)
    }

    /// Converts a value to an attribute, and notes its type if that does not follow from the attribute.
    fn attribute(&mut self, shape: Shape, bytes: &[u8]) -> Result<Read> {
        let text = match to_attribute(shape, bytes) {
            Ok(text) => text,
            Err(what) => return Ok(Read::Bad(what)),
        };
        self.charge(text.len())?;
        let is_assumed = Encoded::of(&text, None).shape == shape;
        Ok(Read::Attribute(text, (!is_assumed).then(|| shape.name())))
    }

    fn set_alignment(&mut self, bytes: &[u8]) -> Result<()> {
        let stated = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if !is_alignment(u64::from(stated)) {
            let what =
                format!("{ALIGNMENT_KEY} is {stated}, and must be a power of two, at most {MAX_ALIGNMENT}");
            return Err(self.file.bad(what));
        }
        self.alignment = u64::from(stated);
        Ok(())
    }
}
