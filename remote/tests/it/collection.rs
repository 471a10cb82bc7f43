//! Pruning a remote.

use std::sync::Arc;
use std::time::Duration;

use stridemap::{ErrorKind, Store};
use stridemap_format::remote::{Head, Previous, RemoteManifest, manifest_path};
use stridemap_remote::faults::{Fault, Faults};
use stridemap_remote::{PruneOptions, Remote};

use crate::support::{Place, assert_same, assert_whole, ignore, open};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The test that starts itself again as another process, which prunes this URL.
const MEMORY_TEST: &str = "collection::prune_of_a_long_chain_takes_the_memory_of_one_manifest";
const PRUNED: &str = "STRIDEMAP_TEST_REMOTE_PRUNED";

#[test]
fn prune_of_a_long_chain_takes_the_memory_of_one_manifest() {
    if let Ok(url) = std::env::var(PRUNED) {
        let remote = Remote::open(&url).unwrap();
        remote.prune(&PruneOptions::new().keep_last(2).plan(true)).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        println!("{}", status.lines().find(|line| line.starts_with("VmHWM:")).unwrap());
        return;
    }
    // A remote manifest has the manifest of its generation inside, which is long if there are many changes.
    let place = Place::in_files();
    let (uuid, count) = ([7; 16], 12);
    let mut previous = None;
    for generation in 1..=count {
        let manifest = RemoteManifest {
            uuid,
            generation,
            nonce: [0; 16],
            previous: previous.take(),
            pages: Vec::new(),
            replaced: Vec::new(),
            manifest: vec![generation as u8; 16 << 20],
        };
        let bytes = manifest.encode().unwrap();
        let digest = *blake3::hash(&bytes).as_bytes();
        let path = place.path("remote").join(manifest_path(generation, &digest));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &bytes).unwrap();
        let head = Head { uuid, generation, manifest: digest, manifest_length_bytes: bytes.len() as u64 };
        std::fs::write(place.path("remote/HEAD"), head.encode().unwrap()).unwrap();
        previous = Some(Previous { generation, digest });
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([MEMORY_TEST, "--exact", "--nocapture"])
        .env(PRUNED, place.remote.location())
        .output()
        .unwrap();
    let said = String::from_utf8(child.stdout).unwrap();
    assert!(child.status.success(), "{said}");
    let peak = said.split("VmHWM:").nth(1).and_then(|rest| rest.split_whitespace().next());
    let peak_mib = peak.unwrap_or_else(|| panic!("{said}")).parse::<u64>().unwrap() / 1024;
    println!("{peak_mib} MiB for {count} manifests of 16 MiB");
    assert!(peak_mib < 120, "{peak_mib} MiB");
}

/// A remote whose requests can be stopped, and a store.
struct Scene {
    place: Place,
    faults: Faults,
    remote: Remote,
    store: Store,
}

impl Scene {
    fn new() -> Self {
        let (place, faults) = (Place::in_memory(), Faults::new());
        let remote = Remote::with_client(faults.client(Duration::from_secs(5)), 1);
        let store = place.create("a.smap");
        Scene { place, faults, remote, store }
    }

    /// A store that has the elements again that an old object has, which no generation needs any more. `Some` length of
    /// the object, or some small tensors, which are in one pack.
    fn with_old_garbage(length: Option<usize>) -> Self {
        let scene = Scene::new();
        let save = |byte| match length {
            Some(length) => scene.store.save("x", &vec![byte; length]).unwrap(),
            None => scene
                .store
                .write(|txn| (0..9u8).try_for_each(|i| txn.save(&format!("x{i}"), &[byte, i])))
                .unwrap(),
        };
        for byte in [1, 2] {
            save(byte);
            scene.remote.push(&scene.store, &ignore).unwrap();
        }
        scene.faults.age(3 * DAY);
        save(1);
        scene.faults.reset();
        scene
    }

    /// What happens when a push runs at this moment.
    fn push_hook(&self) -> Arc<dyn Fn() + Send + Sync> {
        let (remote, path) = (self.remote.clone(), self.store.path().to_owned());
        Arc::new(move || {
            remote.push(&open(&path), &ignore).unwrap();
        })
    }

    /// The number of a request of a prune.
    fn request_of(&self, options: PruneOptions, is_it: impl Fn(&str) -> bool) -> u64 {
        // A plan makes the same requests, but for deletions.
        let planned = self.remote.prune(&options).unwrap();
        assert!(planned.object_count > 0, "{planned:?}");
        let log = self.faults.log();
        self.faults.reset();
        log.iter().position(|request| is_it(request)).unwrap_or_else(|| panic!("{log:?}")) as u64
    }

    #[track_caller]
    fn check(&self) {
        let remote = self.remote.store().unwrap();
        assert_same(&remote, &self.store);
        assert_whole(&remote);
        self.remote.pull(&self.place.path("b.smap"), &ignore).unwrap();
        assert_same(&open(&self.place.path("b.smap")), &self.store);
    }
}

