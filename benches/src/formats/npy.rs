//! A directory of .npy files.

use std::fs;

use ndarray::{ArrayView, ArrayViewD};
use ndarray_npy::{ViewNpyExt, write_npy};

use super::{Format, touch};
use crate::files::map;

pub(super) const FORMAT: Format = Format {
    label: "ndarray-npy + memmap2",
    extension: "npys",
    most: 1000,
    write: |path, arrays| {
        fs::create_dir(path)?;
        for array in arrays {
            let view = ArrayView::from_shape(&array.size[..], &array.elements)?;
            write_npy(path.join(&array.name), &view)?;
        }
        Ok(())
    },
    read: |path, names| {
        let mut sum = 0.;
        for name in names {
            let map = map(&path.join(name))?;
            let view = ArrayViewD::<f32>::view_npy(&map)?;
            sum += touch(view.as_slice().unwrap_or_default());
        }
        Ok(sum)
    },
};
