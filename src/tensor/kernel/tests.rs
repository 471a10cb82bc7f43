use super::transpose::{first_line, interleave, interleave_portably};
use super::*;

/// Sizes around those of vectors and tiles.
const SIZES: [usize; 14] = [1, 2, 3, 7, 15, 16, 17, 31, 64, 65, 257, 300, 513, 1100];
const MAX_NUMEL: usize = 100_000;

/// Draws strides for dimensions that are nested in any order, with gaps, and forwards or backwards. The inner two may
/// be interleaved instead: the first then spans more than a step of the second. Returns them with the position of the
/// first element and the number of elements that the layout spans. If `may_repeat`, strides may be 0.
fn random_layout(rng: &mut fastrand::Rng, sizes: &[usize], may_repeat: bool) -> (Vec<isize>, usize, usize) {
    let (mut strides, mut first, mut length) = (vec![0; sizes.len()], 0, 1);
    let mut axes: Vec<usize> = (0..sizes.len()).collect();
    rng.shuffle(&mut axes);
    let is_interleaved = axes.len() > 1 && rng.u8(..4) == 0;
    for (i, &axis) in axes.iter().enumerate() {
        if may_repeat && rng.u8(..8) == 0 {
            continue;
        }
        let stride = if is_interleaved && i < 2 {
            // No two elements meet, because the strides have no common divisor.
            sizes[axes[1]].max(2) + i
        } else {
            length * if rng.bool() { 1 } else { rng.usize(1..4) } + usize::from(rng.u8(..4) == 0)
        };
        let reach = (sizes[axis] - 1) * stride;
        let is_backwards = rng.u8(..3) == 0;
        strides[axis] = if is_backwards { -(stride as isize) } else { stride as isize };
        first += if is_backwards { reach } else { 0 };
        length += reach;
    }
    (strides, first, length)
}

fn copies_like_a_plain_loop<const W: usize>(rng: &mut fastrand::Rng) {
    let mut sizes: Vec<usize> = Vec::new();
    for _ in 0..rng.usize(..5) {
        let size = SIZES[rng.usize(..SIZES.len())];
        if sizes.iter().product::<usize>() * size <= MAX_NUMEL {
            sizes.push(size);
        }
    }
    let (to_strides, to_first, to_length) = random_layout(rng, &sizes, false);
    let (from_strides, from_first, from_length) = random_layout(rng, &sizes, true);
    let from: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(from_length * W).collect();
    let mut expected = vec![0; to_length * W];
    let mut index = vec![0; sizes.len()];
    for _ in 0..sizes.iter().product() {
        let place = |first: usize, strides: &[isize]| {
            index.iter().zip(strides).fold(first, |place, (&i, &stride)| moved(place, i, stride)) * W
        };
        let (to_at, from_at) = (place(to_first, &to_strides), place(from_first, &from_strides));
        expected[to_at..to_at + W].copy_from_slice(&from[from_at..from_at + W]);
        for (i, size) in index.iter_mut().zip(&sizes).rev() {
            *i = (*i + 1) % size;
            if *i != 0 {
                break;
            }
        }
    }
    let dims = || (0..sizes.len()).map(|i| (sizes[i], to_strides[i], from_strides[i]));
    let order = Order::of(dims(), to_first, from_first);
    let (mut whole, mut in_pieces) = (vec![0; to_length * W], vec![0; to_length * W]);
    copy::<W>(&from, &mut whole, &order);
    assert!(whole == expected, "{W} bytes: {sizes:?}, to {to_strides:?}, from {from_strides:?}");
    let may_cut = |outer: Dim, inner: &[Dim]| span(inner) <= outer.stride;
    let is_large = rng.bool();
    let pieces = in_pieces.as_chunks_mut::<W>().0;
    let Ok(()) = divide::<_, Infallible>(order, pieces, rng.usize(1..1000), &may_cut, &mut |(piece, to)| {
        copy_piece(from.as_chunks::<W>().0, to, &piece, is_large);
        Ok(())
    });
    assert!(
        in_pieces == expected,
        "in pieces, {W} bytes: {sizes:?}, to {to_strides:?}, from {from_strides:?}"
    );
}

