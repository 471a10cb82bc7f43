//! `import`: copies or adopts files in other formats into a store, in one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use serde_json::{Value, json};
use stridemap::{ErrorKind, ExternalFiles, Snapshot, Store, TensorInfo, Transaction};
use stridemap_format::limits::MAX_ATTRIBUTES_BYTES;
use stridemap_format::{check_attributes, check_text};
use stridemap_interop::{FileFormat, ForeignFile, Imported};

use super::fuse::Fused;
use super::plan::{described, header, info};
use super::select::{Kept, Selection};
use super::stdin::{self, Piped};
use super::target::open_existing;
use crate::args::{Existing, External, Reading};
use crate::error::{Error, Result};
use crate::history::{Before, Replaced};
use crate::input::{check_found, check_writable};
use crate::names::{command_line, one_line, quoted, shell_word};
use crate::ui::{advance, counted, examples, is_verbose, joined, message, short_record, write_json};

/// Copy the tensors of files into a store, in one commit
///
/// The files are .safetensors, .npy, .npz, .pt or .gguf. To import a model in several files, name its index, such as
/// model.safetensors.index.json. The metadata of a .safetensors or .gguf file and the plain values of a .pt file
/// become attributes of the store; what is too large for that becomes tensors of bytes. An import that fails or is killed
/// changes nothing, and creates no store. A killed import can leave a .stage-* directory beside the path of the
/// store; that directory can be deleted. With --verbose, a line for each file tells whether it was copied or shares
/// disk blocks with the store.
#[derive(clap::Args)]
#[command(after_help = examples(&["import model.safetensors bias.npy model.smap"]))]
#[command(override_usage = "stridemap import [OPTIONS] <FILE>... <STORE>")]
pub(crate) struct ImportArgs {
    /// Files to import, then the store, which is created if it does not exist. The format is detected from the content;
    /// an unnamed tensor, as in .npy, is named after its file. - is standard input, whose unnamed tensor is "stdin"
    #[arg(required = true, value_name = "FILE... STORE")]
    pub(crate) paths: Vec<PathBuf>,
    /// Save only headers, and leave the elements in the files, which must not change afterwards
    #[arg(long)]
    pub(crate) in_place: bool,
    #[command(flatten)]
    pub(crate) external: External,
    /// Prefix every name with P; the attributes of the files become those of P
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Store the tensors whose names in the store are PATTERN, with a number in the place of {}, one after another in the order
    /// of the numbers: 'experts.{}.up', so that view --stack gives them one name. If there are several {}, the last is this
    /// number. Repeatable
    #[arg(long, value_name = "PATTERN", conflicts_with = "in_place")]
    pub(crate) fuse: Vec<String>,
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    before: Before,
}

impl ImportArgs {
    /// Returns the name that a tensor of a file has in the store.
    fn name_of(&self, tensor: &TensorInfo) -> String {
        format!("{}{}", self.prefix, tensor.name)
    }
}

