//! Tensors over generations: the minimum, the mean and the maximum in each.

use stridemap::{ErrorKind, Snapshot, Store, Tensor};

use super::figure::{Drawing, Lines, Panel, Point};
use super::surface::Surface;
use crate::error::{Error, Result};
use crate::expr::{self, Copies};
use crate::history::each_tagged;
use crate::names::one_line;
use crate::pieces::steady;
use crate::ui::{counted, warn};

/// The maximum number of tags that a caption lists.
const MAX_TAGS: usize = 5;

/// A tensor or view in the generations that have been read.
struct Series<'a> {
    expr: &'a str,
    lines: Lines,
    /// The last view that was read, and what was found, which is not read again if nothing has changed.
    last: Option<(Tensor, Found)>,
    /// The generations with elements that are not finite beside those that are.
    not_finite: Vec<String>,
    /// The tags of the generations that are gaps, by the reason.
    gaps: Vec<(&'static str, Vec<String>)>,
    /// Why the expression did not fit at first.
    mistake: Option<String>,
}

/// What was found in a view.
#[derive(Clone, Copy)]
struct Found {
    /// The minimum, the mean and the maximum of the finite elements.
    numbers: Option<[f64; 3]>,
    is_finite: bool,
}

const MISSING: &str = "no such tensor";
const NOT_FINITE: &str = "no finite element";
const OTHER_VIEW: &str = "the expression does not fit";
const UNREADABLE: &str = "cannot be read";

/// Returns the panels of the expressions, and the reasons for what cannot be read.
pub(super) fn panels(
    exprs: &[String],
    store: &Store,
    tags: &str,
    surface: Surface,
    progress: impl Fn(u64),
) -> Result<(Vec<Panel>, Vec<String>)> {
    let mut all: Vec<Series<'_>> = exprs.iter().map(|expr| Series::new(expr)).collect();
    let mut unreadable = Vec::new();
    each_tagged(store, tags, |label, snapshot| {
        for series in &mut all {
            let found = match &snapshot {
                Ok(snapshot) => series.read(snapshot, &progress),
                Err(_) => Ok(Err(UNREADABLE)),
            };
            let found = match found {
                Err(Error::Library(e)) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io) => {
                    unreadable.push(format!("{} in {label}: {}", one_line(series.expr), Error::from(e)));
                    Err(UNREADABLE)
                }
                found => found?,
            };
            series.push(label.clone(), found);
        }
        if let Err(e) = snapshot {
            unreadable.push(format!("{label}: {e}"));
        }
        Ok(())
    })?;
    match all.into_iter().map(|series| series.panel(surface)).collect() {
        Ok(panels) => Ok((panels, unreadable)),
        Err(e) => {
            // The error says only that there is nothing to draw.
            unreadable.iter().for_each(|why| warn(&format!("plot: {why}")));
            Err(e)
        }
    }
}

impl<'a> Series<'a> {
    fn new(expr: &'a str) -> Self {
        Series {
            expr,
            lines: Lines { points: Vec::new() },
            last: None,
            not_finite: Vec::new(),
            gaps: Vec::new(),
            mistake: None,
        }
    }

