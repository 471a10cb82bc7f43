//! A server that answers as S3 does: moto, a Python package.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use stridemap_remote::Client;

/// A secret that no output may contain.
pub(crate) const CANARY: &str = "canary0secret0access0key";

/// Prints its port, and ends when its standard input does: with the process of the tests, however that ends.
///
/// One put at a time: moto compares a version and writes in two steps, and between them another thread writes.
const SERVE: &str = "
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
def app(environ, start_response):
    if environ['REQUEST_METHOD'] != 'PUT':
        return moto(environ, start_response)
    with lock:
        return list(moto(environ, start_response))
server = make_server('127.0.0.1', 0, app, True, request_handler=MotoRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
";

/// A running server, shared by the tests of a process.
pub(crate) struct Moto {
    port: u16,
    _server: Child,
}

impl Moto {
    /// Returns the server, or `None` where moto is not installed and `STRIDEMAP_REQUIRE_MOTO` is not set.
    pub(crate) fn shared() -> Option<&'static Moto> {
        static SERVER: OnceLock<Option<Moto>> = OnceLock::new();
        let server = SERVER.get_or_init(Moto::start);
        if server.is_none() {
            assert!(
                std::env::var_os("STRIDEMAP_REQUIRE_MOTO").is_none(),
                "python3 cannot import moto.server"
            );
            eprintln!("skipped: no moto; pip install 'moto[server]'");
        }
        server.as_ref()
    }

    fn start() -> Option<Moto> {
        let mut server = Command::new("python3")
            .args(["-c", SERVE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take()?).read_line(&mut line).ok()?;
        let Ok(port) = line.trim().parse() else {
            server.wait().unwrap();
            return None;
        };
        Some(Moto { port, _server: server })
    }

    /// Creates a bucket, and returns the URL of a remote in it.
    pub(crate) fn bucket(&self, name: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let request = format!(
            "PUT /{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        format!("s3://{name}/remote")
    }

    /// Returns the environment in which object_store finds this server, also for a child process.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", CANARY.to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// Opens a remote in a new bucket.
    pub(crate) fn client(&self, bucket: &str) -> Client {
        Client::open_with(&self.bucket(bucket), Duration::from_secs(60), self.variables()).unwrap()
    }
}