pub(crate) fn run(args: &ImportArgs, out: &mut impl Write) -> Result<()> {
    // Refuse unsuitable files before the store is created.
    let (target, files) = store_and_files(args)?;
    let mut inputs = open(args, files, stdin::open(files, target)?)?;
    let kept = args.selection.apply(inputs.iter_mut().map(|(_, file)| file))?;
    let tensor_count = check_names(&inputs, &args.prefix)?;
    let attributes = merge_attributes(&kept, &inputs)?;
    inputs.iter().for_each(|(path, file)| note_long_attributes(path, file));
    let texts = attributes.iter().map(|(key, &(_, value))| (args.prefix.as_str(), key.as_str(), value));
    let attributes_bytes = attributes.iter().map(|(key, (_, value))| key.len() + value.len()).sum::<usize>();
    if attributes_bytes > MAX_ATTRIBUTES_BYTES {
        let what = format!("the attributes of the files have {attributes_bytes} bytes");
        let why = format!("{what}, but a store holds at most {MAX_ATTRIBUTES_BYTES}; --only leaves some out");
        return Err(Error::Refused(format!("import: {why}")));
    }
    check_attributes(texts).map_err(|e| Error::Refused(format!("import: {e}")))?;
    let size_bytes = inputs.iter().map(|(_, file)| file.size_bytes()).fold(0, u64::saturating_add);
    if args.in_place {
        check_locations(&inputs, target, args.external.allowed())?;
        inputs.iter().try_for_each(|(_, file)| file.check_adoptable())?;
    }

    let files = inputs.iter().map(|(_, file)| file);
    let fused = Fused::of(&args.fuse, files, |tensor| args.name_of(tensor))?;
    let import = Import { args, target, inputs: &inputs, attributes: &attributes, fused };
    let store = open_existing("import", &args.external.options(), target)?;
    let snapshot = store.as_ref().map(Store::snapshot);
    import.check_existing(snapshot.as_ref())?;
    if let (None, Some(tag)) = (&store, &args.before.tag) {
        let why =
            "there is no store yet whose state could be tagged; to tag what is imported, run this afterwards";
        let advice = command_line("tag", &[&target.to_string_lossy(), tag]);
        return Err(Error::Refused(format!("import --tag {}: {why}: {advice}", shell_word(tag))));
    }
    let replaced = import.replaced(snapshot.as_ref())?;
    let (tensors, size) = (counted(tensor_count, "tensor"), HumanBytes(size_bytes));
    if args.existing.is_dry_run() {
        if let Some(store) = &store {
            check_writable(store)?;
            args.before.apply(&mut store.begin()?)?;
        }
        if args.json {
            return write_json(out, import.record(None));
        }
        let new = if store.is_none() { ", a new store" } else { "" };
        writeln!(out, "would import {tensors}, {size}, into {}{new}", one_line(&target.to_string_lossy()))?;
        import.print_items(snapshot.as_ref(), out)?;
        import.fused.described().try_for_each(|line| writeln!(out, "would fuse {line}"))?;
        let Some(store) = store else { return Ok(()) };
        return replaced.print_advice(&args.before, &store, target, out);
    }
    let is_word = args.prefix.ends_with(|c: char| c.is_alphanumeric());
    if let Some(first) = import.tensors().next().filter(|_| is_word) {
        let name = args.name_of(&first);
        message(&format!("note: --prefix has no dot at its end, so the names are like {}", quoted(&name)));
    }
    let examined = snapshot.map(|snapshot| snapshot.generation());
    let progress = advance("import", if args.in_place { 0 } else { size_bytes });
    let generation = import.commit(store.as_ref(), progress)?;
    let tagged = args.before.described(generation);
    let done = if args.in_place { "adopted" } else { "imported" };
    message(&format!("{done} {tensors}, {size}, into {}{tagged}: generation {generation}", target.display()));
    if args.json {
        write_json(out, import.record(Some(generation)))?;
    }
    match &store {
        Some(store) if examined.is_some_and(|examined| examined + 1 == generation) => {
            replaced.report(store, target);
        }
        Some(store) if args.existing.force => import.report_replaced(store),
        _ => {}
    }
    Ok(())
}

/// Checks the paths. Returns the path of the store, and the paths of the files to import.
fn store_and_files(args: &ImportArgs) -> Result<(&Path, &[PathBuf])> {
    let refused = |why: &str| Err(Error::Refused(format!("import{why}")));
    let (target, files) = match args.paths.split_last() {
        Some((target, files)) if !files.is_empty() => (target, files),
        _ => return refused(": the store is missing\nUsage: stridemap import [OPTIONS] <FILE>... <STORE>"),
    };
    if target.as_os_str() == stdin::PIPE {
        return refused(
            ": the store is missing; - is standard input, and the last path must be that of a store",
        );
    }
    files.iter().try_for_each(|path| check_file(path))?;
    if args.in_place && files.iter().any(|path| path.as_os_str() == stdin::PIPE) {
        return refused(" --in-place -: standard input cannot stay in place; name a file");
    }
    Ok((target, files))
}

