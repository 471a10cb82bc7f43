//! What the client makes of answers of a real HTTP server, which a script writes byte for byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use stridemap::{Error, ErrorKind};
use stridemap_remote::{Client, Put};

use crate::common::moto::CANARY;

const TIMEOUT: Duration = Duration::from_millis(600);

/// Answers one connection after the other, each with the next answer, and the last one again and again.
struct Server {
    port: u16,
    /// The requests without their bodies, in small letters.
    requests: Receiver<String>,
}

impl Server {
    fn new(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
        let (sender, requests) = mpsc::channel();
        thread::spawn(move || {
            for number in 0.. {
                let Ok((stream, _)) = listener.accept() else { return };
                let mut stream = BufReader::new(stream);
                let (mut request, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if stream.read_line(&mut line).is_err() || line.trim().is_empty() {
                        break;
                    }
                    line.make_ascii_lowercase();
                    if let Some(value) = line.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    request += &line;
                }
                if request.is_empty() {
                    continue;
                }
                let mut body = vec![0; length];
                let _ = stream.read_exact(&mut body);
                if sender.send(request).is_err() {
                    return;
                }
                let _ = stream.get_mut().write_all(answers[number.min(answers.len() - 1)].as_bytes());
            }
        });
        Server { port, requests }
    }

