//! Tests of repacking.

use std::collections::BTreeSet;
use std::convert::Infallible;

use proptest::prelude::*;
use stridemap_format::DType;

use super::*;
use crate::layout::{footprint_bytes, for_each_range};

fn header(dtype: DType, dims: &[(usize, isize)], offset: usize) -> Header {
    let (size, stride): (Vec<_>, Vec<_>) = dims.iter().copied().unzip();
    Header::new(dtype, size, stride, offset).unwrap()
}

/// Returns the offsets of the bytes of a view, in the order of its elements.
fn bytes(view: &Header) -> Vec<i64> {
    let mut offsets = vec![view.storage_offset() as i64];
    for (n, stride) in view.dims() {
        offsets = offsets.iter().flat_map(|at| (0..n as i64).map(move |i| at + i * stride as i64)).collect();
    }
    let width = view.dtype().itemsize() as i64;
    offsets.iter().flat_map(|at| (0..width).map(move |byte| at * width + byte)).collect()
}

fn borrowed(views: &[Header]) -> Vec<&Header> {
    views.iter().collect()
}

/// Repacks views, checks all invariants, and returns the new length.
fn repack_and_check(views: &[Header], length_bytes: u64) -> u64 {
    let repacked = repack(&borrowed(views), length_bytes).unwrap();
    assert!(repacked.length_bytes <= length_bytes, "{repacked:?}");
    // Records the old offset of each new byte, to check that every view still reads the same bytes.
    let mut from = vec![None; repacked.length_bytes as usize];
    let (mut old_end, mut new_end) = (0, 0);
    repacked
        .each_move::<Infallible>(&mut |old, new_start| {
            assert!(
                old_end <= old.start && old.start < old.end && old.end <= length_bytes,
                "order of {old:?}"
            );
            assert!(new_end <= new_start && new_start <= old.start, "{old:?} to {new_start}");
            let new_range = new_start as usize..(new_start + old.end - old.start) as usize;
            for (slot, byte) in from[new_range].iter_mut().zip(old.clone()) {
                *slot = Some(byte as i64);
            }
            (old_end, new_end) = (old.end, new_start + old.end - old.start);
            Ok(())
        })
        .unwrap();
    assert_eq!(new_end, repacked.length_bytes, "there is padding at the end");
    for (before, after) in views.iter().zip(&repacked.views) {
        after.extent(repacked.length_bytes).unwrap();
        let read: Vec<i64> = bytes(after).iter().map(|&at| from[at as usize].unwrap()).collect();
        assert_eq!(read, bytes(before), "{before:?} became {after:?}");
        assert_eq!(after.size(), before.size());
        for (old, new) in before.stride().iter().zip(after.stride()) {
            assert_eq!(old.signum(), new.signum(), "{before:?} became {after:?}");
        }
    }
    // Repacking again does not make the storage longer.
    let again = repack(&borrowed(&repacked.views), repacked.length_bytes).unwrap();
    assert!(again.length_bytes <= repacked.length_bytes);
    repacked.length_bytes
}

fn used_bytes(views: &[Header]) -> BTreeSet<i64> {
    views.iter().flat_map(bytes).collect()
}

fn ranges(view: &Header, length_bytes: u64, gap_bytes: u64) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    for_each_range(view, length_bytes, gap_bytes, |range| ranges.push(range)).unwrap();
    ranges
}

const DTYPES: [DType; 5] = [DType::U8, DType::I16, DType::F32, DType::F64, DType::C128];

/// Any view inside `length_bytes`.
fn any_view(length_bytes: u64) -> impl Strategy<Value = Header> {
    let dims = prop::collection::vec((0..7usize, -40..41isize), 0..5);
    (0..DTYPES.len(), dims, 0..1_000usize).prop_map(move |(dtype, mut dims, offset)| {
        let dtype = DTYPES[dtype];
        let room = length_bytes as usize / dtype.itemsize();
        loop {
            let view = header(dtype, &dims, offset % (room + 1));
            if view.extent(length_bytes).is_ok() {
                return view;
            }
            // Drop a dimension until the view fits.
            if dims.pop().is_none() {
                return header(dtype, &[], 0);
            }
        }
    })
}

