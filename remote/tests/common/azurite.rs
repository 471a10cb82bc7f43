//! A server that answers as Azure does: azurite, an npm package.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use stridemap_remote::Client;

/// Of every emulator, and public.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Starts azurite and prints its port. Then creates the container that each line of standard input names. Ends when its
/// standard input does: with the process of the tests, however that ends.
const SERVE: &str = r#"
import base64, hashlib, hmac, re, subprocess, sys, tempfile, urllib.request
from email.utils import formatdate
account, key = sys.argv[1:]
with tempfile.TemporaryDirectory() as dir:
    server = subprocess.Popen(
        ["azurite-blob", "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"],
        cwd=dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        for line in server.stdout:
            if found := re.search(r"listens on http://127.0.0.1:(\d+)", line):
                break
        port = found[1]
        print(port, flush=True)
        for container in map(str.strip, sys.stdin):
            headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
            lines = ["PUT"] + [""] * 11 + [f"{k}:{v}" for k, v in headers.items()]
            lines += [f"/{account}/{account}/{container}", "restype:container"]
            signature = hmac.digest(base64.b64decode(key), "\n".join(lines).encode(), "sha256")
            headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(signature).decode()}"
            url = f"http://127.0.0.1:{port}/{account}/{container}?restype=container"
            request = urllib.request.Request(url, method="PUT", headers=headers)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            print(opener.open(request).status, flush=True)
    finally:
        server.kill()
"#;

/// A running server, shared by the tests of a process.
pub(crate) struct Azurite {
    port: u16,
    containers: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    _server: Child,
}

impl Azurite {
    /// Returns the server, or `None` where it is not installed and `STRIDEMAP_REQUIRE_AZURITE` is not set.
    pub(crate) fn shared() -> Option<&'static Azurite> {
        static SERVER: OnceLock<Option<Azurite>> = OnceLock::new();
        let server = SERVER.get_or_init(Azurite::start);
        if server.is_none() {
            assert!(std::env::var_os("STRIDEMAP_REQUIRE_AZURITE").is_none(), "azurite-blob does not start");
            eprintln!("skipped: no azurite; npm install azurite, and add node_modules/.bin to PATH");
        }
        server.as_ref()
    }

    fn start() -> Option<Azurite> {
        let mut server = Command::new("python3")
            .args(["-c", SERVE, ACCOUNT, KEY])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let (input, mut output) = (server.stdin.take()?, BufReader::new(server.stdout.take()?));
        let mut line = String::new();
        output.read_line(&mut line).ok()?;
        let Ok(port) = line.trim().parse() else {
            server.wait().unwrap();
            return None;
        };
        Some(Azurite { port, containers: Mutex::new((input, output)), _server: server })
    }

    /// Opens a remote in a new container.
    pub(crate) fn client(&self, container: &str) -> Client {
        let mut line = String::new();
        let mut containers = self.containers.lock().unwrap();
        writeln!(containers.0, "{container}").unwrap();
        containers.1.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "201");
        let variables = [
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY", KEY.to_owned()),
            ("AZURE_STORAGE_ENDPOINT", format!("http://127.0.0.1:{}/{ACCOUNT}", self.port)),
            ("AZURE_ALLOW_HTTP", "true".to_owned()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Client::open_with(&format!("az://{container}/remote"), Duration::from_secs(60), variables).unwrap()
    }
}