#[test]
fn prune_frees_what_neither_tags_nor_the_last_generations_need() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    for step in 0..10u8 {
        store.save("x", &vec![step; 5 << 20]).unwrap();
        if step % 5 == 0 {
            store.tag(&format!("step{step}")).unwrap();
        }
        place.push(&store);
    }
    let bytes = |place: &Place| place.objects().values().sum::<u64>();
    let before = bytes(&place);
    let waiting = place.remote.prune(&PruneOptions::new().keep_last(2)).unwrap();
    assert_eq!((waiting.object_count, waiting.freed_bytes), (0, 0));
    assert!(waiting.waiting_bytes > 5 * (5 << 20), "{waiting:?}");
    assert_eq!(bytes(&place), before);

    std::thread::sleep(Duration::from_millis(20));
    let options = PruneOptions::new().keep_last(2).grace(Duration::ZERO);
    let planned = place.remote.prune(&options.plan(true)).unwrap();
    assert_eq!(bytes(&place), before);
    let pruned = place.remote.prune(&options).unwrap();
    assert_eq!(pruned, planned);
    assert_eq!(bytes(&place), before - pruned.freed_bytes);
    // Left: steps 0 and 5 of the tags, and 8 and 9.
    assert!(pruned.freed_bytes >= 6 * (5 << 20), "{pruned:?}");
    assert_same(&place.remote.store().unwrap(), &store);
    assert_whole(&place.remote.store().unwrap());
    assert_eq!(
        place.remote.at(store.generation() - 1).unwrap().load("x").unwrap().read::<u8>().unwrap()[0],
        8
    );
    place.pull("b.smap");
    assert_same(&open(&place.path("b.smap")), &store);
    assert_eq!(place.remote.prune(&options).unwrap().object_count, 0);

    // What a removed tag kept.
    store.untag("step0").unwrap();
    place.push(&store);
    store.save("y", &1f32).unwrap();
    place.push(&store);
    store.save("y", &2f32).unwrap();
    place.push(&store);
    let pruned = place.remote.prune(&options).unwrap();
    assert!(((5 << 20)..(11 << 20)).contains(&pruned.freed_bytes), "{pruned:?}");
    assert_whole(&place.remote.store().unwrap());
}

#[test]
fn prune_of_orphans_deletes_what_a_push_left() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("x", &vec![1u8; 5 << 20]).unwrap();
    place.push(&store);
    store.save("y", &vec![2u8; 12 << 20]).unwrap();
    let before = place.objects();
    // After the first object.
    let end = |_| Err(stridemap::Error::new(stridemap::ErrorKind::Busy, "killed"));
    place.remote.push(&store, &end).unwrap_err();
    assert!(place.objects().len() > before.len());
    std::thread::sleep(Duration::from_millis(20));
    let options = PruneOptions::new().grace(Duration::ZERO);
    assert_eq!(place.remote.prune(&options).unwrap().object_count, 0);
    let pruned = place.remote.prune(&options.orphans(true)).unwrap();
    assert!(pruned.freed_bytes >= 12 << 20, "{pruned:?}");
    assert_eq!(place.objects(), before);
    assert_eq!(place.remote.push(&store, &ignore).unwrap().generation, store.generation());
    assert_whole(&place.remote.store().unwrap());
}

#[test]
fn prune_finds_an_object_that_it_left_once_the_grace_period_is_over() {
    let scene = Scene::new();
    let client = scene.faults.client(Duration::from_secs(5));
    let mut longest = Vec::new();
    for byte in 1..=3u8 {
        scene.store.save("x", &vec![byte; 5 << 20]).unwrap();
        scene.remote.push(&scene.store, &ignore).unwrap();
        longest.extend(client.list("objects").unwrap().into_iter().filter(|o| o.length_bytes >= 5 << 20));
    }
    let name = &longest[0].name;
    let first = client.get(name, 64 << 20).unwrap().unwrap().bytes;
    scene.faults.age(3 * DAY);
    // As by a push that came too late: the bytes of the first generation.
    client.put(name, first).unwrap();
    let options = PruneOptions::new().keep_last(1);
    let pruned = scene.remote.prune(&options).unwrap();
    assert!(pruned.waiting_bytes >= 5 << 20 && pruned.freed_bytes >= 5 << 20, "{pruned:?}");
    scene.faults.age(3 * DAY);
    let pruned = scene.remote.prune(&options).unwrap();
    assert!(pruned.freed_bytes >= 5 << 20, "{pruned:?}");
    assert_eq!(pruned.waiting_count, 0);
    assert!(client.info(name).unwrap().is_none());
    scene.check();
}

/// A prune has found an old object and is about to delete it, when a push needs the same bytes.
#[test]
fn push_of_bytes_that_a_prune_is_about_to_delete_loses_nothing() {
    for length in [Some(5 << 20), Some(64 << 20), None] {
        let scene = Scene::with_old_garbage(length);
        let options = PruneOptions::new().keep_last(1);
        let first = scene.request_of(options.plan(true), |request| request.starts_with("head objects/"));
        // A time object is put, looked at and deleted, which a plan does not do. Then each object is looked at and deleted.
        let delete = first + 4;
        scene.faults.inject(delete, Fault::Before(scene.push_hook()));
        let pruned = scene.remote.prune(&options).unwrap();
        let log = scene.faults.log();
        assert!(log[delete as usize].starts_with("delete objects/"), "{log:?}");
        assert!(pruned.object_count > 0, "{pruned:?}");
        scene.check();
        // What the push has put is not garbage later, and the object that was deleted is not needed.
        scene.faults.age(3 * DAY);
        scene.remote.prune(&options.orphans(true)).unwrap();
        scene.check();
    }
}

