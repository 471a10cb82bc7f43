//! Views of tensors of several blocks, read from an unmapped file.

use crate::harness::hooked::Hooked;
use std::fmt::Debug;
use std::sync::Arc;

use num_complex::Complex;
use stridemap::{Element, Index, Tensor};

use crate::harness::fast;
use crate::support::temporary;

/// The most bytes of a file read at once.
const BLOCK_BYTES: usize = 4 << 20;

/// A longer gap between elements is skipped.
const GAP_BYTES: usize = 16 << 10;

/// The number of planes. One plane is shorter than a block, and one and a half are longer.
const PLANES: usize = 3;
const COLS: usize = 1000;

fn rows<T>() -> usize {
    BLOCK_BYTES * 3 / 4 / COLS / size_of::<T>()
}

/// The source of a view: the position of its first element, and the steps along each of three axes.
struct View {
    name: &'static str,
    tensor: Tensor,
    first: usize,
    steps: [isize; 3],
}

impl View {
    fn positions(&self) -> impl Iterator<Item = usize> {
        let [n0, n1, n2] = self.tensor.size().try_into().unwrap();
        let along = |from: usize, axis: usize, n: usize| {
            let step = self.steps[axis];
            (0..n as isize).map(move |i| from.wrapping_add_signed(i * step))
        };
        along(self.first, 0, n0).flat_map(move |p| along(p, 1, n1)).flat_map(move |p| along(p, 2, n2))
    }

    /// Returns the number of elements from the lowest to the highest.
    fn span(&self) -> usize {
        let reach = |(&n, step): (&usize, &isize)| (n - 1) * step.unsigned_abs();
        self.tensor.size().iter().zip(&self.steps).map(reach).sum::<usize>() + 1
    }
}

fn views<T>(base: &Tensor) -> stridemap::Result<Vec<View>> {
    let (count, cols) = (PLANES * rows::<T>() * COLS, COLS as isize);
    let plane = rows::<T>() as isize * cols;
    let step = (GAP_BYTES / size_of::<T>()) as isize / cols + 1;
    let reversed = Index::Slice { start: None, end: None, step: -1 };
    let lower = Index::Slice { start: Some(5), end: None, step: 1 };
    let view = |name, tensor, first, steps| View { name, tensor, first, steps };
    Ok(vec![
        view("whole", base.clone(), 0, [plane, cols, 1]),
        view("transposed", base.transpose(1, 2)?, 0, [plane, 1, cols]),
        view(
            "transposed and reversed",
            base.transpose(1, 2)?.flip([1, 2])?,
            plane as usize - 1,
            [plane, -1, -cols],
        ),
        view("permuted", base.permute([2, 0, 1])?, 0, [1, plane, cols]),
        view("axes backwards", base.permute([2, 1, 0])?, 0, [1, cols, plane]),
        view("reversed", base.flip([0, 1, 2])?, count - 1, [-plane, -cols, -1]),
        view(
            "long rows reversed",
            base.view([1, 2, -1])?.flip([2])?,
            count / 2 - 1,
            [0, count as isize / 2, -1],
        ),
        view("stepped", base.slice(2, None, None, 3)?, 0, [plane, cols, 3]),
        view(
            "stepped back and transposed",
            base.slice(1, None, None, -2)?.transpose(0, 1)?,
            (plane - cols) as usize,
            [-2 * cols, plane, 1],
        ),
        view("column", base.narrow(2, 7, 1)?, 7, [plane, cols, 0]),
        view("short gaps", base.slice(1, None, None, step)?, 0, [plane, step * cols, 1]),
        view("long gaps", base.slice(1, None, None, step + 1)?, 0, [plane, (step + 1) * cols, 1]),
        view(
            "part of a plane",
            base.index([Index::At(1), Index::NewAxis, lower, reversed])?,
            (plane + 6 * cols) as usize - 1,
            [0, cols, -1],
        ),
    ])
}

fn read_alike<T: Element + PartialEq + Debug>(element: impl Fn(usize) -> T) {
    let dir = temporary();
    let path = dir.path().join("views.smap");
    let (disk, options) = (Hooked::default(), fast());
    let size = [PLANES, rows::<T>(), COLS];
    let elements: Vec<T> = (0..size.iter().product()).map(element).collect();
    let base = Tensor::from_vec(elements.clone(), &size).unwrap();
    options.create(&path).unwrap().save("x", &base).unwrap();
    // SAFETY: no other process knows this directory.
    let mapped = unsafe { options.open_mapped(&path).unwrap() };
    let unmapped = options.disk(Arc::new(disk.clone())).open(&path).unwrap();
    let views_of = |store: &stridemap::Store| views::<T>(&store.load("x").unwrap()).unwrap();
    for (view, of_mapped) in views_of(&unmapped).into_iter().zip(views_of(&mapped)) {
        disk.take_counts();
        let read: Vec<T> = view.tensor.read().unwrap();
        let read_bytes = disk.take_counts().data_read_bytes as usize;
        let difference = view.positions().zip(&read).position(|(p, element)| elements[p] != *element);
        assert_eq!(difference, None, "{}", view.name);
        assert!(of_mapped.tensor.read::<T>().unwrap() == read, "{} of the mapped store differs", view.name);
        let (span_bytes, nbytes) = (view.span() * size_of::<T>(), view.tensor.nbytes());
        match view.name {
            "short gaps" => assert!((nbytes + 1..=span_bytes).contains(&read_bytes), "{read_bytes} bytes"),
            "long gaps" => assert_eq!(read_bytes, nbytes, "{}", view.name),
            _ => assert!((nbytes..=span_bytes).contains(&read_bytes), "{}: {read_bytes} bytes", view.name),
        }
    }
}

fn scattered(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7
}

#[test]
fn views_of_elements_of_any_size_read_the_same_from_a_file_as_from_memory() {
    read_alike(|i| scattered(i) as u8);
    read_alike(|i| scattered(i) as u16);
    read_alike(|i| scattered(i) as u32);
    read_alike(scattered);
    read_alike(|i| Complex::new(i as f64, -(i as f64)));
}

#[test]
fn views_larger_than_a_piece_are_saved_in_row_major_order() {
    let dir = temporary();
    let store = fast().create(dir.path().join("views.smap")).unwrap();
    let size = [PLANES, rows::<u32>(), COLS];
    let elements: Vec<u32> = (0..size.iter().product()).map(|i| scattered(i) as u32).collect();
    for view in views::<u32>(&Tensor::from_vec(elements.clone(), &size).unwrap()).unwrap() {
        store.save("copy", &view.tensor).unwrap();
        let saved: Vec<u32> = store.load("copy").unwrap().read().unwrap();
        assert!(saved.iter().copied().eq(view.positions().map(|p| elements[p])), "{}", view.name);
    }
}
