//! How long an upload waits for a server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use stridemap::ErrorKind;
use stridemap_remote::Client;

const TIMEOUT: Duration = Duration::from_secs(1);

fn client(port: u16) -> Client {
    let variables = [
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_SKIP_SIGNATURE", "true".to_owned()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
    Client::open_with("s3://bucket/path", TIMEOUT, variables).unwrap()
}

#[test]
fn put_to_a_server_that_reads_nothing_ends_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(silent.local_addr().unwrap().port());
    for length in [1, 1 << 20, 32 << 20] {
        let start = Instant::now();
        let error = client.put("objects/a", vec![7; length].into()).unwrap_err();
        assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::TimedOut, "{error}");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(start.elapsed() < 4 * TIMEOUT, "{length}: {:?}", start.elapsed());
    }
}

#[test]
fn put_to_a_server_that_stops_reading_ends_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(listener.local_addr().unwrap().port());
    thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.read_exact(&mut vec![0; 16 << 20]).unwrap();
            open.push(stream);
        }
    });
    let start = Instant::now();
    let error = client.put("objects/a", vec![7; 48 << 20].into()).unwrap_err();
    assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::TimedOut, "{error}");
    assert!(start.elapsed() < 8 * TIMEOUT, "{:?}", start.elapsed());
}

#[test]
fn put_over_a_slow_line_may_take_longer_than_the_timeout() {
    const LENGTH: usize = 32 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(listener.local_addr().unwrap().port());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut received, mut buffer) = (0, vec![0; 256 << 10]);
        while received < LENGTH {
            received += stream.read(&mut buffer).unwrap();
            thread::sleep(Duration::from_millis(40));
        }
        let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\nETag: \"1\"\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let start = Instant::now();
    client.put("objects/a", vec![7; LENGTH].into()).unwrap();
    assert!(start.elapsed() > 3 * TIMEOUT, "{:?}", start.elapsed());
    server.join().unwrap();
}
