//! Printing in PyTorch's format.

use std::fmt;
use std::ops::Range;

use stridemap_format::DType;

use super::{F8E8M0FNU, Scalar, Tensor};
use crate::error::{Error, ErrorKind, Result};

/// The limit on the number of shown elements times the number of dimensions. Longer texts are refused: even a summary
/// is long if there are many small dimensions.
const MAX_SHOWN: usize = 1 << 22;
const PREFIX: &str = "tensor(";

/// How a tensor is printed by [`Tensor::to_text`]. The options and their defaults are those of
/// `torch.set_printoptions`.
///
/// ```
/// # use stridemap::{PrintOptions, Tensor};
/// let x = Tensor::from_vec(vec![0.5f32, 1. / 3.], &[2])?;
/// let options = PrintOptions { precision: 2, ..PrintOptions::default() };
/// assert_eq!(x.to_text(&options)?, "tensor([0.50, 0.33])");
/// # Ok::<(), stridemap::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PrintOptions {
    /// The number of digits after the decimal point: by default 4, and at most 1,000.
    pub precision: usize,
    /// The number of elements beyond which a tensor is summarized: by default 1000. With `usize::MAX`, all elements
    /// are printed.
    pub threshold: usize,
    /// The number of elements that a summary shows at each edge of a dimension: by default 3, and at least 1.
    pub edge_items: usize,
    /// The number of characters after which a line is broken: by default 80. A line has at least one element, even if
    /// that is longer.
    pub line_width: usize,
}

impl PrintOptions {
    /// Returns the positions of a dimension that are shown, as up to two ranges.
    fn shown_ranges(&self, n: usize, is_summary: bool) -> [Range<usize>; 2] {
        let edge = self.edge_items.max(1);
        match n.checked_sub(edge) {
            Some(last) if is_summary && last > edge => [0..edge, last..n],
            _ => [0..n, 0..0],
        }
    }
}

impl Default for PrintOptions {
    fn default() -> Self {
        PrintOptions { precision: 4, threshold: 1000, edge_items: 3, line_width: 80 }
    }
}

