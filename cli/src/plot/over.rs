//! Tensors over generations: the minimum, the mean and the maximum in each.

use stridemap::{ErrorKind, Snapshot, Store, Tensor};

use super::figure::{Drawing, Lines, Panel, Point};
use super::surface::Surface;
use crate::error::{Error, Result};
use crate::expr::{self, Copies};
use crate::history::each_tagged;
use crate::names::one_line;
use crate::pieces::steady;
use crate::ui::counted;

/// The maximum number of tags that a caption lists.
const MAX_TAGS: usize = 5;

/// A tensor or view in the generations that have been read.
struct Series<'a> {
    expr: &'a str,
    lines: Lines,
    /// The last view that was read, and its numbers, which are not read again if nothing has changed.
    last: Option<(Tensor, Option<[f64; 3]>)>,
    /// The tags of the generations that are gaps, by the reason.
    gaps: Vec<(&'static str, Vec<String>)>,
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
            let numbers = match &snapshot {
                Ok(snapshot) => series.read(snapshot, &progress),
                Err(_) => Ok(Err(UNREADABLE)),
            };
            let numbers = match numbers {
                Err(Error::Library(e)) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io) => {
                    unreadable.push(format!("{} in {label}: {}", one_line(series.expr), Error::from(e)));
                    Err(UNREADABLE)
                }
                numbers => numbers?,
            };
            series.push(label.clone(), numbers);
        }
        if let Err(e) = snapshot {
            unreadable.push(format!("{label}: {e}"));
        }
        Ok(())
    })?;
    let panels = all.into_iter().map(|series| series.panel(surface)).collect::<Result<_>>()?;
    Ok((panels, unreadable))
}

impl<'a> Series<'a> {
    fn new(expr: &'a str) -> Self {
        Series { expr, lines: Lines { points: Vec::new() }, last: None, gaps: Vec::new() }
    }

    /// Returns the numbers of the view in a generation, or why there are none.
    fn read(
        &mut self,
        snapshot: &Snapshot,
        progress: &impl Fn(u64),
    ) -> Result<Result<[f64; 3], &'static str>> {
        if !expr::has_tensor(self.expr, snapshot)? {
            return Ok(Err(MISSING));
        }
        let view = match expr::view(self.expr, snapshot, Copies::Allowed) {
            Ok((_, view)) => view,
            Err(Error::Refused(_)) => return Ok(Err(OTHER_VIEW)),
            Err(e) => return Err(e),
        };
        let numbers = match &self.last {
            Some((last, numbers)) if is_same(last, &view) => *numbers,
            _ => {
                let (steady, _guard) = steady(&view)?;
                let statistics = steady.statistics(progress)?;
                let limits = statistics.quantile(0.).zip(statistics.quantile(1.));
                limits.zip(statistics.mean()).map(|((min, max), mean)| [min, mean, max])
            }
        };
        self.last = Some((view, numbers));
        Ok(numbers.ok_or(NOT_FINITE))
    }

    fn push(&mut self, label: String, numbers: Result<[f64; 3], &'static str>) {
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
            let why = format!("plot: {expr} cannot be drawn over {generations}: {}", reasons.join(", "));
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
            Surface::Terminal { .. } => "max, mean and min, from above,",
        };
        let mut caption = vec![format!("{lines} {over}")];
        caption.extend(self.gaps.iter().map(|(why, labels)| {
            let shown = labels.iter().take(MAX_TAGS).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = labels.len().saturating_sub(MAX_TAGS);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("gap: {why} in {shown}{more}")
        }));
        let title = format!("{expr}  {}  {:?}", view.dtype(), view.size());
        Ok(Panel { expr, title, drawing: Drawing::Lines(self.lines), caption })
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
