//! Tensors whose names describe their elements, so that any process can check that it reads the right ones.

use std::fmt;
use std::str::FromStr;

use ndarray::ArrayViewD;
use stridemap::{DType, Element, ErrorKind, Tensor};

use crate::random::{Random, mixed};

const DTYPES: [(DType, &str); 6] = [
    (DType::U8, "u8"),
    (DType::I16, "i16"),
    (DType::F32, "f32"),
    (DType::I64, "i64"),
    (DType::C64, "c64"),
    (DType::C128, "c128"),
];

/// A matrix, and a chain of views of it. An example name: `any/f32.1c2d3e4f.12x34.t.s1:9:3#2`. A `+12x34` matrix grows
/// by 12 rows at a time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Content {
    dtype: (DType, &'static str),
    seed: u32,
    rows: usize,
    columns: usize,
    grows: bool,
    views: Vec<View>,
}

/// A step from a matrix to a view of it. All but the transpose act on the first axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum View {
    Transposed,
    Slice { start: usize, end: usize, step: usize },
    Reversed { step: usize },
}

/// The positions along an axis of the matrix that an axis of the view selects.
#[derive(Clone, Copy)]
struct Positions {
    start: isize,
    step: isize,
    count: usize,
}

impl Positions {
    fn get(&self, index: usize) -> u64 {
        (self.start + self.step * index as isize) as u64
    }
}

impl Content {
    /// Draws a matrix of about `size_bytes`.
    pub(super) fn draw(random: &mut Random, size_bytes: u64) -> Content {
        let dtype = DTYPES[random.below(DTYPES.len() as u64) as usize];
        let numel = size_bytes / dtype.0.itemsize() as u64;
        let columns = 1 + random.below(numel.clamp(1, 64));
        let rows = numel.div_ceil(columns).max(1) as usize;
        let seed = random.next() as u32;
        Content { dtype, seed, rows, columns: columns as usize, grows: false, views: Vec::new() }
    }

    /// Returns a tensor of this content, as a matrix on the heap. For a growing one, returns `batch_count` batches
    /// from `first` on.
    pub(super) fn tensor(&self, first: usize, batch_count: usize) -> Tensor {
        assert!(self.views.is_empty());
        let (start, rows) = (first * self.rows * self.columns, batch_count * self.rows);
        let size = self.dtype.0.itemsize();
        let mut bytes = Vec::with_capacity(rows * self.columns * size);
        for index in start..start + rows * self.columns {
            bytes.extend_from_slice(&self.element(index as u64)[..size]);
        }
        Tensor::from_bytes(self.dtype.0, &[rows, self.columns], &bytes).unwrap()
    }

    /// Returns the bytes of the element at a row-major index. Shorter elements are a prefix of them.
    fn element(&self, index: u64) -> [u8; 16] {
        let first = mixed(u64::from(self.seed) << 32 ^ index);
        (u128::from(first) | u128::from(!first) << 64).to_le_bytes()
    }

    /// Draws a view of a tensor of this content. Returns it with its content.
    pub(super) fn draw_view(&self, tensor: &Tensor, random: &mut Random) -> (Content, Tensor) {
        let mut content = self.clone();
        if tensor.numel() == 0 {
            return (content, tensor.clone());
        }
        let mut tensor = tensor.clone();
        if content.grows() {
            // Limited to the current rows, because more may follow.
            content.views.push(View::Slice { start: 0, end: tensor.size()[0], step: 1 });
        }
        for _ in 0..1 + random.below(2) {
            let rows = tensor.size()[0];
            let view = match random.below(3) {
                0 => View::Transposed,
                1 => View::Reversed { step: 1 + random.below(3) as usize },
                _ => {
                    let start = random.below(rows as u64) as usize;
                    let end = start + 1 + random.below((rows - start) as u64) as usize;
                    View::Slice { start, end, step: 1 + random.below(3) as usize }
                }
            };
            content.views.push(view);
            tensor = match view {
                View::Transposed => tensor.t(),
                View::Reversed { step } => tensor.slice(0, None, None, -(step as isize)),
                View::Slice { start, end, step } => {
                    tensor.slice(0, Some(start as isize), Some(end as isize), step as isize)
                }
            }
            .unwrap();
        }
        (content, tensor)
    }

    pub(super) fn view_count(&self) -> usize {
        self.views.len()
    }

    /// Returns whether more batches may be appended to the tensor.
    pub(super) fn grows(&self) -> bool {
        self.grows && self.views.is_empty()
    }

    /// Returns the same content as one that grows by a batch at a time.
    pub(super) fn growing(self) -> Content {
        Content { grows: true, ..self }
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype.0
    }

    /// Returns the rows of the matrix, or of a batch of a growing one, and its columns.
    pub(super) fn size(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.rows * self.columns * self.dtype.0.itemsize()
    }

    /// Returns the rows and columns of the matrix that the two axes of the last view select, and whether they are
    /// exchanged.
    fn axes(&self, row_count: usize) -> ([Positions; 2], bool) {
        let all = |count| Positions { start: 0, step: 1, count };
        let (mut first, mut second) = (all(row_count), all(self.columns));
        let mut is_transposed = false;
        for &view in &self.views {
            match view {
                View::Transposed => {
                    std::mem::swap(&mut first, &mut second);
                    is_transposed = !is_transposed;
                }
                View::Slice { start, end, step } => {
                    first.start += first.step * start as isize;
                    first.count = (end - start).div_ceil(step);
                    first.step *= step as isize;
                }
                View::Reversed { step } => {
                    first.start += first.step * (first.count as isize - 1);
                    first.count = first.count.div_ceil(step);
                    first.step *= -(step as isize);
                }
            }
        }
        ([first, second], is_transposed)
    }

