//! Plots of durations against sizes.

use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::register_font;

use crate::Outcome;
use crate::bench::Measured;
use crate::case::Unit;
use crate::table;

/// The font of the command line's plots. If both are built together, the crate for plots knows no font but those that are
/// registered.
const FONT: &[u8] = include_bytes!("../../cli/src/plot/roboto/Roboto-Regular-latin.ttf");

/// A plot of the cases whose names are `before`, a number, and `after`.
pub(crate) struct Plot {
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    /// What the number counts.
    axis: &'static str,
    before: &'static str,
    after: &'static str,
}

pub(crate) const PLOTS: &[Plot] = &[
    Plot {
        file: "open.svg",
        title: "Open a file and read one of its tensors",
        axis: "tensors in the file",
        before: "open/",
        after: "",
    },
    Plot {
        file: "load.svg",
        title: "Load one tensor of an open file",
        axis: "tensors in the file",
        before: "load/",
        after: "",
    },
    Plot {
        file: "save.svg",
        title: "Save one tensor, without a sync",
        axis: "MiB",
        before: "save/",
        after: " MiB",
    },
    Plot {
        file: "transpose.svg",
        title: "Copy the transpose of a square matrix, on one processor",
        axis: "bytes per element",
        before: "transpose/4096 x 4096, ",
        after: " bytes on 1",
    },
    Plot {
        file: "scaling-tensors.svg",
        title: "Cost against the tensors of a store",
        axis: "tensors",
        before: "scaling/tensors/",
        after: "",
    },
    Plot {
        file: "scaling-storages.svg",
        title: "Cost against the storages of a store, each with one tensor",
        axis: "storages",
        before: "scaling/storages/",
        after: "",
    },
    Plot {
        file: "scaling-tags.svg",
        title: "Cost against the tags of a store of 1,000 tensors",
        axis: "tags",
        before: "scaling/tags/",
        after: "",
    },
    Plot {
        file: "scaling-readers.svg",
        title: "Cost against the processes that read a store of 1,000 tensors",
        axis: "readers, each of a different generation",
        before: "scaling/readers/",
        after: "",
    },
];

/// The points of a contender: numbers and medians.
type Points = Vec<(f64, f64)>;

impl Plot {
    /// Writes the plot. Returns whether there was anything to plot.
    pub(crate) fn write(&self, dir: &Path, results: &[Measured]) -> Outcome<bool> {
        let series = self.series(results);
        let all: Points = series.iter().flat_map(|(_, points)| points.clone()).collect();
        if series.iter().all(|(_, points)| points.len() < 2) {
            return Ok(false);
        }
        let span = |pick: fn(&(f64, f64)) -> f64, low: f64, high: f64| {
            let values = all.iter().map(pick);
            values.clone().fold(f64::INFINITY, f64::min) * low..values.fold(0., f64::max) * high
        };
        // The names of the contenders are to the right of the last points.
        let Range { start, end } = span(|it| it.0, 1., 1.);
        let sizes = start..end * (end / start).powf(0.4);
        let path = dir.join(self.file);
        register_font("sans-serif", FontStyle::Normal, FONT).map_err(|_| "read the font of the plots")?;
        let area = SVGBackend::new(&path, (800, 500)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 20))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(sizes.log_scale(), span(|it| it.1, 0.5, 2.).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.axis)
            .x_max_light_lines(1)
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| table::measure(*y, Unit::Seconds))
            .draw()?;
        for (at, (label, points)) in series.into_iter().enumerate() {
            let color = Palette99::pick(at);
            let style = color.stroke_width(if at == 0 { 4 } else { 2 });
            chart
                .draw_series(LineSeries::new(points, style).point_size(3))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(3)));
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
        area.present()?;
        Ok(true)
    }

    /// Returns the points of each contender, sorted by number.
    fn series(&self, results: &[Measured]) -> Vec<(String, Points)> {
        let mut series: Vec<(String, Points)> = Vec::new();
        for case in results {
            let Some(number) = self.number(&case.name) else { continue };
            for contender in &case.contenders {
                let point = (number, contender.measure.median);
                match series.iter_mut().find(|(label, _)| *label == contender.label) {
                    Some((_, points)) => points.push(point),
                    None => series.push((contender.label.clone(), vec![point])),
                }
            }
        }
        series
    }

    /// Returns the number in the name of a case. A logarithmic axis has no place for 0.
    fn number(&self, name: &str) -> Option<f64> {
        let number = name.strip_prefix(self.before)?.strip_suffix(self.after)?.parse().ok()?;
        (number > 0.).then_some(number)
    }
}
