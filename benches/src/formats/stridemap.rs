use ndarray::ArrayViewD;
use stridemap::{Durability, StoreOptions};

use super::{Format, touch};
use crate::files::open_mapped;

pub(super) const FORMAT: Format = Format {
    label: "stridemap",
    extension: "smap",
    most: 1_000_000,
    write: |path, arrays| {
        let store = StoreOptions::new().durability(Durability::Process).create(path)?;
        let mut txn = store.begin()?;
        for array in arrays {
            txn.save(&array.name, &ArrayViewD::from_shape(&array.size[..], &array.elements)?)?;
        }
        txn.commit()?;
        Ok(())
    },
    read: |path, names| {
        let store = open_mapped(path)?;
        let mut sum = 0.;
        for name in names {
            sum += touch(store.load(name)?.as_slice()?);
        }
        Ok(sum)
    },
};
