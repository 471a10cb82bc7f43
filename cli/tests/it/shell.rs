//! Completions in real shells, and man pages.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use stridemap::{Store, Tensor};

use crate::harness::Dir;

/// Returns whether a program is there. Says so if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {program} is not there");
    }
    found
}

fn shell(dir: &Dir, program: &str, args: &[&str], script: &str) -> Output {
    let bin = Path::new(env!("CARGO_BIN_EXE_stridemap")).parent().unwrap();
    let path = std::env::join_paths(
        [bin.to_path_buf()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let mut shell = Command::new(program);
    shell.args(args).args(["-c", script]).current_dir(dir.path("")).env("PATH", path.unwrap());
    shell.output().unwrap()
}

/// Returns what the function of the script offers for a line, as bash calls it with the words of the line.
#[track_caller]
fn offered(dir: &Dir, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let quotes: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let current = words.len() - 1;
    let script = format!(
        "source <(stridemap generate bash)\nCOMP_WORDS=({}); COMP_CWORD={current}; COMP_TYPE=9\n\
         _clap_complete_stridemap stridemap {} {}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quotes.join(" "),
        quotes[current],
        quotes[current - 1]
    );
    let output = shell(dir, "bash", &["--norc"], &script);
    assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn dir() -> Dir {
    let dir = Dir::with_store();
    dir.write_safetensors(
        "m.safetensors",
        r#"{"w.x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
        &[0],
    );
    for tag in ["v1", "v2", "v`./evil`"] {
        dir.messages(&["tag", "s.smap", tag]);
    }
    dir.messages(&["view", "s.smap", "points", "later"]);
    dir
}

#[test]
fn bash_completes_commands_options_paths_and_names() {
    let dir = dir();
    for (line, expected) in [
        ("stridemap ver", &["verify"][..]),
        ("stridemap info --al", &["--all"]),
        ("stridemap --color al", &["always"]),
        ("stridemap ls s.", &["s.smap/"]),
        ("stridemap show s.smap po", &["points", "points_t"]),
        ("stridemap show s.smap points_", &["points_t"]),
        ("stridemap rm s.smap points points_", &["points_t"]),
        ("stridemap export s.smap x.npy points_", &["points_t"]),
        ("stridemap mv s.smap points_", &["points_t"]),
        ("stridemap append s.smap points_", &["points_t"]),
        ("stridemap attr get s.smap format --of points_", &["points_t"]),
        ("stridemap show m.safetensors w", &["w.x"]),
        ("stridemap import m.safetensors --skip w", &["w.x"]),
        ("stridemap attr get s.smap k", &[]),
        ("stridemap show none.smap po", &[]),
        ("stridemap generate z", &["zsh"]),
        ("stridemap ls s.smap@", &["s.smap@v2", "s.smap@v1"]),
        ("stridemap show s.smap@v1 points_", &["points_t"]),
        ("stridemap diff s.smap@v1 s.smap@v2", &["s.smap@v2"]),
        ("stridemap rm s.smap@", &[]),
        ("stridemap tag -d s.smap v", &["v2", "v1"]),
        ("stridemap tag s.smap new --at v1", &["v1"]),
        ("stridemap restore s.smap v", &["v2", "v1"]),
        ("stridemap restore s.smap v1 points_", &["points_t"]),
        ("stridemap restore s.smap v1 later", &[]),
        ("stridemap rm s.smap later", &["later"]),
        ("stridemap prune s.smap v", &["v2", "v1"]),
        ("stridemap ls s.smap --dtype bf", &["bfloat16"]),
    ] {
        assert_eq!(offered(&dir, line), expected, "{line}");
    }
}

#[test]
fn names_that_a_shell_would_change_or_run_are_not_offered() {
    let dir = Dir::empty();
    let names = [
        "d`./evil`.w",
        "d$(./evil).w",
        "d$HOME",
        "d!ls",
        "d\n",
        "d\u{1b}[0m",
        "d\u{202e}",
        "d*",
        "d[AB]",
        "d w",
        "d;./evil",
        "d'",
        "dA",
        "dé/0.w",
    ];
    let store = Store::create(dir.path("s.smap")).unwrap();
    let save = |txn: &mut stridemap::Transaction<'_>| {
        names.iter().try_for_each(|name| txn.save(name, &Tensor::from_vec(vec![0u8], &[1])?))
    };
    store.write(save).unwrap();
    assert_eq!(offered(&dir, "stridemap rm s.smap d"), ["dA", "dé/0.w"]);
    for name in ["e`.`evil", "e$(x)", "e*", "e f", "eA"] {
        dir.write(name, b"");
    }
    assert_eq!(offered(&dir, "stridemap ls e"), ["eA"]);
}

/// Types a line and a tab in an interactive bash, in which `stridemap` prints its arguments when the line is run.
#[test]
fn completed_name_is_one_argument_in_an_interactive_bash() {
    if !has("script") {
        return;
    }
    let dir = dir();
    let bin = env!("CARGO_BIN_EXE_stridemap");
    let rc = format!(
        "PATH={}:$PATH; PS1=; bind 'set enable-bracketed-paste off'\nsource <(stridemap generate bash)\n\
         stridemap() {{ if [[ -v STRIDEMAP_COMPLETE ]]; then command stridemap \"$@\"; else (printf '<%s>' \"$@\"; echo) >> typed; fi; }}\n",
        Path::new(bin).parent().unwrap().display()
    );
    dir.write("rc", rc.as_bytes());
    let lines = [
        ("stridemap ver\t s\t\n", "<verify><s.smap/>"),
        ("stridemap show s.smap points_\t\n", "<show><s.smap><points_t>"),
        ("stridemap show m.saf\t w\t\n", "<show><m.safetensors><w.x>"),
        ("stridemap info s.smap --al\t\n", "<info><s.smap><--all>"),
        ("stridemap ls s.smap@v1\t po\t_\t\n", "<ls><s.smap@v1><points_t>"),
    ];
    let typed: String = lines.iter().map(|(typed, _)| *typed).collect();
    dir.write("keys", format!("{typed}exit\n").as_bytes());
    // A terminal gets the keys one after the other, as bash reads them.
    let script = "(sleep 1; while IFS= read -r -n 1 -d '' key; do printf '%s' \"$key\"; sleep 0.02; done < keys; \
                  sleep 1) | script --quiet --command 'bash --noprofile --rcfile rc -i' /dev/null";
    let output = shell(&dir, "bash", &["--norc"], script);
    let said = fs::read_to_string(dir.path("typed")).unwrap_or_default();
    let expected: Vec<&str> = lines.iter().map(|(_, expected)| *expected).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{output:?}");
}

#[test]
fn names_of_a_large_store_are_completed_by_module() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("big.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    let x = Tensor::from_vec(vec![0u8], &[1]).unwrap();
    txn.save("layer.0.w", &x).unwrap();
    let saved = txn.load("layer.0.w").unwrap();
    for i in 1..100_000 {
        txn.save_view(&format!("layer.{}.w{}", i / 1000, i), &saved).unwrap();
    }
    txn.commit().unwrap();
    assert_eq!(offered(&dir, "stridemap show big.smap la"), ["layer."]);
    assert_eq!(offered(&dir, "stridemap show big.smap layer.").len(), 100);
    assert_eq!(offered(&dir, "stridemap show big.smap layer.7.w7012"), ["layer.7.w7012"]);
}

#[test]
fn scripts_of_zsh_and_fish_are_valid() {
    let dir = Dir::empty();
    for (program, check) in [("zsh", "zsh -n script"), ("fish", "fish --no-execute script")] {
        dir.write("script", dir.stdout(&["generate", program]).as_bytes());
        assert!(!fs::read(dir.path("script")).unwrap().is_empty());
        if has(program) {
            let output = shell(&dir, "sh", &[], check);
            assert!(output.status.success(), "{output:?}");
        }
    }
}

#[test]
fn zsh_and_fish_get_the_same_candidates() {
    let dir = dir();
    for program in ["zsh", "fish"] {
        for (words, expected) in [
            (&["rm", "s.smap", "points_"][..], "points_t"),
            (&["ls", "s.sm"], "s.smap/"),
            (&["verif"], "verify"),
            (&["show", "m.safetensors", "w"], "w.x"),
            (&["show", "s.smap@v2"], "s.smap@v2"),
        ] {
            let mut command = dir.command(&[&["--", "stridemap"], words].concat());
            let index = words.len().to_string();
            command.env("STRIDEMAP_COMPLETE", program).env("_CLAP_COMPLETE_INDEX", index);
            let output = command.env("_CLAP_IFS", "\n").output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            // A description of a command follows it.
            let candidates: Vec<&str> =
                text.lines().filter_map(|line| line.split(['\t', ':']).next()).collect();
            assert_eq!(candidates, [expected], "{program} {words:?}");
        }
    }
}

#[test]
fn man_pages_have_the_text_of_the_help() {
    let dir = Dir::empty();
    let page = dir.stdout(&["generate", "man"]);
    assert!(page.contains(".TH stridemap 1") && page.contains("stridemap\\-import(1)"), "{page}");
    dir.stdout(&["generate", "man", "new/man1"]);
    assert_eq!(fs::read_to_string(dir.path("new/man1/stridemap.1")).unwrap(), page);
    let import = fs::read_to_string(dir.path("new/man1/stridemap-import.1")).unwrap();
    assert!(
        import.contains("Copy the tensors of files into a store") && import.contains("\\-\\-rename"),
        "{import}"
    );
    let help = dir.stdout(&["--help"]);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|line| line.starts_with("  "));
    let first_lines = lines.filter(|line| !line.starts_with("   "));
    for name in first_lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        assert!(dir.path(format!("new/man1/stridemap-{name}.1")).exists(), "{name}");
    }
    let below_a_file = "new/man1/stridemap.1/man1";
    assert!(
        dir.refusal(&["generate", "man", below_a_file])
            .starts_with(&format!("generate man {below_a_file}: "))
    );
    assert_eq!(
        dir.refusal(&["generate", "bash", "man1"]),
        "generate man1: only man pages are written to a directory"
    );
}