    fn client(&self, url: &str) -> Client {
        let variables = [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", CANARY[1..].to_owned()),
            ("AWS_SECRET_ACCESS_KEY", CANARY.to_owned()),
            ("GOOGLE_BASE_URL", format!("http://127.0.0.1:{}", self.port)),
            ("GOOGLE_BEARER_TOKEN", CANARY.to_owned()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Client::open_with(&url.replace("PORT", &self.port.to_string()), TIMEOUT, variables).unwrap()
    }

    fn request_count(&self) -> usize {
        self.requests.try_iter().count()
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

fn error_body(code: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>why it failed</Message></Error>")
}

const WHOLE: &str = "ETag: \"1\"\r\nLast-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n";

fn get(answers: &[&str]) -> (Result<Option<String>, Error>, usize) {
    let server = Server::new(answers);
    let client = server.client("s3://bucket/path");
    let result = client.get("HEAD", 100);
    let result = result.map(|object| object.map(|object| String::from_utf8(object.bytes.to_vec()).unwrap()));
    (result, server.request_count())
}

#[test]
fn answers_that_pass_are_tried_again() {
    let whole = answer("200 OK", WHOLE, "bytes");
    for first in [
        answer("503 Service Unavailable", "", &error_body("SlowDown")),
        answer("500 Internal Server Error", "", &error_body("InternalError")),
        answer("502 Bad Gateway", "", "<html>no</html>"),
        answer("429 Too Many Requests", "", ""),
        answer("408 Request Timeout", "", ""),
        answer("400 Bad Request", "", &error_body("RequestTimeout")),
        // The connection ends in the middle of the body, and before any byte of an answer.
        answer("200 OK", WHOLE, "bytes")[..whole.len() - 2].to_owned(),
        String::new(),
    ] {
        let (result, requests) = get(&[&first, &whole]);
        assert_eq!(result.unwrap().as_deref(), Some("bytes"), "{first}");
        assert_eq!(requests, 2, "{first}");
    }
}

#[test]
fn refusals_are_final_and_say_why() {
    for (status, code, kind) in [
        ("403 Forbidden", "AccessDenied", std::io::ErrorKind::PermissionDenied),
        ("401 Unauthorized", "", std::io::ErrorKind::PermissionDenied),
        ("400 Bad Request", "ExpiredToken", std::io::ErrorKind::Other),
        ("501 Not Implemented", "NotImplemented", std::io::ErrorKind::Other),
    ] {
        let (result, requests) = get(&[&answer(status, "", &error_body(code))]);
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.io_error().unwrap().kind()), (ErrorKind::Io, kind), "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with("read HEAD: s3://bucket/path: the server answered 4") || status.starts_with('5')
        );
        assert!(text.contains(code) && text.contains("why it failed"), "{text}");
        assert_eq!(requests, 1);
    }
}

#[test]
fn a_missing_object_is_not_a_missing_bucket() {
    let (result, _) = get(&[&answer("404 Not Found", "", &error_body("NoSuchKey"))]);
    assert_eq!(result.unwrap(), None);
    let (result, _) = get(&[&answer("404 Not Found", "", &error_body("NoSuchBucket"))]);
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let server = Server::new(&[&answer("404 Not Found", "", &error_body("NoSuchBucket"))]);
    let error = server.client("s3://bucket/path").put("objects/a", "x".into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn a_conflict_of_two_puts_is_decided_by_another_attempt() {
    let conflict = answer("409 Conflict", "", &error_body("ConditionalRequestConflict"));
    let unmet = answer("412 Precondition Failed", "", &error_body("PreconditionFailed"));
    let written = answer("200 OK", "ETag: \"2\"\r\n", "");
    let server = Server::new(&[&conflict, &unmet]);
    assert_eq!(server.client("s3://b").put_new("HEAD", "x".into()).unwrap(), Put::Exists);
    let server = Server::new(&[&conflict, &written]);
    assert!(matches!(server.client("s3://b").put_new("HEAD", "x".into()).unwrap(), Put::Written(_)));
    assert_eq!(server.request_count(), 2);
}

#[test]
fn a_server_that_does_not_listen_or_answer_is_an_error_in_time() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = Client::open(&format!("http://127.0.0.1:{port}/x"), TIMEOUT).unwrap();
    let start = Instant::now();
    let error = client.get("HEAD", 100).unwrap_err();
    assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::HostUnreachable, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let client = Client::open(&format!("http://127.0.0.1:{port}/x"), TIMEOUT).unwrap();
    let error = client.get("HEAD", 100).unwrap_err();
    assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::TimedOut, "{error}");
    assert!(start.elapsed() < 10 * TIMEOUT, "{:?}", start.elapsed());
}

#[test]
fn a_body_that_stops_is_cut_and_one_that_is_too_long_is_not_read() {
    let start = Instant::now();
    let endless = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\nETag: \"1\"\r\n\
                   Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n\r\nx";
    let (result, requests) = get(&[endless]);
    let error = result.unwrap_err();
    assert_eq!((error.kind(), requests), (ErrorKind::LimitExceeded, 1), "{error}");
    assert!(start.elapsed() < TIMEOUT);
}

#[test]
fn no_error_shows_a_credential() {
    let echo = format!(
        "<Error><Code>SignatureDoesNotMatch</Code><Message>key {CANARY} of {} \
         https://h/x?X-Amz-Signature=canary1 AWSAccessKeyId=canary</Message></Error>",
        &CANARY[1..]
    );
    for status in ["403 Forbidden", "400 Bad Request", "500 Internal Server Error"] {
        let server = Server::new(&[&answer(status, "", &echo)]);
        let client = server.client("s3://bucket/path");
        let errors = [
            client.get("HEAD", 10).unwrap_err(),
            client.get_range("HEAD", 0..1).unwrap_err(),
            client.put_new("HEAD", "x".into()).unwrap_err(),
            client.put("HEAD", "x".into()).unwrap_err(),
            client.list("").unwrap_err(),
            client.delete("HEAD").unwrap_err(),
        ];
        for error in errors {
            let shown = format!("{error} {error:?} {:?} {}", client, client.location());
            assert!(!shown.contains("canary") && !shown.contains(&CANARY[1..]), "{shown}");
            assert!(shown.contains("SignatureDoesNotMatch") || !shown.contains("read HEAD"), "{shown}");
        }
    }
}

#[test]
fn http_is_only_read() {
    let server = Server::new(&[&answer("200 OK", "", "bytes")]);
    let client = server.client("http://127.0.0.1:PORT/some%20path/");
    assert!(client.is_read_only());
    assert_eq!(client.get("HEAD", 10).unwrap().unwrap().bytes, "bytes");
    let request = server.requests.recv().unwrap();
    assert!(request.starts_with("get /some%20path/head http/1.1\r\n"), "{request}");
    for error in [
        client.put("HEAD", "x".into()).unwrap_err(),
        client.delete("HEAD").unwrap_err(),
        client.list("").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotAllowed, "{error}");
    }
    // It answers with the whole object.
    let error = client.get_range("HEAD", 1..2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("ranges"), "{error}");
    assert_eq!(server.request_count(), 2, "the range, and the length");
}

#[test]
fn plain_http_for_s3_needs_consent() {
    let variables = vec![("AWS_ENDPOINT_URL".to_owned(), "http://127.0.0.1:1".to_owned())];
    let error = Client::open_with("s3://b/p", TIMEOUT, variables).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("AWS_ALLOW_HTTP=true"), "{error}");
}

