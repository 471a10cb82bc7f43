//! The sizes and strides of tensors.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec;

/// The number of dimensions that are kept without an allocation. Few tensors have more.
const INLINE_CAPACITY: usize = 4;

/// A size or a stride for each dimension of a tensor.
#[derive(Clone, PartialEq, Eq)]
pub struct Dims<T>(Repr<T>);

#[derive(Clone, PartialEq, Eq)]
enum Repr<T> {
    /// The first `count` values.
    Inline {
        count: u8,
        values: [T; INLINE_CAPACITY],
    },
    Heap(Box<[T]>),
}

impl<T> Deref for Dims<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Repr::Inline { count, values } => values.get(..usize::from(*count)).unwrap_or_default(),
            Repr::Heap(values) => values,
        }
    }
}

impl<T> DerefMut for Dims<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Repr::Inline { count, values } => values.get_mut(..usize::from(*count)).unwrap_or_default(),
            Repr::Heap(values) => values,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Dims<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Serialize> Serialize for Dims<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de> + Copy + Default> Deserialize<'de> for Dims<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        codec::dimensions(deserializer)
    }
}

impl<T: Copy + Default> FromIterator<T> for Dims<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        // Fused, because an iterator that ended with an error must not be asked again.
        let mut rest = values.into_iter().fuse();
        let (mut count, mut few) = (0u8, [T::default(); INLINE_CAPACITY]);
        for (place, value) in few.iter_mut().zip(&mut rest) {
            *place = value;
            count = count.saturating_add(1);
        }
        match rest.next() {
            None => Dims(Repr::Inline { count, values: few }),
            Some(next) => Dims(Repr::Heap(few.into_iter().chain([next]).chain(rest).collect())),
        }
    }
}

impl<T: Copy + Default> From<Vec<T>> for Dims<T> {
    fn from(values: Vec<T>) -> Self {
        values.into_iter().collect()
    }
}

impl<T: Copy + Default> From<&[T]> for Dims<T> {
    fn from(values: &[T]) -> Self {
        values.iter().copied().collect()
    }
}

impl<T: Copy + Default, const RANK: usize> From<[T; RANK]> for Dims<T> {
    fn from(values: [T; RANK]) -> Self {
        values.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_values_is_kept() {
        for count in 0..=2 * INLINE_CAPACITY {
            let values: Vec<u64> = (1..).take(count).collect();
            let dims: Dims<u64> = values.clone().into();
            assert_eq!(*dims, *values);
            assert_eq!(dims, dims.iter().copied().collect());
        }
    }
}