#[test]
fn copies_of_random_layouts_match_a_plain_loop() {
    let mut rng = fastrand::Rng::with_seed(15);
    for _ in 0..150 {
        copies_like_a_plain_loop::<1>(&mut rng);
        copies_like_a_plain_loop::<2>(&mut rng);
        copies_like_a_plain_loop::<4>(&mut rng);
        copies_like_a_plain_loop::<8>(&mut rng);
        copies_like_a_plain_loop::<16>(&mut rng);
    }
}

#[test]
fn a_large_transpose_and_gather_on_threads_match_a_plain_loop() {
    const SIDE: usize = 1500;
    let from: Vec<u8> = (0..SIDE * SIDE * 4).map(|i| (i % 251) as u8).collect();
    let mut to = vec![0; from.len()];
    assert!(to.len() > LARGE_BYTES);
    let dims = [(SIDE, SIDE as isize, 1), (SIDE, 1, SIDE as isize)];
    copy::<4>(&from, &mut to, &Order::of(dims.into_iter(), 0, 0));
    let (rows, columns) = (from.as_chunks::<4>().0, to.as_chunks::<4>().0);
    assert!((0..SIDE * SIDE).all(|i| columns[i] == rows[i % SIDE * SIDE + i / SIDE]));
    let places: Vec<usize> = (0..SIDE).map(|i| i * 7 % SIDE * SIDE).collect();
    gather::<4>(&from, &mut to, &places, SIDE);
    let runs = to.as_chunks::<4>().0.chunks(SIDE).zip(&places);
    assert!(runs.into_iter().all(|(run, &place)| run == &rows[place..place + SIDE]));
}

/// For each position of the first whole cache line, transposes a plane with stores that bypass the caches.
fn lines_bypass_the_caches<const W: usize>(rng: &mut fastrand::Rng) {
    for shift in 0..=64 / W {
        let (rows, columns) = (rng.usize(4096 / W..5000 / W), rng.usize(128..1200));
        let (stride, gap) = (rows.next_multiple_of(64 / W), rng.usize(..3));
        let from: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(rows * (columns + gap) * W).collect();
        let mut to = vec![0; (shift + columns * stride) * W];
        let dims = [(columns, stride as isize, 1), (rows, 1, (columns + gap) as isize)];
        let order = Order::of(dims.into_iter(), shift, 0);
        let (from, to) = (from.as_chunks::<W>().0, to.as_chunks_mut::<W>().0);
        let [column, row] = order.dims[..] else { panic!("{order:?}") };
        assert!(first_line(&to[shift..], column, row).is_some(), "{order:?}");
        copy_piece(from, to, &order, true);
        let expected =
            |place: usize| match place.checked_sub(shift).map(|place| (place % stride, place / stride)) {
                Some((row, column)) if row < rows => from[row * (columns + gap) + column],
                _ => [0; W],
            };
        assert!((0..to.len()).all(|place| to[place] == expected(place)), "{rows} x {columns} after {shift}");
    }
}

#[test]
fn transposes_that_bypass_the_caches_write_all_elements_and_nothing_else() {
    let mut rng = fastrand::Rng::with_seed(16);
    lines_bypass_the_caches::<1>(&mut rng);
    lines_bypass_the_caches::<2>(&mut rng);
    lines_bypass_the_caches::<4>(&mut rng);
    lines_bypass_the_caches::<8>(&mut rng);
    lines_bypass_the_caches::<16>(&mut rng);
}

#[test]
fn vectors_interleave_like_the_portable_loop() {
    let (a, b) = (std::array::from_fn(|i| i as u8), std::array::from_fn(|i| 16 + i as u8));
    assert_eq!(interleave::<1>(a, b), interleave_portably::<1>(a, b));
    assert_eq!(interleave::<2>(a, b), interleave_portably::<2>(a, b));
    assert_eq!(interleave::<4>(a, b), interleave_portably::<4>(a, b));
    assert_eq!(interleave::<8>(a, b), interleave_portably::<8>(a, b));
}
