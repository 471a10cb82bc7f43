//! `view` with a pattern: many tensors as one, and one tensor as many.

use stridemap::{Snapshot, Tensor, TensorInfo, Transaction};

use crate::error::{Error, Result};
use crate::expr;
use crate::expr::Copies;
use crate::names::{Numbered, PLACE, Run, fill, natural, one_line, quoted, shell_word};
use crate::plan::header;
use crate::ui::message;

/// The end of an expression that stands for each position of the first dimension.
const EACH: &str = "[{}]";

/// The maximum number of views that are saved at once.
const MAX_VIEWS: usize = 100_000;

/// A view to save.
pub(super) struct Planned {
    /// What it is a view of, for a message.
    pub(super) what: String,
    pub(super) view: Tensor,
    pub(super) new: String,
}

/// Returns one view of all tensors that match a pattern with `{}`, for each combination of its numbers but the last.
pub(super) fn stacks(
    (pattern, new): (&str, &str),
    (txn, snapshot): (&Transaction<'_>, &Snapshot),
) -> Result<Vec<Planned>> {
    let told = |e: Error| Error::Refused(format!("view --stack: {e}"));
    let pattern = Numbered::parse(pattern).map_err(told)?;
    check_places(new, pattern.count() - 1, "one for each {} of the pattern but the last")?;
    let mut infos = Vec::new();
    for info in snapshot.iter_tensors(pattern.prefix())? {
        infos.extend(Some(info?).filter(|info| pattern.numbers(&info.name).is_some()));
    }
    let runs = pattern.runs(infos.iter().map(|info| info.name.clone())).map_err(told)?;
    if runs.is_empty() {
        return Err(Error::NoMatch(format!("view --stack: no tensor matches {:?}", pattern.text)));
    }
    // They are in ascending order of name.
    let info = |name: &String| {
        let index = infos.binary_search_by(|info| info.name.cmp(name)).ok()?;
        infos.get(index)
    };
    let planned = |run: Run| {
        let members: Vec<&TensorInfo> = run.names.iter().filter_map(info).collect();
        let new = fill(new, run.others.iter().cloned());
        if let Some(first) = members.first().filter(|_| run.first > 0) {
            let (new, first) = (quoted(&new), quoted(&first.name));
            message(&format!("note: the tensor at position 0 of {new} is {first}"));
        }
        let view = stacked(&members, txn).map_err(|why| match why {
            Uneven::Unlike(why) => told(Error::Refused(format!("{why}; a tensor has one dtype and one size"))),
            Uneven::Apart(why) => told(Error::Refused(format!(
                "{why}, and a view needs them at equal distances in one storage; import their files with --fuse {}, \
                 which stores them one after another",
                shell_word(&pattern.text)
            ))),
            Uneven::Other(e) => e,
        })?;
        let last = run.others.iter().cloned().chain([PLACE.to_owned()]);
        Ok(Planned { what: one_line(&fill(&pattern.text, last)), view, new })
    };
    runs.into_iter().map(planned).collect()
}

/// Why no view has all of some tensors.
enum Uneven {
    /// They could not be in one tensor.
    Unlike(String),
    /// They do not lie at equal distances.
    Apart(String),
    Other(Error),
}

/// Returns one view of tensors that lie at equal distances in a storage. The new dimension is the first.
fn stacked(infos: &[&TensorInfo], txn: &Transaction<'_>) -> Result<Tensor, Uneven> {
    let distance = distance(infos)?;
    let Some(first) = infos.first() else { return Err(Uneven::Unlike("there is no tensor".to_owned())) };
    let header = &first.header;
    let size = [&[infos.len()][..], header.size()].concat();
    let stride = [&[distance][..], header.stride()].concat();
    let view = || {
        let view = txn.load(&first.name)?.as_strided(size, stride, header.storage_offset())?;
        match header.dim_names() {
            None => Ok(view),
            Some(names) => {
                view.rename(&[None].into_iter().chain(names.iter().map(Option::as_deref)).collect::<Vec<_>>())
            }
        }
    };
    view().map_err(|e: stridemap::Error| Uneven::Other(e.into()))
}

/// Returns how many elements each tensor begins after the one before it.
fn distance(infos: &[&TensorInfo]) -> Result<isize, Uneven> {
    let Some((first, others)) = infos.split_first() else { return Ok(0) };
    let (a, name) = (&first.header, quoted(&first.name));
    for other in others {
        let b = &other.header;
        if (a.dtype(), a.size(), a.dim_names()) != (b.dtype(), b.size(), b.dim_names()) {
            let (a, b) = (header(first), header(other));
            return Err(Uneven::Unlike(format!("{name} is {a}, but {} is {b}", quoted(&other.name))));
        }
    }
    let apart = |is_apart: &dyn Fn(&TensorInfo) -> bool, [one, many]: [&str; 2]| {
        let mut apart = others.iter().filter(|info| is_apart(info));
        let Some(example) = apart.next().map(|info| quoted(&info.name)) else { return Ok(()) };
        Err(Uneven::Apart(match apart.count() {
            0 => format!("{example} {one} than {name}"),
            count => format!("{example} and {count} more {many} than {name}"),
        }))
    };
    let in_another = ["is in another storage", "are in another storage"];
    apart(&|info| info.storage_id != first.storage_id, in_another)?;
    apart(&|info| info.header.stride() != a.stride(), ["has another stride", "have another stride"])?;
    let place = |info: &TensorInfo| info.header.storage_offset() as i128;
    let Some(second) = others.first() else { return Ok(a.numel() as isize) };
    let distance = place(second) - place(first);
    for pair in infos.windows(2) {
        let [before, after] = pair else { continue };
        if place(after) - place(before) != distance {
            let bytes =
                |from: &TensorInfo, to: &TensorInfo| (place(to) - place(from)) * a.dtype().itemsize() as i128;
            return Err(Uneven::Apart(format!(
                "{} begins {} bytes after {}, but {} begins {} bytes after {name}",
                quoted(&after.name),
                bytes(before, after),
                quoted(&before.name),
                quoted(&second.name),
                bytes(first, second),
            )));
        }
    }
    isize::try_from(distance).map_err(|_| Uneven::Apart(format!("{name} is too far from the next")))
}

/// Returns the views of the positions of a tensor's first dimension, if the expression ends with `[{}]`. Each `{}` before
/// it stands for a number in names of tensors.
pub(super) fn parts(
    (expr, new): (&str, &str),
    (txn, snapshot): (&Transaction<'_>, &Snapshot),
) -> Result<Option<Vec<Planned>>> {
    let Some(whole) = expr.strip_suffix(EACH) else { return Ok(None) };
    if txn.contains(expr)? {
        return Ok(None);
    }
    let mut wholes = Vec::new();
    if whole.contains(PLACE) && !txn.contains(whole)? {
        let pattern = Numbered::parse(whole).map_err(|e| Error::Refused(format!("view: {e}")))?;
        for info in snapshot.iter_tensors(pattern.prefix())? {
            let name = info?.name;
            let numbers =
                pattern.numbers(&name).map(|numbers| numbers.into_iter().map(str::to_owned).collect());
            wholes.extend(numbers.map(|numbers: Vec<String>| (name, numbers)));
        }
        if wholes.is_empty() {
            return Err(Error::NoMatch(format!("view: no tensor matches {whole:?}")));
        }
        wholes.sort_by(|(a, _), (b, _)| natural(a, b));
    } else {
        wholes.push((whole.to_owned(), Vec::new()));
    }
    let places = wholes.first().map_or(0, |(_, numbers)| numbers.len()) + 1;
    check_places(new, places, "one for each {} of the expression")?;
    let mut planned = Vec::new();
    for (name, numbers) in wholes {
        let (_, view) = expr::view(&name, txn, Copies::Refused)?;
        let Some(&count) = view.size().first() else {
            return Err(Error::Refused(format!("view: {} has no dimensions", one_line(&name))));
        };
        if count > MAX_VIEWS - planned.len() {
            let why = format!("view: {expr} stands for more than {MAX_VIEWS} views, the most at once");
            return Err(Error::Refused(why));
        }
        for (index, view) in view.unbind(0)?.into_iter().enumerate() {
            let new = fill(new, numbers.iter().cloned().chain([index.to_string()]));
            planned.push(Planned { what: format!("{}[{index}]", one_line(&name)), view, new });
        }
    }
    Ok(Some(planned))
}

/// Refuses a new name that does not have this many `{}`, or in which two of them are not told apart: with `a{}{}`, the numbers
/// 1 and 12 lead to the same name as 11 and 2.
fn check_places(new: &str, count: usize, wanted: &str) -> Result<()> {
    let refused = |why: String| Err(Error::Refused(format!("view: the new name {new:?} {why}")));
    let found = new.matches(PLACE).count();
    if found != count {
        return refused(format!("has {found} {{}}, and needs {count}: {wanted}"));
    }
    let mut between = new.split(PLACE).skip(1).take(found.saturating_sub(1));
    if between.any(|literal| literal.chars().all(|c| c.is_ascii_digit())) {
        let why = "has two {} with nothing but digits between them, so it is not certain where a number ends";
        return refused(why.to_owned());
    }
    Ok(())
}
