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

/// Returns what the function of the script offers for a line, as bash calls it: `words` are the words into which bash
/// divides the line.
#[track_caller]
fn offered(dir: &Dir, line: &str) -> Vec<String> {
    let script = format!(
        "source <(stridemap completions bash)\nCOMP_LINE={}; COMP_POINT=${{#COMP_LINE}}; _stridemap\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted(line)
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
    let store = dir.store();
    for name in ["it's", "dense:0", "dense:1", "a=b"] {
        store.save(name, &1i32).unwrap();
    }
    fs::create_dir(dir.path("two words")).unwrap();
    fs::rename(dir.path("s.smap"), dir.path("two words/t.smap")).unwrap();
    let copied =
        Command::new("cp").args(["-r", "two words/t.smap", "s.smap"]).current_dir(dir.path("")).status();
    assert!(copied.unwrap().success());
    dir.write_safetensors(
        "m.safetensors",
        r#"{"w.x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
        &[0],
    );
    dir
}

#[test]
fn bash_completes_commands_options_paths_and_names() {
    let dir = dir();
    for (line, expected) in [
        ("stridemap ver", &["verify"][..]),
        ("stridemap info --fu", &["--full"]),
        ("stridemap --color al", &["always"]),
        ("stridemap ls s.", &["s.smap/"]),
        ("stridemap show s.smap po", &["points", "points_t"]),
        ("stridemap show s.smap points_", &["points_t"]),
        ("stridemap rm s.smap odd", &["odd [name]"]),
        ("stridemap rm s.smap points od", &["odd [name]"]),
        (r"stridemap rm s.smap odd\ \[", &["odd [name]"]),
        ("stridemap rm s.smap 'odd [", &["odd [name]"]),
        ("stridemap rm s.smap it", &["it's"]),
        ("stridemap show s.smap dense:", &["0", "1"]),
        ("stridemap show s.smap 'dense:", &["dense:0", "dense:1"]),
        ("stridemap show s.smap a=", &["b"]),
        ("stridemap export s.smap x.npy points_", &["points_t"]),
        ("stridemap mv s.smap points_", &["points_t"]),
        ("stridemap append s.smap points_", &["points_t"]),
        ("stridemap attr get s.smap format --of points_", &["points_t"]),
        ("stridemap show m.safetensors w", &["w.x"]),
        ("stridemap import m.safetensors --skip w", &["w.x"]),
        ("stridemap show 'two words/t.smap' points_", &["points_t"]),
        (r"stridemap show two\ words/t.smap points_", &["points_t"]),
        ("stridemap attr get s.smap ", &[]),
        ("stridemap show none.smap po", &[]),
        ("stridemap completions z", &["zsh"]),
    ] {
        assert_eq!(offered(&dir, line), expected, "{line}");
    }
}

#[test]
fn bash_is_not_offered_what_it_would_expand() {
    let dir = Dir::empty();
    let names = [
        "d`./evil`.w",
        "d$(./evil).w",
        "d$HOME",
        "d!ls",
        "~d",
        "d\n",
        "d\u{1b}[0m",
        "d\u{202e}",
        "d*",
        "d[AB]",
        "dA",
    ];
    let store = Store::create(dir.path("s.smap")).unwrap();
    let save = |txn: &mut stridemap::Transaction<'_>| {
        names.iter().try_for_each(|name| txn.save(name, &Tensor::from_vec(vec![0u8], &[1])?))
    };
    store.write(save).unwrap();
    for file in ["dB", "dC"] {
        dir.write(file, b"");
    }
    assert_eq!(offered(&dir, "stridemap rm s.smap d"), ["d*", "dA", "d[AB]"]);
    assert!(offered(&dir, "stridemap rm s.smap d`").is_empty());
    assert!(offered(&dir, r"stridemap rm s.smap \~").is_empty());
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
        "PATH={}:$PATH; PS1=; bind 'set enable-bracketed-paste off'\nsource <(stridemap completions bash)\n\
         stridemap() {{ if [[ -v STRIDEMAP_COMPLETE ]]; then command stridemap \"$@\"; else (printf '<%s>' \"$@\"; echo) >> typed; fi; }}\n",
        Path::new(bin).parent().unwrap().display()
    );
    dir.write("rc", rc.as_bytes());
    let lines = [
        ("stridemap rm s.smap odd\t\n", "<rm><s.smap><odd [name]>"),
        ("stridemap rm s.smap 'odd\t\n", "<rm><s.smap><odd [name]>"),
        ("stridemap rm s.smap \"it\t\n", "<rm><s.smap><it's>"),
        ("stridemap rm s.smap it\t\n", "<rm><s.smap><it's>"),
        ("stridemap show two\t\t points_\t\n", "<show><two words/t.smap/><points_t>"),
        ("stridemap show s.smap dense\t1\n", "<show><s.smap><dense:1>"),
        ("stridemap ver\ts\t\n", "<verify><s.smap/>"),
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
    assert_eq!(offered(&dir, "stridemap show big.smap "), ["layer."]);
    assert_eq!(offered(&dir, "stridemap show big.smap layer.").len(), 100);
    assert_eq!(offered(&dir, "stridemap show big.smap layer.7.w7012"), ["layer.7.w7012"]);
}