#[test]
fn settings_that_no_request_can_use_are_refused_by_name() {
    for (url, name, value) in [
        ("s3://b/p", "AWS_ENDPOINT_URL", "localhost:9000"),
        ("s3://b/p", "AWS_ENDPOINT_URL", "127.0.0.1"),
        ("s3://b/p", "AWS_ENDPOINT_URL", "https://host\n"),
        ("s3://b/p", "AWS_ENDPOINT_URL_S3", "https://"),
        ("s3://b/p", "AWS_ENDPOINT", "ftp://host"),
        ("s3://b/p", "AWS_ENDPOINT_URL_STS", "sts"),
        ("s3://b/p", "AWS_REGION", "us-east-1\n"),
        ("s3://b/p", "AWS_REGION", "us east"),
        ("s3://b/p", "AWS_ACCESS_KEY_ID", "canary\n"),
        ("s3://b/p", "AWS_SECRET_ACCESS_KEY", "canary\r"),
        ("s3://b/p", "AWS_SESSION_TOKEN", "can\u{e4}ry"),
        ("gs://b/p", "GOOGLE_BASE_URL", "localhost:4443"),
        ("gs://b/p", "GOOGLE_BEARER_TOKEN", "canary\n"),
        ("az://c/p", "AZURE_ENDPOINT", "localhost:10000"),
        ("az://c/p", "AZURE_STORAGE_ACCOUNT_NAME", "name\n"),
        ("az://c/p", "IDENTITY_ENDPOINT", "localhost"),
    ] {
        let mut variables: Vec<(String, String)> = [
            ("AWS_ACCESS_KEY_ID", CANARY),
            ("AWS_SECRET_ACCESS_KEY", CANARY),
            ("AWS_REGION", "us-east-1"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        variables.retain(|(known, _)| known != name);
        variables.push((name.to_owned(), value.to_owned()));
        let error = Client::open_with(url, TIMEOUT, variables).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}={value:?}: {error}");
        assert!(error.to_string().contains(&format!("variable {name} ")), "{name}={value:?}: {error}");
        assert!(!error.to_string().contains("can"), "{error}");
    }
}

#[test]
fn google_compares_generations() {
    let found = answer("200 OK", &format!("{WHOLE}x-goog-generation: 7\r\n"), "bytes");
    let unmet = answer("412 Precondition Failed", "", &error_body("PreconditionFailed"));
    let written = answer("200 OK", "ETag: \"2\"\r\nx-goog-generation: 8\r\n", "");
    let server = Server::new(&[&found, &written, &unmet, &unmet]);
    let client = server.client("gs://bucket/path");
    let version = client.get("HEAD", 10).unwrap().unwrap().version;
    assert!(matches!(client.put_if_match("HEAD", "x".into(), &version).unwrap(), Put::Written(_)));
    assert_eq!(client.put_if_match("HEAD", "x".into(), &version).unwrap(), Put::Exists);
    assert_eq!(client.put_new("HEAD", "x".into()).unwrap(), Put::Exists);
    let requests: Vec<String> = server.requests.try_iter().collect();
    let conditions = requests.iter().map(|r| {
        r.lines()
            .find_map(|line| line.strip_prefix("x-goog-if-generation-match: "))
            .unwrap_or_default()
            .trim()
    });
    assert_eq!(conditions.collect::<Vec<_>>(), ["", "7", "7", "0"]);
}