impl Tensor {
    /// Returns the values in PyTorch's printed format, by default summarized beyond 1000 elements. Reads only the
    /// elements that are shown. `to_string` prints with the default options.
    ///
    /// Names of dimensions follow the dtype, as in PyTorch until 2.13. There are two differences from PyTorch:
    /// `dtype=float16` has no `torch.` prefix, and an element of `float4_e2m1fn_x2` is shown as its two numbers
    /// instead of its byte.
    ///
    /// ```
    /// # use stridemap::{PrintOptions, Tensor};
    /// let x = Tensor::from_vec(vec![1f64, 2.5, 3., 4.], &[2, 2])?;
    /// let text = x.to_text(&PrintOptions::default())?;
    /// assert_eq!(text, "tensor([[1.0000, 2.5000],\n        [3.0000, 4.0000]], dtype=float64)");
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::LimitExceeded`] if even a summary is too long; [`ErrorKind::Busy`] for a locked
    /// mutable tensor.
    pub fn to_text(&self, options: &PrintOptions) -> Result<String> {
        let mut suffixes = Vec::new();
        let (body, is_default_dtype) = if self.numel() == 0 {
            if self.ndim() != 1 {
                suffixes.push(format!("size={}", python_tuple(self.size().iter())));
            }
            ("[]".to_owned(), self.dtype() == DType::F32)
        } else {
            let is_summary = self.numel() > options.threshold;
            let shown_sizes =
                self.size().iter().map(|&n| options.shown_ranges(n, is_summary).iter().map(Range::len).sum());
            let work = [self.ndim()].into_iter().chain(shown_sizes).try_fold(1usize, usize::checked_mul);
            if work.is_none_or(|work| work > MAX_SHOWN) {
                return Err(Error::new(
                    ErrorKind::LimitExceeded,
                    format!(
                        "print: size {:?} has too many elements to print{}; print a part",
                        self.size(),
                        if is_summary { ", even in a summary" } else { "" }
                    ),
                ));
            }
            let mut shown = Vec::new();
            collect_shown(&*self.steady()?, (options, is_summary), &mut shown)?;
            let printer = Printer {
                columns: Columns::of(self.dtype(), &shown, options.precision.min(1000)),
                options,
                is_summary,
            };
            let is_default = matches!(self.dtype(), DType::F32 | DType::I64 | DType::Bool | DType::C64);
            (printer.tensor(self.size(), &mut shown.iter(), PREFIX.len()), is_default)
        };
        if !is_default_dtype {
            suffixes.push(format!("dtype={}", self.dtype()));
        }
        if self.header().dim_names().is_some() {
            let name = |name: Option<&str>| name.map_or("None".to_owned(), |name| format!("'{name}'"));
            suffixes.push(format!("names={}", python_tuple(self.names().into_iter().map(name))));
        }
        Ok(with_suffixes(format!("{PREFIX}{body}"), &suffixes, options.line_width))
    }
}

/// Prints the tensor like [`to_text`](Tensor::to_text). If an element cannot be read, this prints the error instead.
/// The elements of a mutable tensor are read under its lock, so this may wait for as long as the lock timeout. `Debug`
/// reads no elements and takes no lock.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_text(&PrintOptions::default()) {
            Ok(text) => f.write_str(&text),
            Err(e) => write!(f, "{PREFIX}<{e}>)"),
        }
    }
}

fn python_tuple(items: impl Iterator<Item: ToString>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    let comma = if items.len() == 1 { "," } else { "" };
    format!("({}{comma})", items.join(", "))
}

fn with_suffixes(mut text: String, suffixes: &[String], line_width: usize) -> String {
    // PyTorch counts the last newline as part of the line, and counts the first line as if a newline preceded it.
    let mut last_line = text.rfind('\n').map_or(text.len() + 2, |newline| text.len() - newline + 1);
    for suffix in suffixes {
        // Lines must break where PyTorch's do, and PyTorch writes `dtype=torch.float16`.
        let width = suffix.len() + if suffix.starts_with("dtype=") { "torch.".len() } else { 0 };
        if last_line + width + 2 > line_width {
            text += &format!(",\n{}{suffix}", " ".repeat(PREFIX.len()));
            last_line = PREFIX.len() + width;
        } else {
            text += &format!(", {suffix}");
            last_line += width + 2;
        }
    }
    text + ")"
}

fn collect_shown(
    view: &Tensor,
    (options, is_summary): (&PrintOptions, bool),
    out: &mut Vec<Scalar>,
) -> Result<()> {
    let Some(&n) = view.size().first() else {
        out.extend(view.to_scalars()?);
        return Ok(());
    };
    for range in options.shown_ranges(n, is_summary) {
        if view.ndim() == 1 {
            out.extend(view.narrow(0, range.start, range.len())?.to_scalars()?);
        } else {
            for position in range {
                collect_shown(&view.select(0, position)?, (options, is_summary), out)?;
            }
        }
    }
    Ok(())
}

struct Printer<'o> {
    columns: Columns,
    options: &'o PrintOptions,
    is_summary: bool,
}

impl Printer<'_> {
    fn tensor<'a>(
        &self,
        size: &[usize],
        values: &mut impl Iterator<Item = &'a Scalar>,
        indent: usize,
    ) -> String {
        match size {
            [] => values.next().map(|value| self.columns.format(*value)).unwrap_or_default(),
            [n] => self.vector(*n, values, indent),
            [n, inner @ ..] => {
                let between = format!(",{}{}", "\n".repeat(inner.len()), " ".repeat(indent + 1));
                let mut parts = Vec::new();
                for (half, range) in self.options.shown_ranges(*n, self.is_summary).into_iter().enumerate() {
                    if half == 1 && !range.is_empty() {
                        parts.push("...".to_owned());
                    }
                    parts.extend(range.map(|_| self.tensor(inner, values, indent + 1)));
                }
                format!("[{}]", parts.join(&between))
            }
        }
    }

    fn vector<'a>(&self, n: usize, values: &mut impl Iterator<Item = &'a Scalar>, indent: usize) -> String {
        let room = self.options.line_width.saturating_sub(indent);
        let per_line = (room / (self.columns.width() + 2)).max(1);
        let mut parts = Vec::new();
        for (half, range) in self.options.shown_ranges(n, self.is_summary).into_iter().enumerate() {
            if half == 1 && !range.is_empty() {
                parts.push(" ...".to_owned());
            }
            parts.extend(values.by_ref().take(range.len()).map(|value| self.columns.format(*value)));
        }
        let lines: Vec<String> = parts.chunks(per_line).map(|line| line.join(", ")).collect();
        format!("[{}]", lines.join(&format!(",\n{}", " ".repeat(indent + 1))))
    }
}

/// The format that aligns the values of one tensor in columns.
enum Columns {
    /// Integers, bools and pairs, padded to a width.
    Plain(usize),
    Real(Real),
    Complex(Real, Real),
}

impl Columns {
    fn of(dtype: DType, shown: &[Scalar], precision: usize) -> Columns {
        // PyTorch rounds 0 to the dtype before it looks for zeros, so the lowest number of `float8_e8m0fnu` counts as
        // zero.
        let zero = if dtype == DType::F8E8M0FNU { f32::from(F8E8M0FNU::from(0.)).into() } else { 0. };
        let format_of =
            |pick: fn(&Scalar) -> Option<f64>| Real::of(shown.iter().filter_map(pick), zero, precision);
        if dtype.is_complex() {
            let real = format_of(|value| if let Scalar::Complex(re, _) = value { Some(*re) } else { None });
            let imag = format_of(|value| if let Scalar::Complex(_, im) = value { Some(*im) } else { None });
            return Columns::Complex(real, imag);
        }
        match shown.first() {
            Some(Scalar::Float(_)) => {
                Columns::Real(format_of(|value| if let Scalar::Float(x) = value { Some(*x) } else { None }))
            }
            _ => Columns::Plain(shown.iter().map(|value| plain_text(*value).len()).max().unwrap_or(1)),
        }
    }

    fn width(&self) -> usize {
        match self {
            Columns::Plain(width) => *width,
            Columns::Real(real) => real.width,
            Columns::Complex(real, imag) => real.width + imag.width + 1,
        }
    }

    fn format(&self, value: Scalar) -> String {
        match (self, value) {
            (Columns::Real(real), Scalar::Float(x)) => {
                format!("{:>width$}", real.format(x), width = real.width)
            }
            (Columns::Complex(real, imag), Scalar::Complex(re, im)) => {
                let re = format!("{:>width$}", real.format(re), width = real.width);
                let im = imag.format(im) + "j";
                let sign = if im.starts_with(['-', '+']) { "" } else { "+" };
                format!("{re}{sign}{im}")
            }
            (columns, value) => format!("{:>width$}", plain_text(value), width = columns.width()),
        }
    }
}

pub(super) fn plain_text(value: Scalar) -> String {
    match value {
        Scalar::Bool(true) => "True".to_owned(),
        Scalar::Bool(false) => "False".to_owned(),
        Scalar::Int(n) => n.to_string(),
        Scalar::Float(x) => format!("{x:?}"),
        Scalar::Complex(re, im) | Scalar::Pair(re, im) => format!("({re}, {im})"),
    }
}

/// The format of all numbers of a tensor: PyTorch's choice of `1.`, `1.2346` or `1.2346e+00`.
struct Real {
    is_integral: bool,
    is_scientific: bool,
    /// The number of digits after the decimal point.
    precision: usize,
    width: usize,
}

impl Real {
    fn of(values: impl Iterator<Item = f64> + Clone, zero: f64, precision: usize) -> Real {
        let counted = || values.clone().filter(|x| x.is_finite() && *x != zero);
        let smallest = counted().map(f64::abs).fold(f64::INFINITY, f64::min);
        let largest = counted().map(f64::abs).fold(0., f64::max);
        let is_integral = counted().all(|x| x == x.ceil());
        let is_wide = largest / smallest > 1000. || largest > 1e8;
        let is_scientific = largest > 0. && (is_wide || (!is_integral && smallest < 1e-4));
        let mut real = Real { is_integral, is_scientific, precision, width: 1 };
        real.width = counted().map(|x| real.format(x).len()).max().unwrap_or(1);
        real
    }

    fn format(&self, x: f64) -> String {
        let precision = self.precision;
        if x.is_nan() {
            "nan".to_owned()
        } else if self.is_scientific && x.is_finite() {
            let text = format!("{x:.precision$e}");
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        } else if !x.is_finite() {
            if x > 0. { "inf".to_owned() } else { "-inf".to_owned() }
        } else if self.is_integral {
            format!("{x:.0}.")
        } else {
            format!("{x:.precision$}")
        }
    }
}