#[test]
fn scripts_of_zsh_and_fish_are_valid() {
    let dir = Dir::empty();
    for (program, check) in [("zsh", "zsh -n script"), ("fish", "fish --no-execute script")] {
        dir.write("script", dir.stdout(&["completions", program]).as_bytes());
        assert!(!fs::read(dir.path("script")).unwrap().is_empty());
        if has(program) {
            let output = shell(&dir, "sh", &[], check);
            assert!(output.status.success(), "{output:?}");
        }
    }
}

#[test]
fn zsh_and_fish_get_the_same_names() {
    let dir = dir();
    for (program, store, name) in
        [("zsh", "s.smap", "odd"), ("zsh", r"two\ words/t.smap", r"odd\ \["), ("fish", "s.smap", "odd")]
    {
        let mut command = dir.command(&["--", "stridemap", "rm", store, name]);
        command.env("STRIDEMAP_COMPLETE", program).env("_CLAP_COMPLETE_INDEX", "3").env("_CLAP_IFS", "\n");
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "odd [name]", "{program}");
    }
}

#[test]
fn man_pages_have_the_text_of_the_help() {
    let dir = Dir::empty();
    let page = dir.stdout(&["man"]);
    assert!(page.contains(".TH stridemap 1") && page.contains("stridemap\\-import(1)"), "{page}");
    let page = dir.stdout(&["man", "import"]);
    assert!(
        page.contains("Copy the tensors of files into a store") && page.contains("\\-\\-rename"),
        "{page}"
    );
    assert_eq!(
        dir.refusal(&["man", "imprt"]),
        "man: no command is named \"imprt\"; stridemap --help lists them"
    );
    fs::create_dir(dir.path("man1")).unwrap();
    dir.stdout(&["man", "--dir", "man1"]);
    let help = dir.stdout(&["--help"]);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let names = commands.lines().take_while(|line| line.starts_with("  "));
    let mut count = 0;
    for name in
        names.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next())
    {
        if name != "help" {
            assert_eq!(
                fs::read_to_string(dir.path(format!("man1/stridemap-{name}.1"))).unwrap(),
                dir.stdout(&["man", name])
            );
            count += 1;
        }
    }
    assert!(count >= 20, "{count}");
    dir.stdout(&["man", "--dir", "new/man1"]);
    assert!(dir.path("new/man1/stridemap.1").exists());
    let below_a_file = "new/man1/stridemap.1/man1";
    assert!(dir.refusal(&["man", "--dir", below_a_file]).starts_with(&format!("man --dir {below_a_file}: ")));
}