/// Opens the files. `piped` is standard input, if that is one of the files. What cannot be read is left out, and
/// refused later unless the options leave it out.
fn open<'a>(args: &ImportArgs, files: &'a [PathBuf], mut piped: Option<Piped>) -> Result<Vec<Input<'a>>> {
    let options = args.reading.options().skip_unreadable(true);
    let open = |path: &'a PathBuf| {
        let file = match piped.take_if(|_| path.as_os_str() == stdin::PIPE) {
            Some(piped) => piped.open(options)?,
            None => options.open(path)?,
        };
        Ok((path.as_path(), file))
    };
    files.iter().map(open).collect()
}

/// Files to import, after they have been checked.
struct Import<'a> {
    args: &'a ImportArgs,
    target: &'a Path,
    inputs: &'a [Input<'a>],
    attributes: &'a Merged<'a>,
    fused: Fused<'a>,
}

impl Import<'_> {
    fn tensors(&self) -> impl Iterator<Item = TensorInfo> {
        self.inputs.iter().flat_map(|(_, file)| file.tensors())
    }

    /// Returns what is imported as JSON. There is no generation yet in a dry run.
    fn record(&self, generation: Option<u64>) -> Value {
        let (mut tensors, mut nbytes) = (Vec::new(), 0u64);
        for (path, file) in self.inputs {
            for info in file.tensors() {
                let record = short_record(&self.args.name_of(&info), &info.header);
                tensors.push(joined(record, json!({ "file": path.to_string_lossy() })));
                nbytes = nbytes.saturating_add(info.header.nbytes() as u64);
            }
        }
        let attributes: Vec<&String> = self.attributes.keys().collect();
        json!({ "is_dry_run": self.args.existing.is_dry_run(), "generation": generation,
            "tag": self.args.before.tag, "tensor_count": tensors.len(), "nbytes": nbytes, "tensors": tensors,
            "attributes": attributes })
    }

    /// Refuses to replace tensors of the store, unless `--force` is given.
    fn check_existing(&self, snapshot: Option<&Snapshot>) -> Result<()> {
        let Some(snapshot) = snapshot.filter(|_| !self.args.existing.force) else { return Ok(()) };
        let names = self.tensors().map(|info| self.args.name_of(&info));
        let found = names.map(|name| info(snapshot, &name)).filter_map(Result::transpose);
        let found: Vec<TensorInfo> = found.collect::<stridemap::Result<_>>()?;
        let Some(first) = found.first() else { return Ok(()) };
        let (others, they) = match found.len() - 1 {
            0 => (String::new(), "it"),
            count => (format!(", and so do {count} more of the names to import"), "them"),
        };
        let (store, header) = (self.target.display(), header(first));
        let what = format!("{:?} exists in {store}, {header}{others}", first.name);
        Err(Error::Refused(format!("import: {what}; --force replaces {they}")))
    }

    /// Returns the tensors of the store that have names of imported ones.
    fn replaced(&self, snapshot: Option<&Snapshot>) -> Result<Replaced> {
        let Some(snapshot) = snapshot.filter(|_| self.args.existing.force) else {
            return Ok(Replaced::default());
        };
        let names: BTreeSet<String> = self.tensors().map(|info| self.args.name_of(&info)).collect();
        Replaced::of(&names, snapshot)
    }

    /// Says how to get back what was replaced, if other processes have committed since that was examined.
    fn report_replaced(&self, store: &Store) {
        let before = &self.args.before;
        let found = before.tag.as_ref().map(|tag| self.replaced(Some(&store.at(tag.as_str())?)));
        match found {
            Some(Ok(replaced)) => replaced.report(store, self.target),
            _ => message(
                "note: another process has committed meanwhile, so what was replaced is not known; --tag NAME tags the \
                 state before a change",
            ),
        }
    }

    /// Prints the tensors that would be imported, and those that they would replace.
    fn print_items(&self, snapshot: Option<&Snapshot>, out: &mut impl Write) -> Result<()> {
        for tensor in self.tensors() {
            let name = self.args.name_of(&tensor);
            let there = snapshot.map(|snapshot| info(snapshot, &name)).transpose()?.flatten();
            let replacing = there.map_or_else(String::new, |there| format!(", replacing {}", header(&there)));
            writeln!(out, "  {}{replacing}", described(&name, &tensor))?;
        }
        Ok(())
    }

    /// Imports all files in one commit, and creates the store if there is none. Returns the new generation.
    fn commit(&self, store: Option<&Store>, progress: impl Fn(u64)) -> Result<u64> {
        let options = self.args.external.options();
        let fill_existing = |store: &Store| {
            let mut txn = store.begin()?;
            self.args.before.apply(&mut txn)?;
            self.fill(&mut txn, || Ok(store.latest()?.attributes(&self.args.prefix)), &progress)?;
            Ok(txn.commit()?)
        };
        if let Some(store) = store {
            return fill_existing(store);
        }
        match options.create_with(self.target, |txn| self.fill(txn, || Ok(BTreeMap::new()), &progress)) {
            Ok(generation) => Ok(generation),
            // Another process may have created the store in the meantime.
            Err(e) => match open_existing("import", &options, self.target) {
                Ok(Some(store)) if e.kind() == ErrorKind::AlreadyExists => {
                    self.check_existing(Some(&store.snapshot()))?;
                    fill_existing(&store)
                }
                _ => Err(e.into()),
            },
        }
    }

    /// Imports all files. `current` returns the attributes that the store has, once the elements are written.
    fn fill(
        &self,
        txn: &mut Transaction<'_>,
        current: impl FnOnce() -> stridemap::Result<BTreeMap<String, String>>,
        mut progress: impl FnMut(u64),
    ) -> stridemap::Result<()> {
        let args = self.args;
        txn.on_existing(args.existing.policy());
        self.fused.import_into(txn, &mut progress)?;
        self.fused.described().filter(|_| is_verbose()).for_each(|line| message(&format!("fused {line}")));
        for (path, file) in self.inputs {
            let outcome = if args.in_place {
                file.adopt_into(txn, &args.prefix)?;
                "left in place".to_owned()
            } else {
                let is_selected = |name: &str| !self.fused.contains(name);
                describe(file.import_some_into(txn, &args.prefix, is_selected, &mut progress)?)
            };
            if is_verbose() {
                message(&format!("{}: {outcome}", path.display()));
            }
        }
        let owner = match args.prefix.as_str() {
            "" => "the store".to_owned(),
            prefix => format!("{prefix:?}"),
        };
        let current = if self.attributes.is_empty() { BTreeMap::new() } else { current()? };
        for (key, &(path, value)) in self.attributes {
            let differs = current.get(key).is_some_and(|current| current != value);
            let path = path.display();
            if differs && !args.existing.force {
                message(&format!("note: {owner} keeps its own {key:?}, not that of {path}, without --force"));
                continue;
            }
            if differs {
                message(&format!("note: the {key:?} of {path} replaces that of {owner}"));
            }
            txn.set_attribute(&args.prefix, key, value)?;
        }
        Ok(())
    }
}

