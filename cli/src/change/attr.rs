//! `attr`: reads and changes attributes.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stridemap::StoreOptions;

use crate::args::{DryRun, Reading};
use crate::error::{Error, Result};
use crate::input::{Input, open_store};
use crate::names::{Named, name, of_scope, one_line, quoted};
use crate::plan::begin;
use crate::ui::{Column, Table, examples, joined, message, width, write_json};
use crate::undo::Before;

/// List, print, set or remove attributes: texts under keys
///
/// An attribute belongs to the store, or with --of to a tensor or to a prefix of names, such as 'encoder.'.
/// info --all also prints all attributes.
#[derive(clap::Args)]
#[command(after_help = examples(&["attr set model.smap license MIT", "attr set model.smap unit m --of depth", "attr get model.smap unit --of depth"]))]
pub(crate) struct AttrArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List all attributes of the store, its tensors and prefixes: the key, the value, and what the attribute
    /// belongs to
    #[command(visible_alias = "ls")]
    List {
        /// The store, its URL, a tagged generation (STORE@TAG, URL@TAG), or a file in another format
        store: PathBuf,
        /// Print one JSON object per attribute
        #[arg(long)]
        json: bool,
    },
    /// Print the value of an attribute; exit with 1 if there is none
    #[command(mut_arg("store", |store| store.help("The store, its URL, a tagged generation (STORE@TAG, URL@TAG), or a file in another format")))]
    Get(Place),
    /// Set an attribute; an existing value is replaced
    Set {
        #[command(flatten)]
        place: Place,
        /// The value
        #[arg(index = 3)]
        value: String,
        #[command(flatten)]
        before: Before,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Remove an attribute; exit with 1 if there is none
    Rm {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        before: Before,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(clap::Args)]
struct Place {
    // The positions are explicit because `get` describes the store differently, which moves its argument to the end.
    /// The store
    #[arg(index = 1)]
    store: PathBuf,
    /// The key
    #[arg(index = 2)]
    key: String,
    /// The tensor or the prefix that the attribute belongs to
    #[arg(long, value_name = "NAME|PREFIX")]
    of: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Place {
    /// Returns the tensor or prefix, which is empty for the store itself.
    fn scope(&self, tensors: &impl Named) -> Result<String> {
        self.of.as_ref().map_or_else(|| Ok(String::new()), |of| name(of, tensors))
    }

    /// Formats the key and what it belongs to.
    fn shown(&self, scope: &str) -> String {
        format!("{}{}", one_line(&self.key), of_scope(scope))
    }

    /// Returns the value, or the error that there is none.
    fn value(&self, attributes: &BTreeMap<(String, String), String>, scope: &str) -> Result<String> {
        let missing = || Error::NoMatch(format!("no attribute {}", self.shown(scope)));
        attributes.get(&(scope.to_owned(), self.key.clone())).cloned().ok_or_else(missing)
    }
}

const COLUMNS: [Column; 3] = [
    Column::new("key").shortenable(),
    Column::new("value").shortenable(),
    Column::new("of").shortenable().drop_order(0),
];

/// Opens a store or a file to look at its attributes.
fn open(path: &Path) -> Result<Input> {
    Input::open_quietly(path, &Reading::default(), &StoreOptions::new())
}

fn list(store: &Path, is_json: bool, out: &mut impl Write) -> Result<()> {
    let mut table = Table::new(&COLUMNS);
    let input = open(store)?;
    for ((scope, key), value) in input.attributes().iter() {
        if is_json {
            write_json(out, record(scope, key, Some(value)))?;
            continue;
        }
        table.add_row([key, value, scope].map(|text| one_line(text)));
    }
    table.print_data(out)
}

/// Returns an attribute as JSON. The scope of an attribute of the store itself is null.
fn record(scope: &str, key: &str, value: Option<&str>) -> Value {
    json!({ "scope": Some(scope).filter(|scope| !scope.is_empty()), "key": key, "value": value })
}

/// Returns a change of an attribute as JSON: the new value, or null if it is removed, and the old one.
fn change_record(
    place: &Place,
    scope: &str,
    values: [Option<&str>; 2],
    done: (&Before, Option<u64>),
) -> Value {
    let ([value, previous], (before, generation)) = (values, done);
    let more = json!({ "previous": previous, "is_dry_run": generation.is_none(), "generation": generation,
        "tag": before.tag });
    joined(record(scope, &place.key, value), more)
}

pub(crate) fn run(args: &AttrArgs, out: &mut impl Write) -> Result<()> {
    match &args.action {
        Action::List { store, json } => list(store, *json, out),
        Action::Get(place) => {
            let input = open(&place.store)?;
            let scope = place.scope(&input)?;
            let value = place.value(&input.attributes(), &scope)?;
            if place.json {
                return write_json(out, record(&scope, &place.key, Some(&value)));
            }
            // A terminal would execute control characters.
            Ok(writeln!(out, "{}", if width().is_some() { one_line(&value) } else { value })?)
        }
        Action::Set { place, value, before, dry_run } => {
            let store = open_store(&StoreOptions::new(), &place.store)?;
            let (mut txn, snapshot) = begin(&store, dry_run.dry_run)?;
            before.apply(&mut txn)?;
            let scope = place.scope(&snapshot)?;
            txn.set_attribute(&scope, &place.key, value)?;
            let old = place.value(snapshot.all_attributes(), &scope).ok();
            let change = |generation| {
                change_record(place, &scope, [Some(value), old.as_deref()], (before, generation))
            };
            if dry_run.dry_run {
                if place.json {
                    return write_json(out, change(None));
                }
                let replacing = old.as_ref().map(|old| format!(", replacing {}", one_line(old)));
                let replacing = replacing.unwrap_or_default();
                let (shown, value) = (place.shown(&scope), one_line(value));
                return Ok(writeln!(out, "would set {shown} to {value}{replacing}")?);
            }
            let is_unused = snapshot.iter_tensors(&scope)?.next().is_none() && !scope.is_empty();
            drop(snapshot); // The commit deletes what no snapshot needs.
            let generation = txn.commit()?;
            if place.json {
                write_json(out, change(Some(generation)))?;
            }
            before.report(&format!("set {}", place.shown(&scope)), generation);
            if is_unused {
                message(&format!("note: no tensor name begins with {}", quoted(&scope)));
            }
            Ok(())
        }
        Action::Rm { place, before, dry_run } => {
            let store = open_store(&StoreOptions::new(), &place.store)?;
            let (mut txn, snapshot) = begin(&store, dry_run.dry_run)?;
            before.apply(&mut txn)?;
            let scope = place.scope(&snapshot)?;
            let old = place.value(snapshot.all_attributes(), &scope)?;
            txn.remove_attribute(&scope, &place.key)?;
            let change = |generation| change_record(place, &scope, [None, Some(&old)], (before, generation));
            if dry_run.dry_run {
                if place.json {
                    return write_json(out, change(None));
                }
                return Ok(writeln!(out, "would remove {}", place.shown(&scope))?);
            }
            drop(snapshot); // The commit deletes what no snapshot needs.
            let generation = txn.commit()?;
            if place.json {
                write_json(out, change(Some(generation)))?;
            }
            before.report(&format!("removed {}", place.shown(&scope)), generation);
            Ok(())
        }
    }
}
