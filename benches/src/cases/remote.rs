//! Pushes a store to object storage and pulls it, beside obstore with the same bytes and as many requests at a time.

use std::cell::Cell;

use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as ObjectPath;
use serde_json::json;
use stridemap_remote::{Done, Remote, RemoteOptions};

use super::save::{MIB, remove};
use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::files::unsynced;

/// The number of requests at a time.
const JOBS: usize = 8;

const PEER: &str = "obstore (Python)";

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let Some(url) = bench.remote() else { return Ok(()) };
    let mib = bench.remote_mib();
    let (push, pull) = (format!("remote/push {mib} MiB"), format!("remote/pull {mib} MiB"));
    if !bench.wants(&push) && !bench.wants(&pull) {
        return Ok(());
    }
    let source = bench.scratch()?;
    let path = source.path().join("x.smap");
    let store = unsynced().create(&path)?;
    for part in 0..mib.div_ceil(64) {
        let mut random = fastrand::Rng::with_seed(part as u64);
        let elements: Vec<u64> = (0..mib.min(64) * MIB / 8).map(|_| random.u64(..)).collect();
        store.save(&format!("x{part}"), &elements)?;
    }
    let files: Vec<_> = std::fs::read_dir(path.join("storages"))?
        .map(|file| Ok(file?.path()))
        .collect::<Outcome<Vec<_>>>()?
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "bin"))
        .collect();
    let arguments = json!({ "url": format!("{url}/plain"), "files": files, "jobs": JOBS });
    if bench.wants(&push) {
        let round = Cell::new(0);
        let case = Case::new(&push)
            .add("stridemap", |clock| {
                let target = format!("{url}/push{}", round.replace(round.get() + 1));
                // A store remembers where it was pushed, so each round pushes to a new URL.
                let remote = open(&target)?;
                clock.time(|| Ok(remote.push(&store, &ignore)?))?;
                delete_all(&target)
            })
            .add_all(bench.python(PEER, "put_obstore", arguments.clone())?)
            .at_most_times(1. / 0.9, PEER);
        bench.run(case)?;
    }
    if bench.wants(&pull) {
        let target = format!("{url}/pull");
        delete_all(&target)?;
        let remote = open(&target)?;
        remote.push(&store, &ignore)?;
        let scratch = bench.scratch()?;
        let pulled = scratch.path().join("pulled.smap");
        let mut arguments = arguments;
        arguments["dir"] = json!(scratch.path());
        let case = Case::new(&pull)
            .add("stridemap", |clock| {
                clock.time(|| Ok(remote.pull_with(&pulled, unsynced(), &ignore)?))?;
                remove(&pulled)
            })
            .add_all(bench.python(PEER, "get_obstore", arguments)?)
            .at_most_times(1. / 0.9, PEER);
        bench.run(case)?;
        delete_all(&target)?;
    }
    Ok(())
}

fn open(url: &str) -> Outcome<Remote> {
    Ok(RemoteOptions::new().jobs(JOBS).open(url)?)
}

fn ignore(_: Done) -> stridemap::Result<()> {
    Ok(())
}

/// Deletes all objects below a URL: a server that keeps them in memory would otherwise need more each round.
fn delete_all(url: &str) -> Outcome {
    let (bucket, prefix) = url.trim_start_matches("s3://").split_once('/').ok_or("a URL without a path")?;
    let store = AmazonS3Builder::from_env().with_bucket_name(bucket).build()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let prefix = ObjectPath::from(prefix);
        let found: Vec<_> = store.list(Some(&prefix)).try_collect().await?;
        for object in found {
            object_store::ObjectStoreExt::delete(&store, &object.location).await?;
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    Ok(())
}
