//! `restore`: commits the headers of an earlier generation again.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use stridemap::{ErrorKind, Snapshot};

use crate::args::{DryRun, External};
use crate::at::snapshot_at;
use crate::error::{Error, Result};
use crate::input::open_store;
use crate::names::{command_line, name, of_scope, one_line, quoted, shell_word};
use crate::plan::{begin, header, info};
use crate::remote::note_unpullable;
use crate::ui::{examples, gap, message};
use crate::undo::{Before, Replaced};

/// Go back to a tagged generation, with all tensors or some, in one commit
///
/// Each name gets the header that it has in the tagged generation, and no element is copied. Names that the tagged
/// generation does not have are removed, and attributes are restored, too. With a PREFIX, only names that begin with it
/// are changed. Tags stay as they are.
///
/// If a tensor that would be restored was imported in place, and its file is missing or was changed, restore refuses, also
/// with --force; files that --external does not allow are not looked at. If no tag keeps the elements that this would remove or replace, restore refuses: --tag tags the present state in
/// the same commit, and --force restores anyway.
///
/// With -n, each line shows a tensor that would be added (+), changed (~) or removed (-), or an attribute (@).
#[derive(clap::Args)]
#[command(after_help = examples(&["restore model.smap v1 -n", "restore model.smap v1 encoder. --tag before"]))]
pub(crate) struct RestoreArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The tag to restore, or the number of a generation that is kept
    #[arg(value_name = "TAG")]
    at: String,
    /// Only the tensors whose names begin with this, and their attributes; without it, also the attributes of the store
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    before: Before,
    /// Restore even if elements are lost because no tag keeps them
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    external: External,
}

pub(crate) fn run(args: &RestoreArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&args.external.options(), &args.store)?;
    let from = snapshot_at(&store, &args.at)?;
    let prefix = name(&args.prefix, &from)?;
    let (mut txn, now) = begin(&store, args.dry_run.dry_run)?;
    args.before.apply(&mut txn)?;
    txn.restore(&from, &prefix).map_err(|e| match e.kind() {
        ErrorKind::NameNotFound => {
            let at = format!("{}@{}", args.store.to_string_lossy(), args.at);
            let advice = command_line("ls", &[&at]);
            let tag = shell_word(&args.at);
            Error::NoMatch(format!(
                "restore: no name of {tag} begins with {prefix:?}; {advice} lists the names"
            ))
        }
        _ => e.into(),
    })?;
    let changes = Changes::between(&now, &from, &prefix)?;
    let whole = if prefix.is_empty() { String::new() } else { format!("{} of ", quoted(&prefix)) };
    let what = format!("{whole}{}, generation {}", shell_word(&args.at), from.generation());
    if changes.is_empty() {
        message(&format!("nothing to restore: the store has {what} already"));
        return Ok(());
    }
    let replaced: BTreeSet<String> = changes.changed.iter().chain(&changes.removed).cloned().collect();
    let replaced = Replaced::of(&replaced, &now)?.unless_in(&from, &prefix)?;
    let refusal =
        if args.force || args.before.tag.is_some() { None } else { replaced.refusal(&store, &now)? };
    if args.dry_run.dry_run {
        changes.print(&now, &from, out)?;
    }
    if let Some(why) = refusal {
        return Err(Error::Refused(format!("restore {}: {why}", shell_word(&args.at))));
    }
    if args.dry_run.dry_run {
        writeln!(out, "would restore {what}: {}", changes.counts())?;
        replaced.print_advice(&args.before, &store, &args.store, out)?;
        note_unpullable(&args.store);
        return Ok(());
    }
    drop(now); // The commit deletes what no snapshot needs.
    let generation = txn.commit()?;
    let tagged = args.before.described(generation);
    message(&format!("restored {what}: {}{tagged}: generation {generation}", changes.counts()));
    replaced.report(&store, &args.store);
    note_unpullable(&args.store);
    Ok(())
}

/// What a restore changes.
struct Changes {
    added: Vec<String>,
    changed: Vec<String>,
    removed: Vec<String>,
    /// The scopes and keys of attributes.
    attributes: Vec<(String, String)>,
}

impl Changes {
    fn between(now: &Snapshot, from: &Snapshot, prefix: &str) -> Result<Self> {
        let changes = from.changes_since(now)?;
        let within = |names: Vec<String>| -> Vec<String> {
            names.into_iter().filter(|name| name.starts_with(prefix)).collect()
        };
        let (before, after) = (now.all_attributes(), from.all_attributes());
        let keys: BTreeSet<&(String, String)> = before.keys().chain(after.keys()).collect();
        let is_changed =
            |at: &&(String, String)| at.0.starts_with(prefix) && before.get(*at) != after.get(*at);
        Ok(Changes {
            added: within(changes.added),
            changed: within(changes.changed),
            removed: within(changes.removed),
            attributes: keys.into_iter().filter(is_changed).cloned().collect(),
        })
    }

    fn is_empty(&self) -> bool {
        self.added.is_empty()
            && self.changed.is_empty()
            && self.removed.is_empty()
            && self.attributes.is_empty()
    }

    fn counts(&self) -> String {
        let counts = [
            (self.added.len(), "added"),
            (self.changed.len(), "changed"),
            (self.removed.len(), "removed"),
            (self.attributes.len(), "of the attributes"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        counts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    }

    fn print(&self, now: &Snapshot, from: &Snapshot, out: &mut impl Write) -> Result<()> {
        for (mark, names, snapshot) in
            [('+', &self.added, from), ('~', &self.changed, from), ('-', &self.removed, now)]
        {
            for name in names {
                let header = info(snapshot, name)?.map(|info| header(&info)).unwrap_or_default();
                writeln!(out, "{mark} {}{}{header}", quoted(name), gap())?;
            }
        }
        for (scope, key) in &self.attributes {
            writeln!(out, "@ {}{}", one_line(key), of_scope(scope))?;
        }
        Ok(())
    }
}
