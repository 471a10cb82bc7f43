//! Opens a file and reads one of its tensors.

use serde_json::json;

use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::formats::{self, FORMATS, small_arrays, spread};

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    for count in bench.pick(vec![1, 1000, 100_000, 1_000_000], vec![1, 1000, 100_000]) {
        let name = format!("open/{count}");
        if !bench.wants(&name) {
            continue;
        }
        let mut case = Case::new(name);
        for format in FORMATS.iter().filter(|format| count <= format.most) {
            let path = format.file(bench, &count.to_string(), || small_arrays(count))?;
            let mut opened = 0;
            case = case.add(format.label, move |clock| {
                opened += 1;
                let wanted = spread(opened, count);
                let name = formats::name(wanted);
                let found = clock.time(|| (format.read)(&path, &[&name]))?;
                if found == wanted as f32 { Ok(()) } else { Err(format!("{name}: read {found}").into()) }
            });
        }
        if count <= 1000 {
            let arrays = FORMATS[1].file(bench, &count.to_string(), || small_arrays(count))?;
            let arguments = json!({ "arrays": arrays, "names": [formats::name(spread(1, count))] });
            case = case.add_all(bench.python_formats("read", &arguments)?);
        }
        bench.run(case)?;
    }
    Ok(())
}
