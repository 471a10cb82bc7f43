//! A terminal, which tmux provides.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, process};

const HEIGHT: &str = "150";

/// Returns whether tmux is installed, or prints that it is not. `STRIDEMAP_REQUIRE_TMUX` makes that a failure.
pub(crate) fn exists() -> bool {
    let exists = Command::new("tmux").arg("-V").output().is_ok();
    if !exists {
        assert!(env::var_os("STRIDEMAP_REQUIRE_TMUX").is_none(), "tmux is required");
        println!("skipped: tmux is not installed");
    }
    exists
}

/// Runs a command in a directory, on a terminal of this width, and returns what the screen then shows, and the lines that
/// have left it at the top.
pub(crate) fn screen(dir: &Path, width: usize, command: &str) -> String {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let server = Server(format!("stridemap-{}-{}", process::id(), STARTED.fetch_add(1, Ordering::Relaxed)));
    let programs = Path::new(env!("CARGO_BIN_EXE_stridemap")).parent().unwrap().display();
    // The shell stays until the screen is captured.
    let script = format!(
        "PATH='{programs}':$PATH; clear; {command}; tmux -L {} wait-for -S ended; sleep 60",
        server.0
    );
    let (width, dir) = (width.to_string(), dir.to_str().unwrap());
    server.run(&["new-session", "-d", "-x", &width, "-y", HEIGHT, "-c", dir, "sh", "-c", &script]);
    server.run(&["wait-for", "ended"]);
    let screen = server.run(&["capture-pane", "-p", "-S", "-"]);
    String::from_utf8(screen.stdout).unwrap().trim_end().to_owned()
}

/// A server of tmux, which is stopped when this is dropped.
struct Server(String);

impl Server {
    fn run(&self, args: &[&str]) -> Output {
        let mut tmux = Command::new("tmux");
        tmux.args(["-L", &self.0, "-f", "/dev/null", "-u"])
            .args(args)
            .env_remove("COLUMNS")
            .env_remove("STRIDEMAP_COLUMNS")
            .env_remove("TMUX");
        let output = tmux.output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        output
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.0, "kill-server"]).output();
    }
}
