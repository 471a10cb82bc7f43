//! The commands against a server that speaks the protocol of S3: moto, a package of Python. Without it, these tests are
//! skipped, with the reason printed; `STRIDEMAP_REQUIRE_MOTO` makes that a failure.

use std::env;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::refusals::{CANARY, with_s3};
use super::save;
use crate::harness::{Dir, Run};

/// A server, which is stopped when it is dropped.
struct Server {
    child: Child,
    endpoint: String,
    address: String,
}

impl Server {
    /// Starts a server with a bucket.
    fn start() -> Option<Self> {
        let has_moto = Command::new("python3").args(["-c", "import moto.server"]).output();
        if !has_moto.is_ok_and(|output| output.status.success()) {
            println!("skipped: python3 with moto is not there");
            assert!(env::var_os("STRIDEMAP_REQUIRE_MOTO").is_none(), "python3 with moto is required");
            return None;
        }
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut python = Command::new("python3");
        python.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &address.port().to_string()]);
        let child = python.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Server { child, endpoint: format!("http://{address}"), address: address.to_string() };
        let began = Instant::now();
        while !server.makes_bucket() {
            assert!(began.elapsed() < Duration::from_secs(60), "moto does not answer");
            thread::sleep(Duration::from_millis(100));
        }
        Some(server)
    }

    fn makes_bucket(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(&self.address) else { return false };
        let request = format!(
            "PUT /bucket HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
    }

    /// Runs a command with credentials, and asserts that it prints no secret.
    #[track_caller]
    fn run(&self, dir: &Dir, args: &[&str]) -> Run {
        let mut command = dir.command(args);
        with_s3(&mut command, &self.endpoint);
        let output = command.output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let run = Run { code: output.status.code(), stdout, stderr };
        assert!(!format!("{run:?}").contains(CANARY), "{args:?}: {run:?}");
        run
    }

    /// Runs a command that succeeds, and returns its output and its messages.
    #[track_caller]
    fn succeeds(&self, dir: &Dir, args: &[&str]) -> String {
        let run = self.run(dir, args);
        assert_eq!(run.code, Some(0), "{args:?}: {run:?}");
        run.stdout + &run.stderr
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn store_goes_through_a_bucket_to_another_machine_and_back() {
    let Some(server) = Server::start() else { return };
    let dir = Dir::with_store();
    let url = "s3://bucket/models/s";
    dir.messages(&["tag", "s.smap", "v1"]);
    let said = server.succeeds(&dir, &["push", "s.smap", url, "-v"]);
    assert!(said.starts_with("stridemap: pushed s.smap with 1 tag to s3://bucket/models/s, "), "{said}");
    assert_eq!(server.succeeds(&dir, &["ls", url]), dir.stdout(&["ls", "s.smap"]));
    assert_eq!(
        server.succeeds(&dir, &["show", "s3://bucket/models/s@v1", "points"]),
        dir.stdout(&["show", "s.smap", "points"])
    );
    server.succeeds(&dir, &["pull", url, "p.smap", "-v"]);
    assert_eq!(dir.stdout(&["verify", "p.smap", "-q"]), "ok\n");
    server.succeeds(&dir, &["pull", url, "c.smap", "points"]);
    assert_eq!(dir.stdout(&["ls", "c.smap"]), "points\n");

    // Both make a generation. The second push is refused, also in a race that the server decides.
    save(&dir.store(), "x", 1);
    save(&stridemap::Store::open(dir.path("p.smap")).unwrap(), "x", 2);
    server.succeeds(&dir, &["push", "p.smap", url]);
    let run = server.run(&dir, &["push", "s.smap", url]);
    assert!(
        run.code == Some(2) && run.stderr.contains("push it to another URL (stridemap push s.smap NEW-URL)"),
        "{run:?}"
    );
    assert_eq!(
        server.succeeds(&dir, &["follow", url, "f.smap", "--count", "1", "-q"]).split('\t').next(),
        Some("4")
    );
    assert_eq!(server.succeeds(&dir, &["verify", url]), "ok\n");
    let pruned = server.succeeds(&dir, &["prune", url, "--keep-last", "1", "--grace", "0s", "--orphans"]);
    assert!(pruned.starts_with("stridemap: deleted "), "{pruned}");
    assert_eq!(server.succeeds(&dir, &["verify", url]), "ok\n");
}

#[test]
fn missing_bucket_is_named_and_no_secret_is() {
    let Some(server) = Server::start() else { return };
    let dir = Dir::with_store();
    for args in [
        &["push", "s.smap", "s3://nowhere/s"][..],
        &["pull", "s3://nowhere/s", "p.smap"],
        &["ls", "s3://nowhere/s"],
        &["prune", "s3://nowhere/s", "-v"],
    ] {
        let run = server.run(&dir, args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
        assert!(
            run.stderr.contains("s3://nowhere/s") && run.stderr.contains("create it, or correct the URL"),
            "{run:?}"
        );
    }
    assert!(!dir.path("p.smap").exists());
}