/// A typical slice of a matrix of bytes: rows and columns, with steps.
fn slice(rows: usize, columns: usize) -> impl Strategy<Value = Header> {
    (0..3usize, 0..rows, 1..5usize, 0..columns, 1..5usize, 1..6usize, 1..6usize, any::<[bool; 2]>()).prop_map(
        move |(dtype, row, row_step, column, column_step, m, n, flipped)| {
            let dtype = DTYPES[dtype];
            let columns = columns / dtype.itemsize();
            let column = column % columns;
            let m = m.min((rows - row).div_ceil(row_step));
            let n = n.min((columns - column).div_ceil(column_step));
            let (mut offset, mut strides) =
                (row * columns + column, [(row_step * columns) as isize, column_step as isize]);
            for ((stride, count), flip) in strides.iter_mut().zip([m, n]).zip(flipped) {
                if flip {
                    offset += *stride as usize * (count - 1);
                    *stride = -*stride;
                }
            }
            header(dtype, &[(m, strides[0]), (n, strides[1])], offset)
        },
    )
}

fn views_in_a_storage() -> impl Strategy<Value = (Vec<Header>, u64)> {
    let any =
        (16..600u64).prop_flat_map(|length| (prop::collection::vec(any_view(length), 1..6), Just(length)));
    let slices = prop::collection::vec(slice(40, 64), 1..7).prop_map(|views| (views, 40 * 64));
    let mixed = (prop::collection::vec(slice(40, 64), 0..4), prop::collection::vec(any_view(2560), 0..3))
        .prop_map(|(mut views, more)| {
            views.extend(more);
            (views, 2560)
        });
    prop_oneof![any, slices, mixed]
}

