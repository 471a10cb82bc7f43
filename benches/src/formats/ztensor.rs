use ztensor::{DType, Source, Writer};

use super::{Format, touch};

pub(super) const FORMAT: Format = Format {
    label: "ztensor",
    extension: "zt",
    // An array takes at least 64 KiB.
    most: 1000,
    write: |path, arrays| {
        let mut writer = Writer::create(path)?;
        for array in arrays {
            let size: Vec<u64> = array.size.iter().map(|&size| size as u64).collect();
            writer.add(&array.name, size, DType::F32, bytemuck::cast_slice(&array.elements))?;
        }
        writer.finish()?;
        Ok(())
    },
    read: |path, names| {
        let source = Source::open(path)?;
        let mut sum = 0.;
        for name in names {
            sum += touch(
                bytemuck::try_cast_slice(source.tensor(name)?.data()?.map()?).map_err(|e| e.to_string())?,
            );
        }
        Ok(sum)
    },
};
