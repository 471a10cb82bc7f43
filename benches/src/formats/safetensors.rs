use std::collections::HashMap;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::{Format, touch};
use crate::Outcome;
use crate::files::map;

pub(super) const FORMAT: Format = Format {
    label: "safetensors + memmap2",
    extension: "safetensors",
    // Its header is at most 100 MB long.
    most: 100_000,
    write: |path, arrays| {
        let views = arrays.iter().map(|array| {
            let bytes = bytemuck::cast_slice(&array.elements);
            Ok((array.name.as_str(), TensorView::new(Dtype::F32, array.size.clone(), bytes)?))
        });
        let views: HashMap<&str, TensorView<'_>> = views.collect::<Outcome<_>>()?;
        Ok(safetensors::serialize_to_file(views, None, path)?)
    },
    read: |path, names| {
        let map = map(path)?;
        let file = SafeTensors::deserialize(&map)?;
        let mut sum = 0.;
        for name in names {
            sum += touch(bytemuck::try_cast_slice(file.tensor(name)?.data()).map_err(|e| e.to_string())?);
        }
        Ok(sum)
    },
};
