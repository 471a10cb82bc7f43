//! How many requests there are at a time, and how much memory they take.

use std::process::Command;
use std::time::Duration;

use stridemap_remote::faults::{Fault, Faults};
use stridemap_remote::{Remote, RemoteOptions};

use crate::support::{Place, ignore, open};

/// Longer than it takes to begin the other requests.
const SLOW: Duration = Duration::from_millis(400);

#[test]
fn jobs_are_the_number_of_requests_at_a_time() {
    for jobs in [1, 3, 12] {
        let faults = Faults::new();
        let remote = Remote::with_client(faults.client(Duration::from_secs(60)), jobs);
        let place = Place::in_memory();
        let store = place.create("a.smap");
        // Each in an object of its own, which one request reads.
        let tensor_count = jobs as u8 + 4;
        store
            .write(|txn| (0..tensor_count).try_for_each(|i| txn.save(&format!("x{i}"), &vec![i; 5 << 20])))
            .unwrap();
        faults.inject_from(0, Fault::Slow(SLOW));
        remote.push(&store, &ignore).unwrap();
        assert_eq!(faults.most_slow_at_once(), jobs as u64, "push");
        faults.reset();
        faults.inject_from(0, Fault::Slow(SLOW));
        remote.pull(&place.path("b.smap"), &ignore).unwrap();
        assert_eq!(faults.most_slow_at_once(), jobs as u64, "pull");
    }
}

const MEMORY_TEST: &str = "jobs::push_and_pull_take_64_mib_for_each_job_and_128_mib_more";
const WORK: &str = "STRIDEMAP_TEST_REMOTE_JOBS";

/// The most memory that this process had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() / 1024
}

#[test]
#[cfg(target_os = "linux")]
fn push_and_pull_take_64_mib_for_each_job_and_128_mib_more() {
    if let Ok(work) = std::env::var(WORK) {
        let [jobs, what, url, path] = work.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let jobs: u64 = jobs.parse().unwrap();
        let remote = RemoteOptions::new().jobs(jobs as usize).open(url).unwrap();
        match what {
            "push" => drop(remote.push(&open(path.as_ref()), &ignore).unwrap()),
            _ => drop(remote.pull(path.as_ref(), &ignore).unwrap()),
        }
        let peak = peak_mib();
        println!("{what} with {jobs} jobs: {peak} MiB");
        assert!(peak < 64 * jobs + 128, "{what} with {jobs} jobs: {peak} MiB");
        return;
    }
    let place = Place::in_files();
    let store = place.create("a.smap");
    for i in 0..6u8 {
        store.save(&format!("x{i}"), &vec![i; 64 << 20]).unwrap();
    }
    // Packs of small ones.
    store.write(|txn| (0..48u8).try_for_each(|i| txn.save(&format!("y{i}"), &vec![i; 3 << 20]))).unwrap();
    for jobs in [1, 3] {
        let url = format!("{}/{jobs}", place.remote.location());
        for (what, path) in [("push", "a.smap".to_owned()), ("pull", format!("{jobs}.smap"))] {
            let path = place.path(&path);
            let status = Command::new(std::env::current_exe().unwrap())
                .args([MEMORY_TEST, "--exact", "--nocapture", "--test-threads=1"])
                .env(WORK, format!("{jobs} {what} {url} {}", path.display()))
                .status();
            assert!(status.unwrap().success(), "{what} with {jobs} jobs");
        }
    }
}
