//! The client with faults: each fault at each kind of request.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stridemap::{Error, ErrorKind, Result};

use stridemap_remote::faults::{Fault, Faults};
use stridemap_remote::{Client, Put, Version};

const TIMEOUT: Duration = Duration::from_millis(500);

/// More than the timeout and one attempt.
const BOUND: Duration = Duration::from_millis(1500);

fn transient() -> Vec<Fault> {
    vec![
        Fault::Lost,
        Fault::AnswerLost,
        Fault::Hangs,
        Fault::AnswerHangs,
        Fault::Truncated,
        Fault::Status(429),
        Fault::Status(500),
        Fault::Status(503),
    ]
}

/// A remote that has HEAD.
fn remote() -> (Faults, Client, Version) {
    let remote = Faults::new();
    let client = remote.client(TIMEOUT);
    let Put::Written(version) = client.put_new("HEAD", "0123456789".into()).unwrap() else {
        panic!("it exists")
    };
    remote.reset();
    (remote, client, version)
}

type Call = fn(&Client) -> Result<()>;

/// A call of each kind that has no condition, with what it must return.
fn calls() -> Vec<(&'static str, Call)> {
    vec![
        ("get HEAD", |client| {
            assert_eq!(client.get("HEAD", 10)?.unwrap().bytes, "0123456789");
            Ok(())
        }),
        ("get HEAD", |client| {
            assert_eq!(client.get_range("HEAD", 2..8)?, "234567");
            Ok(())
        }),
        ("head HEAD", |client| {
            assert_eq!(client.info("HEAD")?.unwrap().length_bytes, 10);
            Ok(())
        }),
        ("put objects/a", |client| client.put("objects/a", "abc".into()).map(drop)),
        ("delete objects/a", |client| client.delete("objects/a")),
        ("list", |client| {
            assert_eq!(client.list("")?.len(), 1);
            Ok(())
        }),
    ]
}

#[test]
fn a_fault_that_passes_is_not_seen() {
    for fault in transient() {
        for (request, call) in calls() {
            let (remote, client, _) = remote();
            remote.inject(0, fault.clone());
            let start = Instant::now();
            call(&client).unwrap_or_else(|error| panic!("{fault:?} of {request}: {error}"));
            assert_eq!(remote.log(), [request, request], "{fault:?}");
            assert!(start.elapsed() < TIMEOUT, "{fault:?} of {request}");
            assert_eq!(client.requests().total(), 3);
        }
    }
}

#[test]
fn a_fault_that_stays_is_an_error_within_the_timeout_that_says_what_was_tried() {
    for fault in transient() {
        for (request, call) in calls() {
            let (remote, client, _) = remote();
            remote.inject_from(0, fault.clone());
            let start = Instant::now();
            let error = call(&client).unwrap_err();
            assert!(start.elapsed() < BOUND, "{fault:?} of {request}: {:?}", start.elapsed());
            assert_eq!(error.kind(), ErrorKind::Io, "{fault:?} of {request}: {error}");
            let text = error.to_string();
            assert!(text.contains(client.location()) && text.contains("attempts in"), "{text}");
            assert!(remote.log().len() >= 3, "{:?}", remote.log());
        }
    }
}

#[test]
fn a_refusal_is_not_repeated_and_names_the_permission() {
    for status in [401, 403] {
        for (request, call) in calls() {
            let (remote, client, _) = remote();
            remote.inject(0, Fault::Status(status));
            let error = call(&client).unwrap_err();
            assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::PermissionDenied, "{error}");
            assert!(error.to_string().contains("permission"), "{error}");
            assert_eq!(remote.log(), [request]);
        }
    }
}

#[test]
fn a_slow_answer_is_waited_for() {
    let (remote, client, _) = remote();
    remote.inject(0, Fault::Slow(TIMEOUT / 10));
    assert!(client.get("HEAD", 10).unwrap().is_some());
    assert_eq!(remote.log().len(), 1);
}

#[test]
fn a_wrong_byte_reaches_the_caller_who_knows_the_digest() {
    let (remote, client, _) = remote();
    remote.inject(0, Fault::Wrong);
    assert_eq!(client.get("HEAD", 10).unwrap().unwrap().bytes, "0123446789");
}