/// Views with nested strides, in which every index has its own element.
fn nested() -> impl Strategy<Value = Header> {
    let dims = prop::collection::vec((1..5usize, 0..9usize, any::<bool>()), 0..5);
    (0..DTYPES.len(), dims, 0..40usize).prop_map(|(dtype, dims, mut offset)| {
        let mut stride = 1;
        let mut inner_first = Vec::new();
        for (n, gap, is_flipped) in dims {
            stride += gap;
            if is_flipped {
                offset += stride * (n - 1);
            }
            inner_first.push((n, if is_flipped { -(stride as isize) } else { stride as isize }));
            stride *= n;
        }
        inner_first.reverse();
        header(DTYPES[dtype], &inner_first, offset)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn views_read_and_share_the_same_bytes((views, length_bytes) in views_in_a_storage()) {
        let new_length = repack_and_check(&views, length_bytes);
        let reached = used_bytes(&views);
        prop_assert!(new_length >= reached.len() as u64);
        prop_assert_eq!(
            footprint_bytes(&borrowed(&views), length_bytes, 1 << 20).unwrap(),
            Some(reached.len() as u64)
        );
    }

    #[test]
    fn ranges_begin_and_end_with_a_byte_of_the_view((view, gap_bytes) in (any_view(600), 0..40u64)) {
        let (reached, ranges) = (used_bytes(std::slice::from_ref(&view)), ranges(&view, 600, gap_bytes));
        prop_assert!(reached.iter().all(|&byte| ranges.iter().any(|range| range.contains(&(byte as u64)))));
        for range in &ranges {
            prop_assert!([range.start, range.end - 1].iter().all(|&byte| reached.contains(&(byte as i64))));
        }
        prop_assert!(ranges.len() as u64 <= 600 / gap_bytes.max(1) + 1, "{:?}", ranges);
    }

    #[test]
    fn ranges_contain_only_short_gaps((view, gap_bytes) in (nested(), 0..40u64)) {
        let reached = used_bytes(std::slice::from_ref(&view));
        let ranges = ranges(&view, 1 << 30, gap_bytes);
        prop_assert!(ranges.is_sorted_by(|range, next| range.end <= next.start), "{:?}", ranges);
        let mut bytes = reached.iter().map(|&byte| byte as u64).peekable();
        while let Some(byte) = bytes.next() {
            let Some(&next) = bytes.peek() else { break };
            let is_joined = ranges.iter().any(|range| range.contains(&byte) && range.contains(&next));
            prop_assert!(!is_joined || next - byte - 1 <= gap_bytes, "{} to {}: {:?}", byte, next, ranges);
        }
    }

    #[test]
    fn one_slice_keeps_only_its_own_bytes(view in nested()) {
        let reached = used_bytes(std::slice::from_ref(&view));
        let (first, last) = (*reached.first().unwrap() as u64, *reached.last().unwrap() as u64);
        let new_length = repack_and_check(&[view], last + 77);
        prop_assert_eq!(new_length, first % 64 + reached.len() as u64);
    }
}

const F32: DType = DType::F32;

#[test]
fn a_slice_becomes_as_dense_as_it_can() {
    let repacked = |view: &Header| repack(&[view], 1 << 40).unwrap();
    // Ten million rows of x[::10], a column, a block of columns, and every third column of odd rows.
    for (dims, strides, bytes) in [
        ([(10_000_000, 80), (8, 1)], [8, 1], 320_000_000),
        ([(10_000_000, 80), (1, 1)], [1, 1], 40_000_000),
        ([(10_000_000, 80), (20, 1)], [20, 1], 800_000_000),
        ([(5_000_000, 26), (5, 3)], [5, 1], 100_000_000),
    ] {
        let view = header(F32, &dims, 16);
        let repacked = repacked(&view);
        assert_eq!((repacked.views[0].stride(), repacked.length_bytes), (&strides[..], bytes), "{dims:?}");
    }
}

#[test]
fn columns_that_no_view_uses_are_dropped() {
    // A matrix of 1000 rows of 100: columns 0 to 10; columns 50 to 60 of every other row, from row 5 on; a part of a
    // row; and a run that begins in one row and ends in the next.
    let views = [
        header(F32, &[(1000, 100), (10, 1)], 0),
        header(F32, &[(400, 200), (10, 1)], 550),
        header(F32, &[(20, 1)], 70_045),
        header(F32, &[(7, 1)], 70_095),
    ];
    // Columns 0 to 10, 45 to 65 and 95 to 100 of each row.
    assert_eq!(repack_and_check(&views, 400_000), 4 * (999 * 35 + 10));
}

#[test]
fn views_with_different_steps_are_kept_whole() {
    let views = [header(F32, &[(40, 7)], 100), header(F32, &[(40, 5)], 100)];
    assert_eq!(repack_and_check(&views, 4000), 400 % 64 + (39 * 7 + 1) * 4);
    // A diagonal beside a column; the diagonal alone.
    let diagonal = header(F32, &[(100, 101)], 0);
    let column = header(F32, &[(100, 100)], 3);
    assert_eq!(repack_and_check(&[diagonal.clone(), column], 40_000), 40_000);
    assert_eq!(repack_and_check(&[diagonal], 40_000), 400);
}

#[test]
fn several_dtypes_over_the_same_bytes_stay_aligned() {
    let views = [
        header(DType::C64, &[(30, 5)], 1),
        header(F32, &[(30, 10)], 3),
        header(DType::U8, &[(30, 40)], 9),
        header(DType::U8, &[(3, 1)], 2_000),
    ];
    let new_length = repack_and_check(&views, 4096);
    // Eight of every forty bytes are kept, and the three bytes at 2000, whose offset modulo 64 does not change.
    assert_eq!(new_length, next_congruent(8 + 30 * 8, 2_000, 64) + 3);
}

#[test]
fn empty_views_stay_inside_the_storage() {
    let empty = header(F32, &[(0, 5), (3, 1)], 1000);
    assert_eq!(repack_and_check(std::slice::from_ref(&empty), 4000), 0);
    let scalar = header(F32, &[], 500);
    assert_eq!(repack_and_check(&[empty, scalar], 4000), 2000 % 64 + 4);
}

#[test]
fn repeated_and_single_dimensions_keep_their_strides() {
    let view = header(F32, &[(9, 0), (1, 999), (5, -20), (1, -3)], 200);
    let repacked = repack(&[&view], 4000).unwrap();
    assert_eq!(repacked.views[0].stride(), [0, 999, -1, -3]);
    repack_and_check(&[view], 4000);
}

#[test]
fn a_view_past_the_storage_is_refused() {
    let view = header(F32, &[(10, 10)], 0);
    assert!(repack(&[&view], 363).is_err());
    assert!(repack(&[&view], 364).is_ok());
    let huge = header(F32, &[(isize::MAX as usize, isize::MAX)], usize::MAX);
    assert!(repack(&[&huge], u64::MAX).is_err());
}

#[test]
fn work_is_bounded_whatever_the_views_are() {
    // No two views have the same steps. Nothing can be dropped, and this is decided quickly.
    let views: Vec<Header> = (0..3000)
        .map(|i| header(DType::U8, &[(2, 1 << 30), (2, 1 << 29), (2, 3 + i), (2, 1 << 28)], i as usize))
        .collect();
    let mut budget = Budget::default();
    let footprints = views.iter().map(|view| Footprint::of(view, 1 << 40).unwrap().unwrap()).collect();
    pack(footprints, (ALIGNMENT_BYTES, 1), &mut budget);
    assert!(budget.work <= MAX_WORK + 3000, "{budget:?}");
    assert_eq!(footprint_bytes(&borrowed(&views), 1 << 40, 1000).unwrap(), None);
    let column = header(F32, &[(1 << 40, 1 << 20)], 0);
    assert_eq!(footprint_bytes(&[&column], 1 << 62, 1 << 20).unwrap(), None);
    assert_eq!(repack(&[&column], 1 << 62).unwrap().length_bytes, 4 << 40);
}

#[test]
fn ranges_are_few_whatever_the_view_is() {
    // The rows of this view overlap almost completely, but a storage has room for only so many ranges.
    let view = header(DType::U8, &[(1 << 20, 40_001), (1 << 20, 40_000)], 0);
    assert_eq!(ranges(&view, 1 << 40, 16 << 10).len(), 1);
    let far = header(F32, &[(1000, 1 << 20), (3, 1 << 10)], 5);
    let found = ranges(&far, 1 << 40, 16 << 10);
    assert_eq!((found.len(), found[1].clone()), (1000, (4 << 20) + 20..(4 << 20) + 20 + 8196));
}

/// Views of two elements. The step of each view is two bytes shorter than that of the one before. With the longest
/// step as the period, only the last byte of a period is unused. The rest is packed one level deeper, with the next
/// step as the period, and so on.
#[test]
fn depth_is_bounded_whatever_the_views_are() {
    let ladder = |n: isize| -> Vec<Header> {
        (0..n).map(|k| header(DType::U8, &[(2, (1 << 20) - 2 * k)], 0)).collect()
    };
    let small_stack = std::thread::Builder::new().stack_size(512 << 10);
    let packed = small_stack.spawn(move || {
        assert!(repack_and_check(&ladder(2000), (1 << 20) + 1) <= (1 << 20) + 1);
        // Up to `MAX_DEPTH` levels, every gap is dropped.
        assert_eq!(repack_and_check(&ladder(MAX_DEPTH as isize), (1 << 20) + 1), MAX_DEPTH as u64 + 1);
    });
    packed.unwrap().join().unwrap();
}
