//! The HTML page: a template, and the data as JSON in a script element.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Write};

use indicatif::{HumanBytes, HumanCount};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::ser::Formatter;
use stridemap::TensorInfo;

use super::elements::Elements;
use super::heat::HeatMap;
use super::rows::{Place, Row};
use crate::input::Input;
use crate::look::sharing::StorageMap;
use crate::look::summary::{Group, Summary};
use crate::names::quoted;
use crate::ui::counted;

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The maximum number of sharing tensors that are written for a tensor.
const MAX_SHARERS: usize = 64;

/// The notes that are warnings, each with the words for one tensor and for several.
const WARNINGS: [(&str, &str, &str); 5] = [
    ("nan", "tensor has NaN", "tensors have NaN"),
    ("infinite", "tensor has infinities", "tensors have infinities"),
    ("zero", "tensor is all zero", "tensors are all zero"),
    ("constant", "tensor has one value throughout", "tensors have one value throughout"),
    (
        "duplicate",
        "tensor is a copy of another, stored in different bytes",
        "tensors are copies of others, stored in different bytes",
    ),
];

/// The data of the page, as it is written.
#[derive(Serialize)]
pub(super) struct Page<'a> {
    name: String,
    path: &'a str,
    kind: String,
    totals: Vec<(&'static str, u64)>,
    warnings: Vec<Warning>,
    notes: Vec<String>,
    dtypes: &'a [Group],
    tensors: Vec<Row<'a>>,
    #[serde(serialize_with = "serialize_heat_maps")]
    heat_maps: &'a [(usize, HeatMap)],
    storages: Vec<Value>,
    attributes: Vec<(String, String, String)>,
}

#[derive(Serialize)]
struct Warning {
    text: String,
    /// The note of the tensors that the warning is about.
    note: Option<&'static str>,
}

impl<'a> Page<'a> {
    pub(super) fn new(
        input: &'a Input,
        summary: &'a Summary,
        infos: &'a [TensorInfo],
        maps: &'a [StorageMap],
        elements: &'a Elements,
    ) -> Self {
        let positions: HashMap<&str, usize> = infos.iter().map(|info| &*info.name).zip(0..).collect();
        let mut places = HashMap::new();
        for (storage, map) in maps.iter().enumerate() {
            for tensor in &map.tensors {
                let position = |&other: &usize| positions.get(&*map.tensors.get(other)?.info.name).copied();
                let sharers = tensor.sharers.iter().take(MAX_SHARERS).filter_map(position).collect();
                places.insert(&*tensor.info.name, Place { storage, tensor, sharers });
            }
        }
        let dtype =
            |info: &TensorInfo| summary.dtypes.iter().position(|it| it.name == info.header.dtype().name());
        let row = |(index, info): (usize, &'a TensorInfo)| Row {
            info,
            dtype: dtype(info).unwrap_or_default(),
            place: places.remove(&*info.name),
            statistics: elements.statistics.get(index).and_then(Option::as_ref),
            is_duplicate: elements.duplicates.contains_key(&index),
        };
        let tensors: Vec<Row<'a>> = infos.iter().enumerate().map(row).collect();
        let path = input.path();
        let attributes = input.attributes().into_owned();
        let warnings = warnings(summary, &tensors, maps);
        Page {
            name: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            path: &summary.path,
            kind: match summary.generation {
                Some(generation) => format!("Store, generation {generation}"),
                None => format!("{} file", input.format()),
            },
            totals: totals(summary),
            warnings,
            notes: notes(infos, elements),
            dtypes: &summary.dtypes,
            tensors,
            heat_maps: &elements.heat_maps,
            storages: maps.iter().map(|map| map.record(input)).collect(),
            attributes: attributes.into_iter().map(|((scope, key), value)| (scope, key, value)).collect(),
        }
    }

