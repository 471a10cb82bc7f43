//! The documents: sessions print the output they show, links resolve, and lists are complete.
//!
//! The `console` blocks of a document are one session. The sessions of the guide run in one directory, which holds the
//! files of `write_inputs`. With `STRIDEMAP_BLESS=1`, the actual output replaces the output in the documents. Times in the
//! output are replaced by `TIME`, and the directory by `/data`. The sessions of the README and of the page about history need
//! `silero_vad_16k.safetensors`, whose path is in `STRIDEMAP_MODEL`, and the latter also PyTorch, because it trains the
//! model. Without these, the sessions are skipped, and a message says so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::harness::Dir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const MODEL: &str = "silero_vad_16k.safetensors";
/// The page whose session trains the model, with the Python script in it.
const HISTORY: &str = "history.md";
const TIME: &str = "2026-01-31 12:00:00";

fn read(document: &Path) -> String {
    fs::read_to_string(document).unwrap()
}

/// Returns the Markdown files of the repository.
fn documents() -> Vec<PathBuf> {
    files(".md")
}

/// The files of the repository whose names end so.
fn files(ending: &str) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![fs::canonicalize(ROOT).unwrap()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_built = name == "target" || name.starts_with('.');
            if path.is_dir() && !is_built {
                dirs.push(path);
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the pages of the guide.
fn pages() -> Vec<PathBuf> {
    let mut pages = documents();
    pages.retain(|path| path.parent().unwrap().ends_with("docs") && !path.ends_with("SUMMARY.md"));
    assert!(pages.len() >= 10, "{pages:?}");
    pages
}

/// Writes the input files of the sessions: the same as those of `docs/inputs.py`, without Python.
fn write_inputs(dir: &Dir) {
    let bytes = |elements: &[f32]| elements.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    dir.write_npy("points.npy", "<f4", "(3, 2)", &bytes(&[1., 4., 2., 1., 3., 5.]));
    dir.write_npy("more.npy", "<f4", "(2, 2)", &bytes(&[6., 2., 7., 0.]));
    dir.write_npy("matrix.npy", "<f4", "(1000, 1000)", &bytes(&[1.; 1_000_000]));
    let header = r#"{"encoder.bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "encoder.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]}}"#;
    let elements = bytes(&[0.5, 0.25, 1., 2., 3., 4., 5., 6.]);
    dir.write_safetensors("model.safetensors", header, &elements);
    fs::copy(format!("{ROOT}/interop/tests/data/pt/nested_zip.pt"), dir.path("checkpoint.pt")).unwrap();
    let expert = |n: u8| (format!("layers.{}.experts.{}.up", n / 12, n % 12), f32::from(n));
    let mut experts: Vec<(String, f32)> = (0..24).map(expert).collect();
    experts.sort_by(|(a, _), (b, _)| a.cmp(b));
    let entries: Vec<String> = (experts.iter().zip(0..))
        .map(|((name, _), i)| {
            let offsets = [24 * i, 24 * i + 24];
            format!(r#""{name}":{{"dtype":"F32","shape":[2,3],"data_offsets":{offsets:?}}}"#)
        })
        .collect();
    let elements: Vec<f32> = experts.iter().flat_map(|(_, value)| [*value; 6]).collect();
    dir.write_safetensors("experts.safetensors", &format!("{{{}}}", entries.join(",")), &bytes(&elements));

    // A sparse file of 4 GiB.
    let bytes = 4u64 << 30;
    let header = format!(r#"{{"rows":{{"dtype":"F32","shape":[1048576,1024],"data_offsets":[0,{bytes}]}}}}"#);
    dir.write_safetensors("big.safetensors", &header, &[]);
    let file = fs::File::options().write(true).open(dir.path("big.safetensors")).unwrap();
    file.set_len(8 + header.len() as u64 + bytes).unwrap();
}

/// Runs the commands of a document, and returns the document with their actual output.
fn played(text: &str, dir: &Dir) -> String {
    let bin = Path::new(env!("CARGO_BIN_EXE_stridemap")).parent().unwrap();
    let inherited = env::var_os("PATH").unwrap();
    let path = env::join_paths([bin.into()].into_iter().chain(env::split_paths(&inherited))).unwrap();
    let here = dir.path("");
    let here = here.to_str().unwrap();
    let mut blocks = text.split("```console\n");
    let mut played = blocks.next().unwrap().to_owned();
    for block in blocks {
        let (session, rest) = block.split_once("```").unwrap();
        played += "```console\n";
        for command in session.lines().filter_map(|line| line.strip_prefix("$ ")) {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec 2>&1\n{command}")]).current_dir(dir.path("")).env("PATH", &path);
            // As on a terminal of this width. One thread is faster for a small model, if other tests run.
            shell.env("STRIDEMAP_COLUMNS", "100").env("OMP_NUM_THREADS", "1");
            let output = String::from_utf8(shell.output().unwrap().stdout).unwrap();
            let output = output.replace(here, "/data/");
            played += &format!("$ {command}\n{}", with_fixed_times(&output));
        }
        played += &format!("```{rest}");
    }
    played
}

/// Replaces times such as [`TIME`].
fn with_fixed_times(text: &str) -> String {
    let (mut fixed, mut rest) = (String::new(), text);
    let is_time = |text: &str| {
        text.chars()
            .zip(TIME.chars())
            .all(|(c, t)| if t.is_ascii_digit() { c.is_ascii_digit() } else { c == t })
    };
    while let Some(c) = rest.chars().next() {
        let is_here = rest.len() >= TIME.len() && is_time(rest);
        let length = if is_here { TIME.len() } else { c.len_utf8() };
        let (start, end) = rest.split_at(length);
        fixed += if is_here { TIME } else { start };
        rest = end;
    }
    fixed
}

#[track_caller]
fn assert_session(document: &Path, dir: &Dir) {
    let text = read(document);
    let played = played(&text, dir);
    if env::var_os("STRIDEMAP_BLESS").is_some() {
        fs::write(document, played).unwrap();
        return;
    }
    let is_same = |(shown, actual): &(&str, &str)| shown == actual;
    let same = text.lines().zip(played.lines()).take_while(is_same).count();
    let next = |text: &str| text.lines().skip(same).take(5).collect::<Vec<_>>().join("\n");
    let (shown, actual) = (next(&text), next(&played));
    assert!(text == played, "{}:{}, shown:\n{shown}\nactual:\n{actual}", document.display(), same + 1);
}

/// Returns a directory with the real model, or `None` if its path is not known.
fn with_model() -> Option<Dir> {
    let Some(model) = env::var_os("STRIDEMAP_MODEL") else {
        println!("skipped: STRIDEMAP_MODEL is not the path of {MODEL}");
        return None;
    };
    let dir = Dir::empty();
    fs::copy(model, dir.path(MODEL)).unwrap();
    Some(dir)
}

/// Whether python3 is there, and has a module.
fn has_python_with(module: &str) -> bool {
    // Importing PyTorch takes seconds.
    let code = format!("import importlib.util; assert importlib.util.find_spec({module:?})");
    Command::new("python3").args(["-c", &code]).output().is_ok_and(|output| output.status.success())
}

#[test]
fn readme_session_prints_the_shown_output() {
    let Some(dir) = with_model() else { return };
    assert_session(&Path::new(ROOT).join("README.md"), &dir);
}

/// Skipped, with the reason printed, where python3 has no PyTorch; `STRIDEMAP_REQUIRE_TORCH` makes that a failure.
#[test]
fn history_session_prints_the_shown_output() {
    let Some(dir) = with_model() else { return };
    if !(has_python_with("torch") && has_python_with("safetensors")) {
        println!("skipped: python3 with torch and safetensors is not there");
        assert!(env::var_os("STRIDEMAP_REQUIRE_TORCH").is_none(), "python3 with torch is required");
        return;
    }
    let page = Path::new(ROOT).join("docs").join(HISTORY);
    let text = read(&page);
    let (_, script) = text.split_once("```python\n").unwrap();
    fs::write(dir.path("finetune.py"), script.split_once("```").unwrap().0).unwrap();
    assert_session(&page, &dir);
}

#[test]
fn sessions_of_the_guide_print_the_shown_output() {
    let mut session_count = 0;
    // One directory for all pages: the guide says that their stores have different names.
    let dir = Dir::empty();
    write_inputs(&dir);
    for page in pages() {
        if read(&page).contains("```console\n") && !page.ends_with(HISTORY) {
            assert_session(&page, &dir);
            session_count += 1;
        }
    }
    assert!(session_count >= 7, "{session_count}");
}

/// Skipped, with the reason printed, where python3 or numpy is missing; `STRIDEMAP_REQUIRE_PYTHON` makes that a
/// failure.
#[test]
fn script_of_the_guide_makes_the_files_of_the_sessions() {
    if !has_python_with("numpy") {
        println!("skipped: python3 with numpy is not there");
        assert!(env::var_os("STRIDEMAP_REQUIRE_PYTHON").is_none(), "python3 with numpy is required");
        return;
    }
    let dir = Dir::empty();
    write_inputs(&dir);
    fs::create_dir(dir.path("made")).unwrap();
    let mut python = Command::new("python3");
    python.args(["-B", &format!("{ROOT}/docs/inputs.py")]).current_dir(dir.path("made"));
    assert!(python.status().unwrap().success());
    let made = fs::read_dir(dir.path("made")).unwrap();
    let names: Vec<String> = made.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 7, "{names:?}");
    for name in names {
        let depth = if name == "big.safetensors" { "--no-values" } else { "--strict" };
        let said = dir.stdout(&["diff", &name, &format!("made/{name}"), depth]);
        assert!(said.starts_with("equal: "), "{name}: {said}");
    }
}

#[test]
fn rust_examples_of_every_page_are_doctests() {
    let examples = read(&Path::new(ROOT).join("src/tests.rs"));
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(examples.contains(&format!(r#"include_str!("../docs/{name}")"#)), "{name}");
    }
}

#[test]
fn summary_lists_every_page() {
    let summary = Path::new(ROOT).join("docs/SUMMARY.md");
    let listed: BTreeSet<String> = links(&read(&summary)).into_iter().collect();
    let pages: BTreeSet<String> =
        pages().iter().map(|page| page.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(listed, pages);
}

#[test]
fn cli_page_lists_every_command() {
    let help = Dir::empty().on_terminal(100, &["--help"]);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let names = commands.lines().take_while(|line| line.starts_with("  ") && !line.starts_with("   "));
    let mut commands: BTreeSet<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    commands.remove("help");
    let page = read(&Path::new(ROOT).join("docs/cli.md"));
    let (_, table) = page.split_once("\n| command |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let listed: BTreeSet<&str> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    assert_eq!(listed, commands);
}

/// Returns a document without its code blocks.
fn without_code_blocks(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Returns the targets of a document's links.
fn links(text: &str) -> Vec<String> {
    let prose: String = without_code_blocks(text).split('`').step_by(2).collect();
    let rests = prose.split("](").skip(1);
    rests.map(|rest| rest.split_once(')').unwrap().0.to_owned()).collect()
}

/// Returns the anchors of a document's headings, as GitHub and mdBook generate them.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = without_code_blocks(text);
    let headings = prose.lines().filter_map(|line| line.strip_prefix('#'));
    let titles = headings.map(|heading| heading.trim_start_matches('#').trim().to_lowercase());
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    titles.map(|title| title.chars().filter(is_kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn every_link_of_every_document_resolves() {
    let (mut link_count, mut broken) = (0, Vec::new());
    for document in documents() {
        for link in links(&read(&document)) {
            if link.starts_with("https://") {
                continue;
            }
            link_count += 1;
            let (file, anchor) = link.split_once('#').map_or((link.as_str(), None), |(f, a)| (f, Some(a)));
            let target =
                if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            if !target.exists() || anchor.is_some_and(|anchor| !anchors(&read(&target)).contains(anchor)) {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(link_count >= 40, "{link_count}");
}

#[test]
fn methods_that_documents_name_exist() {
    let is_source = |path: &&PathBuf| path.components().any(|part| part.as_os_str() == "src");
    let sources: String = files(".rs").iter().filter(is_source).map(|path| read(path)).collect();
    let (mut method_count, mut missing) = (0, Vec::new());
    for document in documents() {
        let prose = without_code_blocks(&read(&document));
        for code in prose.split('`').skip(1).step_by(2) {
            let Some((owner, rest)) = code.split_once("::") else { continue };
            let method = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            if !owner.starts_with(char::is_uppercase) || !method.starts_with(char::is_lowercase) {
                continue;
            }
            method_count += 1;
            if !["(", "<"].iter().any(|next| sources.contains(&format!("fn {method}{next}"))) {
                missing.push(format!("{}: {code}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(method_count >= 20, "{method_count}");
}