    /// Returns the numbers of the view in a generation, or why there are none.
    fn read(&mut self, snapshot: &Snapshot, progress: &impl Fn(u64)) -> Result<Result<Found, &'static str>> {
        if !expr::has_tensor(self.expr, snapshot)? {
            return Ok(Err(MISSING));
        }
        let view = match expr::view(self.expr, snapshot, Copies::Allowed) {
            Ok((_, view)) => view,
            Err(Error::Refused(why)) => {
                self.mistake.get_or_insert(why);
                return Ok(Err(OTHER_VIEW));
            }
            Err(e) => return Err(e),
        };
        let found = match &self.last {
            Some((last, found)) if is_same(last, &view) => *found,
            _ => {
                let (steady, _guard) = steady(&view)?;
                let statistics = steady.statistics(progress)?;
                let limits = statistics.quantile(0.).zip(statistics.quantile(1.));
                let numbers = limits.zip(statistics.mean()).map(|((min, max), mean)| [min, mean, max]);
                Found { numbers, is_finite: statistics.finite_count() == statistics.count }
            }
        };
        self.last = Some((view, found));
        Ok(Ok(found))
    }

    fn push(&mut self, label: String, found: Result<Found, &'static str>) {
        let numbers = found.and_then(|found| found.numbers.ok_or(NOT_FINITE));
        if numbers.is_ok() && found.is_ok_and(|found| !found.is_finite) {
            self.not_finite.push(label.clone());
        }
        if let Err(why) = numbers {
            match self.gaps.iter_mut().find(|(other, _)| *other == why) {
                Some((_, labels)) => labels.push(label.clone()),
                None => self.gaps.push((why, vec![label.clone()])),
            }
        }
        self.lines.points.push(Point { label, numbers: numbers.ok() });
    }

    fn panel(self, surface: Surface) -> Result<Panel> {
        let expr = one_line(self.expr);
        let points = &self.lines.points;
        let count = points.iter().filter(|point| point.numbers.is_some()).count();
        let Some((view, _)) = self.last.filter(|_| count > 0) else {
            let reasons: Vec<_> = self.gaps.iter().map(|(why, _)| *why).collect();
            let generations = counted(points.len() as u64, "generation");
            let mut why = format!("plot: {expr} cannot be drawn over {generations}: {}", reasons.join(", "));
            if let Some(mistake) = self.mistake {
                why += &format!("\n{mistake}");
            }
            return Err(Error::Refused(why));
        };
        let ends = [points.first(), points.last()].map(|point| point.map_or("", |point| &point.label[..]));
        let over = match points.len() {
            1 => format!("in {}", ends[0]),
            count => format!("in {count} generations, from {} to {}", ends[0], ends[1]),
        };
        let lines = match surface {
            Surface::Image { .. } => "max (red), mean (gray) and min (blue)",
            Surface::Terminal { has_color: true, .. } => "max (red), mean and min (blue)",
            Surface::Terminal { .. } => "from above: max, mean and min,",
        };
        let mut caption = vec![format!("{lines} {over}")];
        if !self.not_finite.is_empty() {
            caption.push(format!("NaN or infinities, not shown, in {}", first_of(&self.not_finite)));
        }
        caption.extend(self.gaps.iter().map(|(why, labels)| format!("gap: {why} in {}", first_of(labels))));
        let title = format!("{expr}  {}  {:?}", view.dtype(), view.size());
        Ok(Panel { expr, title, drawing: Drawing::Lines(self.lines), caption })
    }
}

/// Returns the first of some tags, and how many more there are.
fn first_of(labels: &[String]) -> String {
    let shown = labels.iter().take(MAX_TAGS).map(String::as_str).collect::<Vec<_>>().join(", ");
    match labels.len().saturating_sub(MAX_TAGS) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns whether two views are the same elements of the same storage.
fn is_same(one: &Tensor, other: &Tensor) -> bool {
    let place = |view: &Tensor| (view.storage_id(), view.dtype(), view.storage_offset());
    one.storage_id().is_some()
        && place(one) == place(other)
        && (one.size(), one.stride()) == (other.size(), other.stride())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use stridemap::Transaction;

    use super::*;

    #[test]
    fn elements_that_have_not_changed_are_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path().join("s.smap")).unwrap();
        for (tag, elements) in
            [("a", Some([1f32, 2., 3.])), ("b", None), ("c", Some([4., 5., 9.])), ("d", None)]
        {
            let save = |txn: &mut Transaction<'_>| {
                if let Some(elements) = elements {
                    let _ = txn.remove("w");
                    txn.save("w", &elements)?;
                }
                txn.tag(tag)
            };
            store.write(save).unwrap();
        }
        let read_bytes = Cell::new(0);
        let surface = Surface::Image { most_blocks: 8, max_side: 8 };
        let exprs = ["w".to_owned(), "w[1:]".to_owned()];
        let count = |bytes| read_bytes.set(read_bytes.get() + bytes);
        let (panels, unreadable) = panels(&exprs, &store, "*", surface, count).unwrap();
        assert!(unreadable.is_empty());
        assert_eq!(read_bytes.get(), 2 * (12 + 8));
        let numbers = |panel: &Panel| match &panel.drawing {
            Drawing::Lines(lines) => {
                lines.points.iter().filter_map(|point| point.numbers).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        };
        assert_eq!(numbers(&panels[0]), [[1., 2., 3.], [1., 2., 3.], [4., 6., 9.], [4., 6., 9.]]);
        assert_eq!(numbers(&panels[1]), [[2., 2.5, 3.], [2., 2.5, 3.], [5., 7., 9.], [5., 7., 9.]]);
    }
}