    /// Checks a tensor that should have this content. Returns the number of elements compared, or the problem.
    pub(super) fn check(&self, tensor: &Tensor) -> Result<u64, String> {
        let is_whole = self.grows();
        let rows = match tensor.size() {
            [rows, _] if is_whole => *rows,
            // A view of a growing matrix names its rows. The matrix itself has at least those.
            _ => self.rows,
        };
        if is_whole && !rows.is_multiple_of(self.rows) {
            return Err(format!("{rows} rows, which are no whole number of batches"));
        }
        let (axes, is_transposed) = self.axes(rows);
        let size = axes.map(|axis| axis.count);
        if tensor.dtype() != self.dtype.0 || tensor.size() != size {
            return Err(format!("{} of size {:?}, not {size:?}", tensor.dtype(), tensor.size()));
        }
        let item_bytes = self.dtype.0.itemsize();
        let expected = move |at: usize| {
            let places = [axes[0].get(at / size[1]), axes[1].get(at % size[1])];
            let [row, column] = if is_transposed { [places[1], places[0]] } else { places };
            self.element(row * self.columns as u64 + column)
        };
        let borrowed = match self.dtype.0 {
            DType::U8 => check_borrowed::<u8>(tensor, |at| expected(at)[0]),
            DType::I16 => check_borrowed::<i16>(tensor, |at| {
                i16::from_le_bytes(*expected(at).first_chunk().unwrap_or(&[0; 2]))
            }),
            DType::I64 => check_borrowed::<i64>(tensor, |at| {
                i64::from_le_bytes(*expected(at).first_chunk().unwrap_or(&[0; 8]))
            }),
            _ => Ok(false),
        };
        if borrowed? {
            return Ok(tensor.numel() as u64);
        }
        let bytes = tensor.to_bytes().map_err(|e| format!("{e:?}"))?;
        for (at, found) in bytes.chunks_exact(item_bytes).enumerate() {
            if found != &expected(at)[..item_bytes] {
                let wrong = &expected(at)[..item_bytes];
                return Err(format!("element {at} of size {size:?} is {found:?}, not {wrong:?}"));
            }
        }
        Ok(tensor.numel() as u64)
    }
}

/// Compares borrowed elements. Returns whether they could be borrowed.
fn check_borrowed<T: Element + PartialEq + fmt::Debug>(
    tensor: &Tensor,
    expected: impl Fn(usize) -> T,
) -> Result<bool, String> {
    match ArrayViewD::<T>::try_from(tensor) {
        Ok(array) => match array.iter().enumerate().find(|&(at, &found)| found != expected(at)) {
            Some((at, found)) => Err(format!("borrowed element {at} is {found:?}, not {:?}", expected(at))),
            None => Ok(true),
        },
        Err(e) if e.kind() == ErrorKind::NeedsCopy => Ok(false),
        Err(e) => Err(format!("{e:?}")),
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Content { dtype: (_, dtype), seed, rows, columns, grows, views } = self;
        let plus = if *grows { "+" } else { "" };
        write!(f, "{dtype}.{seed:08x}.{plus}{rows}x{columns}")?;
        views.iter().try_for_each(|view| match view {
            View::Transposed => write!(f, ".t"),
            View::Slice { start, end, step } => write!(f, ".s{start}:{end}:{step}"),
            View::Reversed { step } => write!(f, ".r{step}"),
        })
    }
}

impl FromStr for Content {
    type Err = String;

    fn from_str(text: &str) -> Result<Content, String> {
        let wrong = || format!("{text:?} does not say what it is");
        let number = |digits: &str| digits.parse::<usize>().map_err(|_| wrong());
        let mut parts = text.split('.');
        let mut part = || parts.next().ok_or_else(wrong);
        let (dtype, seed, shape) = (part()?, part()?, part()?);
        let dtype = *DTYPES.iter().find(|(_, name)| *name == dtype).ok_or_else(wrong)?;
        let seed = u32::from_str_radix(seed, 16).map_err(|_| wrong())?;
        let (grows, shape) = shape.strip_prefix('+').map_or((false, shape), |shape| (true, shape));
        let (rows, columns) = shape.split_once('x').ok_or_else(wrong)?;
        let views = parts.map(|view| match view.split_at_checked(1).ok_or_else(wrong)? {
            ("t", "") => Ok(View::Transposed),
            ("r", step) => Ok(View::Reversed { step: number(step)? }),
            ("s", bounds) => match bounds.split(':').map(number).collect::<Result<Vec<_>, _>>()?[..] {
                [start, end, step] => Ok(View::Slice { start, end, step }),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        });
        let views = views.collect::<Result<_, _>>()?;
        Ok(Content { dtype, seed, rows: number(rows)?, columns: number(columns)?, grows, views })
    }
}

/// Returns the name of a tensor: its owner, its content, and a number that distinguishes it from others of the same
/// content.
pub(super) fn name(owner: impl fmt::Display, content: &Content, number: u64) -> String {
    format!("{owner}/{content}#{number}")
}

/// Returns the content that a name describes.
pub(super) fn content_of(name: &str) -> Result<Content, String> {
    let content = name.split_once('/').and_then(|(_, rest)| rest.rsplit_once('#'));
    content.ok_or_else(|| format!("{name:?} does not say what it is"))?.0.parse()
}