    /// Writes the page. Its script and style have a random nonce, and nothing else in it can run or load.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let nonce = format!("{:016x}", RandomState::new().build_hasher().finish());
        // Inserted text is not searched for further placeholders.
        let mut rest = TEMPLATE;
        while let Some((before, (part, after))) =
            rest.split_once("{{").and_then(|(before, rest)| Some((before, rest.split_once("}}")?)))
        {
            out.write_all(before.as_bytes())?;
            match part {
                "nonce" => out.write_all(nonce.as_bytes())?,
                "style" => out.write_all(STYLE.as_bytes())?,
                "script" => out.write_all(SCRIPT.as_bytes())?,
                _ => self.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, Escaped))?,
            }
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }
}

fn totals(summary: &Summary) -> Vec<(&'static str, u64)> {
    let numel = summary.totals_without_views.numel;
    let mut totals = vec![("Tensors", summary.tensor_count), ("Parameters", numel)];
    if numel != summary.numel {
        totals.push(("Parameters with views", summary.numel));
    }
    totals.extend([
        ("Bytes of elements", summary.logical_size_bytes),
        ("Bytes stored", summary.stored_size_bytes),
        ("Storages", summary.storage_count),
    ]);
    totals
}

fn warnings(summary: &Summary, tensors: &[Row<'_>], maps: &[StorageMap]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let notes: Vec<Vec<&str>> = tensors.iter().map(Row::notes).collect();
    for (note, one, many) in WARNINGS {
        let mut noted = tensors.iter().zip(&notes).filter(|(_, notes)| notes.contains(&note));
        let Some((first, _)) = noted.next() else { continue };
        let text = match noted.count() {
            0 => format!("1 {one}: {}", quoted(&first.info.name)),
            more => format!("{} {many}, such as {}", HumanCount(more as u64 + 1), quoted(&first.info.name)),
        };
        warnings.push(Warning { text, note: Some(note) });
    }
    let unreachable = maps.iter().map(|map| map.usage.unreachable_bytes).fold(0, u64::saturating_add);
    if unreachable > 0 {
        let text = format!("{} of the storages are in no tensor", HumanBytes(unreachable));
        warnings.push(Warning { text, note: None });
    }
    warnings.extend(summary.warnings.iter().map(|text| Warning { text: text.clone(), note: None }));
    warnings
}

/// Says what the page leaves out.
fn notes(infos: &[TensorInfo], elements: &Elements) -> Vec<String> {
    let mut notes = Vec::new();
    if elements.unread_count > 0 {
        let tensors = counted(elements.unread_count as u64, "tensor");
        notes.push(format!("The elements of {tensors} were not read: see --max-read."));
    }
    if elements.is_search_limited {
        notes.push("Not all tensors were compared with possible copies: --max-read or the search for shared bytes ended before.".to_owned());
    }
    if let Some((index, why)) = elements.failed.first()
        && let Some(TensorInfo { name, .. }) = infos.get(*index)
    {
        let tensors = counted(elements.failed.len() as u64, "tensor");
        notes.push(format!("{tensors} could not be read, such as {}: {why}.", quoted(name)));
    }
    if !elements.heat_maps.is_empty() && elements.heat_maps.len() < infos.len() {
        let count = HumanCount(elements.heat_maps.len() as u64);
        notes.push(format!("Heat maps are drawn for {count} of the largest tensors."));
    }
    notes
}

fn serialize_heat_maps<S: Serializer>(maps: &[(usize, HeatMap)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(maps.iter().map(|(index, map)| (index, map)))
}

/// Writes JSON that can stand in a script element: `<`, `>`, `&` and the line separators of Unicode are escaped.
struct Escaped;

impl Formatter for Escaped {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let special = |c: char| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|&(_, c)| special(c)) {
            write!(out, "{}\\u{:04x}", &rest[..at], u32::from(c))?;
            rest = &rest[at + c.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_character_that_is_special_in_html() {
        let text = "</script><!-- & \u{2028}\u{2029} \" é";
        let mut json = Vec::new();
        text.serialize(&mut serde_json::Serializer::with_formatter(&mut json, Escaped)).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert!(!json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn template_has_every_part() {
        for part in ["{{nonce}}", "{{style}}", "{{script}}", "{{data}}"] {
            assert!(TEMPLATE.contains(part), "{part}");
        }
        assert!(!SCRIPT.contains("</script") && !STYLE.contains("</style"));
    }
}