#[test]
fn repeated_request_of_a_prune_does_not_delete_what_was_put_again_meanwhile() {
    let scene = Scene::with_old_garbage(Some(5 << 20));
    let options = PruneOptions::new().keep_last(1);
    let first = scene.request_of(options.plan(true), |request| request.starts_with("head objects/"));
    scene.faults.inject(first + 4, Fault::AnswerLost);
    scene.faults.inject(first + 5, Fault::Before(scene.push_hook()));
    scene.remote.prune(&options).unwrap();
    assert!(scene.faults.log()[first as usize + 4].starts_with("delete objects/"));
    scene.check();
}

#[test]
fn prune_keeps_what_was_pushed_since_it_began() {
    let scene = Scene::new();
    scene.store.save("x", &vec![1u8; 5 << 20]).unwrap();
    scene.remote.push(&scene.store, &ignore).unwrap();
    scene.store.save("x", &vec![2u8; 5 << 20]).unwrap();
    scene.remote.push(&scene.store, &ignore).unwrap();
    scene.store.save("y", &vec![3u8; 5 << 20]).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    scene.faults.reset();
    let options = PruneOptions::new().keep_last(1).grace(Duration::ZERO).orphans(true);
    let list = scene.request_of(options.plan(true), |request| request == "list objects") + 3;
    scene.faults.inject(list, Fault::Before(scene.push_hook()));
    let pruned = scene.remote.prune(&options).unwrap();
    assert_eq!(scene.faults.log()[list as usize], "list objects");
    assert!(pruned.object_count > 0, "{pruned:?}");
    scene.check();
}

#[test]
fn next_prune_removes_what_a_killed_one_left() {
    let scene = Scene::with_old_garbage(Some(5 << 20));
    scene.faults.inject_from(3, Fault::Status(403));
    // After it has put an object to learn the time.
    scene.remote.prune(&PruneOptions::new()).unwrap_err();
    let log = scene.faults.log();
    assert!(log.iter().any(|request| request.starts_with("put PRUNE")), "{log:?}");
    scene.faults.reset();
    let client = scene.faults.client(Duration::from_secs(5));
    let left = || {
        let names = client.list("").unwrap().into_iter().map(|object| object.name);
        names.filter(|name| name.starts_with("PRUNE")).collect::<Vec<_>>()
    };
    assert_eq!(left().len(), 1);
    scene.remote.prune(&PruneOptions::new()).unwrap();
    assert_eq!(left(), Vec::<String>::new());
}

#[test]
fn objects_of_others_are_not_deleted_as_orphans() {
    let place = Place::in_files();
    let store = place.create("a.smap");
    store.save("x", &1f32).unwrap();
    place.push(&store);
    let foreign = ["objects/photos/2019.jpg", "objects/report.pdf", "generations/0000000000000003.man"];
    for name in foreign {
        let path = place.path("remote").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"not of a remote").unwrap();
    }
    let orphan = place.path("remote/objects").join("ab".repeat(32));
    std::fs::write(&orphan, b"left by a push that was killed").unwrap();
    let options = PruneOptions::new().orphans(true).grace(Duration::ZERO);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(place.remote.prune(&options).unwrap().object_count, 1);
    assert!(!orphan.exists());
    for name in foreign {
        assert!(place.path("remote").join(name).exists(), "{name}");
    }
    assert_whole(&store);
}

#[test]
fn damaged_generation_in_the_chain_stops_a_prune_until_it_is_deleted() {
    let scene = Scene::new();
    let client = scene.faults.client(Duration::from_secs(5));
    for byte in 1..=3u8 {
        scene.store.save("x", &vec![byte; 5 << 20]).unwrap();
        scene.remote.push(&scene.store, &ignore).unwrap();
    }
    let mut generations = client.list("generations").unwrap();
    generations.sort_by(|a, b| a.name.cmp(&b.name));
    let middle = &generations[generations.len() - 2].name;
    let mut bytes = client.get(middle, 1 << 20).unwrap().unwrap().bytes.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    client.put(middle, bytes.into()).unwrap();
    scene.faults.age(3 * DAY);
    let options = PruneOptions::new().keep_last(1).orphans(true);
    let error = scene.remote.prune(&options).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(middle), "{error}");
    client.delete(middle).unwrap();
    let pruned = scene.remote.prune(&options).unwrap();
    assert!(pruned.freed_bytes >= 10 << 20, "{pruned:?}");
    let long = client.list("objects").unwrap().into_iter().filter(|object| object.length_bytes >= 5 << 20);
    assert_eq!(long.count(), 1);
    scene.check();
}
