//! The values of a pickle as a tree: what is in a dict, list, tuple or object, and under which keys.

use std::{iter, slice};

use super::global::Global;
use super::literal::Literal;
use super::value::{Arena, Node, Value};

/// The maximum nesting of dicts, lists and tuples.
pub(super) const MAX_DEPTH: usize = 100;

/// The key of a value in a container.
pub(super) enum Key {
    Index(usize),
    Value(Value),
}

/// Returns whether a value contains others.
pub(super) fn is_container(arena: &Arena<'_>, value: Value) -> bool {
    matches!(arena.node(value), Some(Node::Dict(_) | Node::List(_) | Node::Tuple(..) | Node::Object(_)))
}

/// Returns whether a value is an object of a class that is not known here.
pub(super) fn is_unknown_object(arena: &Arena<'_>, value: Value) -> bool {
    let namespace = Value::Global(Global::Namespace);
    matches!(arena.node(value), Some(Node::Object(object)) if object.class != namespace)
}

/// Returns the values in a container, with their keys. In an object, these are its items and its attributes.
pub(super) fn entries<'a>(arena: &'a Arena<'_>, container: Value) -> impl Iterator<Item = (Key, Value)> + 'a {
    let parts = match arena.node(container) {
        Some(Node::Object(object)) => object.parts.as_slice(),
        _ => &[],
    };
    let own = Some(container).filter(|_| parts.is_empty());
    let states = parts.iter().flat_map(|part| match arena.tuple(*part) {
        None => slice::from_ref(part),
        // An object with slots has a tuple of two dicts as its state.
        Some(states @ [_, _]) if states.iter().all(|&state| is_dict_or_none(arena, state)) => states,
        // Any other tuple has a meaning that only the class knows, such as the shape of an array.
        Some(_) => &[],
    });
    let states = states.copied();
    own.into_iter().chain(states).flat_map(|part| entries_of(arena, part))
}

fn is_dict_or_none(arena: &Arena<'_>, value: Value) -> bool {
    matches!((value, arena.node(value)), (Value::None, _) | (_, Some(Node::Dict(_))))
}

/// Returns how much of the limit on visits a value takes: one, and one for each part of an object. A part can be without
/// entries, and an object with such parts can be in many places.
pub(super) fn visits(arena: &Arena<'_>, value: Value) -> usize {
    let parts = match arena.node(value) {
        Some(Node::Object(object)) => object.parts.as_slice(),
        _ => &[],
    };
    let counts =
        parts.iter().map(|&part| arena.tuple(part).map_or(1, |states| states.len().saturating_add(1)));
    counts.fold(1, usize::saturating_add)
}

fn entries_of<'a>(arena: &'a Arena<'_>, part: Value) -> Box<dyn Iterator<Item = (Key, Value)> + 'a> {
    match arena.node(part) {
        Some(Node::Dict(items)) => {
            Box::new(items.as_chunks().0.iter().map(|&[key, value]| (Key::Value(key), value)))
        }
        Some(Node::List(items)) => Box::new(indexed(items)),
        Some(Node::Tuple(..)) => Box::new(indexed(arena.tuple(part).unwrap_or_default())),
        _ => Box::new(iter::empty()),
    }
}

fn indexed(items: &[Value]) -> impl Iterator<Item = (Key, Value)> {
    items.iter().enumerate().map(|(index, &value)| (Key::Index(index), value))
}

/// Returns a key as part of a name. If it cannot be part of one, returns what it is.
pub(super) fn key_text(arena: &Arena<'_>, key: &Key) -> Result<String, &'static str> {
    let key = match *key {
        Key::Index(index) => return Ok(index.to_string()),
        Key::Value(key) => key,
    };
    let named = match key {
        Value::None => Some("None".to_owned()),
        Value::Bool(value) => Some(if value { "True" } else { "False" }.to_owned()),
        _ => arena.literal(key).as_ref().and_then(Literal::key),
    };
    named.ok_or_else(|| if matches!(key, Value::Literal(_)) { "bytes" } else { arena.kind(key) })
}

/// Returns a plain value as the text of an attribute, or `None` for any other value.
pub(super) fn plain_text(arena: &Arena<'_>, value: Value) -> Option<String> {
    match (value, arena.node(value)) {
        (Value::None, _) => Some("null".to_owned()),
        (Value::Bool(value), _) => Some(value.to_string()),
        (Value::Global(Global::DType(dtype)), _) => Some(dtype.name().to_owned()),
        (_, Some(&Node::Size(sizes))) => Some(format!("[{}]", joined(arena, sizes, ","))),
        (_, Some(&Node::Device(parts))) => Some(joined(arena, parts, ":")),
        _ => arena.literal(value).as_ref().and_then(Literal::attribute),
    }
}

fn joined(arena: &Arena<'_>, tuple: Value, separator: &str) -> String {
    let items = arena.tuple(tuple).unwrap_or_default();
    let mut text = String::new();
    for (index, &item) in items.iter().enumerate() {
        text.push_str(if index > 0 { separator } else { "" });
        text.push_str(&arena.literal(item).as_ref().and_then(Literal::attribute).unwrap_or_default());
    }
    text
}
