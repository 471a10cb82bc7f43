//! The README's shell session, on the real model.
//!
//! `STRIDEMAP_MODEL` is the path of `silero_vad_16k.safetensors`; without it the session is skipped, and that is printed.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

const README: &str = include_str!("../../../README.md");
const MODEL: &str = "silero_vad_16k.safetensors";

/// Commands and what they print, standard error included.
fn session() -> Vec<(&'static str, String)> {
    let (_, rest) = README.split_once("```console\n").unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    let mut steps: Vec<(&str, String)> = Vec::new();
    for line in block.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => steps.push((command, String::new())),
            None => steps.last_mut().unwrap().1 += &format!("{line}\n"),
        }
    }
    steps
}

#[test]
fn readme_session_prints_what_the_readme_says() {
    let steps = session();
    assert!(steps.len() > 8, "{steps:?}");
    let Some(model) = env::var_os("STRIDEMAP_MODEL") else {
        println!("skipped: STRIDEMAP_MODEL does not say where {MODEL} is");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    fs::copy(model, dir.path().join(MODEL)).unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_stridemap")).parent().unwrap();
    let path =
        env::join_paths([bin.into()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap())));
    for (command, expected) in steps {
        let output = Command::new("sh")
            .args(["-c", &format!("{command} 2>&1")])
            .current_dir(dir.path())
            .env("PATH", path.as_ref().unwrap())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{command}");
        assert!(output.status.success(), "{command}");
    }
}

#[test]
fn readme_lists_every_command() {
    let output = Command::new(env!("CARGO_BIN_EXE_stridemap")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|line| line.starts_with("  "));
    let mut commands: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    commands.retain(|command| *command != "help");
    commands.sort_unstable();
    let (_, listed) = README.split_once("The commands are ").unwrap();
    let (listed, _) = listed.split_once(';').unwrap();
    let mut listed: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
    listed.sort_unstable();
    assert_eq!(listed, commands);
}
