//! Values whose keys, joined by dots, are the same name.

use super::flatten::Leaves;

/// Which list a leaf is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Tensor,
    Attribute,
    Bytes,
}

/// A leaf, by the list and the index in it.
type Place = (Kind, usize);

/// The name of a leaf with a backslash before each dot that is in a key.
#[derive(Debug)]
pub(super) struct LongName {
    pub(super) kind: Kind,
    /// The index in the list of its kind.
    pub(super) index: usize,
    pub(super) name: String,
}

/// Gives leaves that have one name their long names. If several still have one name, removes all but one of them, and
/// returns the name of each.
pub(super) fn tell_apart(leaves: &mut Leaves, long_names: &[LongName]) -> Vec<String> {
    let ambiguous = repeated(leaves, 0);
    if ambiguous.is_empty() {
        return Vec::new();
    }
    for LongName { kind, index, name: long_name } in long_names {
        let is_ambiguous = ambiguous.binary_search(&(*kind, *index)).is_ok();
        if let Some(name) = name_mut(leaves, (*kind, *index)).filter(|_| is_ambiguous) {
            name.clone_from(long_name);
        }
    }
    let rest = repeated(leaves, 1);
    let is_kept = |place| rest.binary_search(&place).is_err();
    let mut names = Vec::new();
    for &place in &rest {
        names.extend(name_mut(leaves, place).map(std::mem::take));
    }
    retain(&mut leaves.tensors, |index| is_kept((Kind::Tensor, index)));
    retain(&mut leaves.attributes, |index| is_kept((Kind::Attribute, index)));
    retain(&mut leaves.bytes, |index| is_kept((Kind::Bytes, index)));
    names
}

/// Keeps the items whose indices `is_kept` accepts.
fn retain<T>(items: &mut Vec<T>, is_kept: impl Fn(usize) -> bool) {
    let mut indices = 0..;
    items.retain(|_| indices.next().is_some_and(&is_kept));
}

/// Returns the leaves that have the name of another, in order, except for the first `first_count` of each name.
fn repeated(leaves: &Leaves, first_count: usize) -> Vec<Place> {
    let tensors = leaves.tensors.iter().map(|tensor| tensor.name.as_str()).enumerate();
    let attributes = leaves.attributes.iter().map(|(name, _)| name.as_str()).enumerate();
    let bytes = leaves.bytes.iter().map(|leaf| leaf.name.as_str()).enumerate();
    let places = tensors.map(|(index, name)| (name, (Kind::Tensor, index)));
    let places = places.chain(attributes.map(|(index, name)| (name, (Kind::Attribute, index))));
    let places = places.chain(bytes.map(|(index, name)| (name, (Kind::Bytes, index))));
    let mut places: Vec<(&str, Place)> = places.collect();
    places.sort_unstable();
    let same = places.chunk_by(|(a, _), (b, _)| a == b).filter(|same| same.len() > 1);
    let mut repeated: Vec<Place> =
        same.flat_map(|same| same.iter().skip(first_count)).map(|&(_, place)| place).collect();
    repeated.sort_unstable();
    repeated
}

fn name_mut(leaves: &mut Leaves, (kind, index): Place) -> Option<&mut String> {
    match kind {
        Kind::Tensor => leaves.tensors.get_mut(index).map(|tensor| &mut tensor.name),
        Kind::Attribute => leaves.attributes.get_mut(index).map(|(name, _)| name),
        Kind::Bytes => leaves.bytes.get_mut(index).map(|leaf| &mut leaf.name),
    }
}