#[test]
fn a_put_with_a_condition_is_done_once_whatever_happens_to_its_answer() {
    for fault in transient() {
        let may_be_done = matches!(fault, Fault::AnswerLost | Fault::AnswerHangs | Fault::Truncated);
        let (remote, client, version) = remote();
        remote.inject(0, fault.clone());
        let put = client.put_if_match("HEAD", "second".into(), &version).unwrap();
        // The second attempt finds what the first one wrote.
        assert_eq!(put == Put::Exists, may_be_done, "{fault:?}");
        let now = client.get("HEAD", 100).unwrap().unwrap();
        assert_eq!(now.bytes, "second", "{fault:?}");
        if let Put::Written(version) = put {
            assert_eq!(version, now.version);
        }

        remote.reset();
        remote.inject(0, fault.clone());
        let put = client.put_new("new", "third".into()).unwrap();
        assert_eq!(put == Put::Exists, may_be_done, "{fault:?}");
        assert_eq!(client.get("new", 100).unwrap().unwrap().bytes, "third");

        remote.reset();
        remote.inject_from(0, fault.clone());
        let start = Instant::now();
        let result = client.put_new("newer", "fourth".into());
        assert!(start.elapsed() < BOUND);
        // Each attempt's answer is lost, also the one that says that it exists.
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Io, "{fault:?}");
        remote.reset();
        assert_eq!(client.get("newer", 100).unwrap().is_some(), may_be_done, "{fault:?}");
    }
}

#[test]
fn a_request_that_hangs_ends_when_the_check_fails() {
    let (remote, client, _) = remote();
    remote.inject_from(0, Fault::Hangs);
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_interrupted);
    let long = remote.client(Duration::from_secs(600)).with_check(Arc::new(move || {
        match seen.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Busy, "interrupted")),
            false => Ok(()),
        }
    }));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| (long.get("HEAD", 10).unwrap_err(), Instant::now()));
        while remote.log().is_empty() {
            std::thread::yield_now();
        }
        let start = Instant::now();
        is_interrupted.store(true, Ordering::Relaxed);
        let (error, end) = waiting.join().unwrap();
        assert_eq!(error.to_string(), "interrupted");
        assert!(end - start < Duration::from_secs(2));
    });
    let parts = vec![("HEAD".to_owned(), 0..1); 9];
    assert!(long.get_ranges(&parts).iter().all(|result| result.is_err()));
    remote.reset();
    assert!(client.get("HEAD", 10).unwrap().is_some());
}

#[test]
fn ranges_are_read_in_parallel_and_at_most_so_many_at_a_time() {
    let (remote, client, _) = remote();
    remote.inject_from(0, Fault::Hangs);
    let parts: Vec<(String, Range<u64>)> = (0..32).map(|i| ("HEAD".to_owned(), i % 9..i % 9 + 1)).collect();
    let check = {
        let (remote, start) = (remote.clone(), Instant::now());
        Arc::new(move || match start.elapsed() > TIMEOUT / 10 && remote.log().len() >= 8 {
            true => Err(Error::new(ErrorKind::Busy, "enough")),
            false => Ok(()),
        })
    };
    // An attempt takes much longer than the check waits, so none of them is the second of its part.
    let slow = remote.client(Duration::from_secs(60)).with_check(check);
    assert!(slow.get_ranges(&parts).into_iter().all(|result| result.is_err()));
    assert_eq!(remote.log().len(), 8);

    remote.reset();
    for (index, result) in client.get_ranges(&parts).into_iter().enumerate() {
        assert_eq!(result.unwrap(), (index % 9).to_string());
    }
    assert_eq!(remote.log().len(), 32);
}

#[test]
fn faults_of_one_part_do_not_disturb_the_others() {
    let (remote, client, _) = remote();
    let parts: Vec<(String, Range<u64>)> = (0..10).map(|i| ("HEAD".to_owned(), i..i + 1)).collect();
    for (request, fault) in transient().into_iter().enumerate() {
        remote.inject(request as u64, fault);
    }
    remote.inject(8, Fault::Status(403));
    let results = client.get_ranges(&parts);
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
    for (index, result) in results.into_iter().enumerate() {
        if let Ok(bytes) = result {
            assert_eq!(bytes, index.to_string());
        }
    }
}

#[test]
fn hooks_are_called_before_and_after_the_server_acts() {
    let (remote, client, _) = remote();
    let other = remote.client(TIMEOUT);
    remote.inject(
        0,
        Fault::Before(Arc::new({
            let remote = remote.clone();
            move || assert_eq!(remote.log().last().unwrap(), "put a")
        })),
    );
    client.put("a", "1".into()).unwrap();
    assert!(other.get("a", 1).unwrap().is_some());
}
