//! Visits the elements of a view in row-major order.

use crate::layout::Layout;

/// Calls `body` with each element of a view and its index in row-major order, run by run.
pub(super) fn for_each<A>(atoms: &[A], layout: &Layout, mut body: impl FnMut(usize, &A)) {
    if layout.numel() == 0 {
        return;
    }
    // Outermost first; adjacent dimensions that form one run of equal steps are merged.
    let mut dims: Vec<(usize, isize)> = Vec::with_capacity(layout.rank());
    for (n, stride) in layout.dims().filter(|&(n, _)| n != 1) {
        match dims.last_mut() {
            Some((outer_n, outer_stride)) if *outer_stride == stride * n as isize => {
                (*outer_n, *outer_stride) = (*outer_n * n, stride);
            }
            _ => dims.push((n, stride)),
        }
    }
    let (run_n, run_stride) = dims.pop().unwrap_or((1, 1));
    let mut first_index = 0;
    for_each_start(&dims, layout.offset(), &mut |start| {
        if run_stride == 1 {
            atoms[start..start + run_n].iter().zip(first_index..).for_each(|(atom, i)| body(i, atom));
        } else {
            for i in 0..run_n {
                body(first_index + i, &atoms[start.wrapping_add_signed(i as isize * run_stride)]);
            }
        }
        first_index += run_n;
    });
}

/// Calls `body` with the position of each index of the dimensions, in row-major order.
fn for_each_start(dims: &[(usize, isize)], start: usize, body: &mut impl FnMut(usize)) {
    match dims.split_first() {
        None => body(start),
        Some((&(n, stride), inner)) => {
            for i in 0..n {
                for_each_start(inner, start.wrapping_add_signed(i as isize * stride), body);
            }
        }
    }
}