fn describe(imported: Imported) -> String {
    let Imported { copied_bytes, shared_bytes, .. } = imported;
    let copied = format!("copied {}", HumanBytes(copied_bytes));
    let shared = format!("shared with the store: {}, no block copied", HumanBytes(shared_bytes));
    match (copied_bytes, shared_bytes) {
        (_, 0) => copied,
        (0, _) => shared,
        _ => format!("{shared}; {copied}"),
    }
}

/// Refuses a missing or empty file, and a directory, for which it suggests a path to give instead.
fn check_file(path: &Path) -> Result<()> {
    if path.as_os_str() == stdin::PIPE {
        return Ok(());
    }
    if !path.is_dir() {
        return check_found(path, "file");
    }
    let indexes = ["model.safetensors.index.json", "pytorch_model.bin.index.json"];
    let index = indexes.iter().map(|name| path.join(name)).find(|index| index.is_file());
    let what = match index {
        _ if path.join("FORMAT").is_file() => "a store; name it last, after the files to import".to_owned(),
        Some(index) => format!("a directory; name the index of the model in it, {}", index.display()),
        None => "a directory; name the files in it".to_owned(),
    };
    Err(Error::at("import", path, what))
}

/// Refuses files that the store could not open in place. The store may not exist yet, so this compares paths. The
/// library checks the files again when it opens them.
fn check_locations(inputs: &[Input<'_>], target: &Path, allowed: ExternalFiles) -> Result<()> {
    match allowed {
        ExternalFiles::Anywhere => return Ok(()),
        ExternalFiles::Refuse => {
            let why = "import --in-place: with --external none, no command could read the elements";
            return Err(Error::Refused(why.to_owned()));
        }
        _ => {}
    }
    let holder = match fs::canonicalize(target) {
        Ok(store) => store.parent().map(Path::to_path_buf),
        Err(_) => fs::canonicalize(Path::new(".").join(target).parent().unwrap_or(Path::new("."))).ok(),
    };
    // The tensors of a sharded model are in its shards, not in the index.
    let shards = |file: &ForeignFile| file.storages().map(|storage| storage.file).collect::<BTreeSet<_>>();
    for path in inputs.iter().flat_map(|(_, file)| shards(file)) {
        let is_beside = fs::canonicalize(&path)
            .is_ok_and(|place| holder.as_ref().is_some_and(|holder| place.starts_with(holder)));
        if !is_beside {
            let why = format!(
                "the file is not in the directory that contains {}; --external anywhere allows that, for this command \
                 and every command that reads its elements",
                target.display()
            );
            return Err(Error::at("import --in-place", &path, why));
        }
    }
    Ok(())
}

/// A file to import: the path as given, and the open file.
type Input<'a> = (&'a Path, ForeignFile);

