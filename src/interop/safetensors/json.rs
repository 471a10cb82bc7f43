//! JSON that is trusted with nothing: no key stands twice.

use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::error::Result;
use crate::interop::file::RawFile;

pub(super) fn parse<'a, T: Deserialize<'a>>(
    file: &RawFile,
    what: impl fmt::Display,
    json: &'a [u8],
) -> Result<T> {
    serde_json::from_slice(json).map_err(|e| file.bad(format!("{what}: {e}")).with_source(e))
}

/// A JSON object in which no key stands twice.
pub(super) struct Object<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Object<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Object<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut object = BTreeMap::new();
                while let Some((key, value)) = entries.next_entry::<String, V>()? {
                    match object.entry(key) {
                        Entry::Vacant(place) => place.insert(value),
                        Entry::Occupied(taken) => {
                            return Err(A::Error::custom(format!("{:?} stands twice", taken.key())));
                        }
                    };
                }
                Ok(Object(object))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}
