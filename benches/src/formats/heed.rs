//! LMDB: a B+tree in one mapped file. The size of an array is not stored.

use std::fs;
use std::path::Path;

use heed::types::{Bytes, Str};
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};

use super::{Format, touch};
use crate::Outcome;

pub(super) const FORMAT: Format = Format {
    label: "heed (LMDB)",
    extension: "mdb",
    most: 1_000_000,
    write: |path, arrays| {
        fs::create_dir(path)?;
        let env = open(path)?;
        let db = database(&env)?;
        let mut txn = env.write_txn()?;
        for array in arrays {
            db.put(&mut txn, &array.name, bytemuck::cast_slice(&array.elements))?;
        }
        Ok(txn.commit()?)
    },
    read: |path, names| {
        let env = open(path)?;
        let db = database(&env)?;
        let txn = env.read_txn()?;
        let mut sum = 0.;
        for name in names {
            // Values are not aligned to 4 bytes.
            let bytes = db.get(&txn, name)?.ok_or("no such array")?;
            sum += touch(&bytemuck::pod_collect_to_vec::<u8, f32>(bytes));
        }
        Ok(sum)
    },
};

pub(crate) fn open(path: &Path) -> Outcome<Env> {
    let mut options = EnvOpenOptions::new();
    options.map_size(4 << 30);
    // SAFETY: a crash of the system may damage the file, but a file is only read by the run that wrote it.
    unsafe { options.flags(EnvFlags::NO_SYNC) };
    // SAFETY: only this program opens the file, and it never truncates it.
    Ok(unsafe { options.open(path)? })
}

pub(crate) fn database(env: &Env) -> Outcome<Database<'_, Str, Bytes>> {
    let opened = env.open_databases_and_commit(env.read_txn()?, |opener, txn| {
        opener.open_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
    })?;
    opened.unwrap_commit().ok_or_else(|| "an LMDB file always has an unnamed database".into())
}