/// Refuses an invalid name, and a name that is in two files, because one tensor would silently replace the other.
/// Returns the number of tensors.
fn check_names(inputs: &[Input<'_>], prefix: &str) -> Result<u64> {
    let mut owners = BTreeMap::new();
    for (path, file) in inputs {
        for tensor in file.tensors() {
            let name = tensor.name;
            let refused = |e| {
                let hint = "; give it another name with --rename, or leave it out with --skip";
                Error::at("import", path, format_args!("{e}{hint}"))
            };
            check_text("name", &format!("{prefix}{name}")).map_err(refused)?;
            if let Some(other) = owners.insert(name.clone(), path) {
                let both = format!("{} and {} both have a tensor {name:?}", other.display(), path.display());
                return Err(Error::Refused(format!("import: {both}; import them separately, with --prefix")));
            }
        }
    }
    Ok(owners.len() as u64)
}

/// Attributes by key, each with the file that it came from.
type Merged<'a> = BTreeMap<String, (&'a Path, &'a str)>;

/// Merges the attributes of the files. If two files disagree, the last one wins and a note is printed. If two values of
/// one file get the same key, they are refused.
fn merge_attributes<'a>(kept: &Kept, inputs: &'a [Input<'_>]) -> Result<Merged<'a>> {
    let mut merged = Merged::new();
    for (path, file) in inputs {
        for (key, value) in file.attributes().iter().filter(|(key, _)| kept.contains(key)) {
            let is_named = file.format() == FileFormat::PyTorch;
            let key = if is_named { kept.new_name(key) } else { key.clone() };
            let earlier = merged.insert(key.clone(), (path, value));
            if let Some((other, _)) = earlier.filter(|&(_, earlier)| earlier != value) {
                if std::ptr::eq(other, *path) {
                    let why = format!(
                        "--rename gives two of its values the name {key:?}; leave one out with --skip"
                    );
                    return Err(Error::at("import", path, why));
                }
                let (other, path) = (other.display(), path.display());
                message(&format!("note: {other} and {path} disagree on {key:?}; the last wins"));
            }
        }
    }
    Ok(merged)
}

/// Says which values of a file become tensors of bytes.
pub(super) fn note_long_attributes(path: &Path, file: &ForeignFile) {
    let names = file.long_attributes();
    let shown: Vec<_> = names.iter().take(3).map(|name| quoted(name)).collect();
    let more = if names.len() > shown.len() { ", ..." } else { "" };
    if shown.is_empty() {
        return;
    }
    message(&format!(
        "note: {}: {} too large for an attribute, and saved as a tensor of bytes: {}{more}",
        path.display(),
        if names.len() == 1 { "1 value is".to_owned() } else { format!("{} values are each", names.len()) },
        shown.join(", ")
    ));
}
