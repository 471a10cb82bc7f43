//! Checks whether several indices of a view, or of two views, refer to the same bytes of a storage.
//!
//! Both questions ask for integer solutions of `a[0]*x[0] + a[1]*x[1] + ... = b` with a bound for each `x`. That is
//! hard in general, but easy for the strides of real tensors, because each stride exceeds the sum of all steps along
//! the smaller ones. The search is exact within a limit that real tensors never exceed. Beyond the limit, there is no
//! answer, and a caller that needs one takes it for yes. A caller that compares many pairs gives them a limit together:
//! a store can have a million tensors with malicious strides.

use stridemap_format::Header;

/// The limit on the steps of a search. A step is a visit to a term.
const MAX_STEPS: u64 = 200_000;

/// The limit on the steps of all searches of one operation, such as a verification. They take about two seconds.
pub(crate) const MAX_STEPS_TOGETHER: u64 = 100_000_000;

/// `stride * x` with `x` from 0 to `highest`. Both fields are at least 1.
#[derive(Clone, Copy, Debug)]
struct Term {
    stride: i128,
    highest: i128,
}

impl Term {
    fn reach(self) -> i128 {
        self.stride.saturating_mul(self.highest)
    }
}

/// Returns whether several indices refer to one element. If the search exceeds its limit, this may be a false
/// positive, but never a false negative.
pub(crate) fn overlaps_itself(header: &Header) -> bool {
    if header.numel() == 0 {
        return false;
    }
    let mut terms = Vec::with_capacity(header.ndim());
    for (n, stride) in header.dims().filter(|&(n, _)| n > 1) {
        if stride == 0 {
            return true;
        }
        // The indices differ by a number of steps in either direction, so the sign of the stride does not matter.
        terms.push(Term { stride: (stride as i128).abs(), highest: (n as i128).saturating_sub(1) });
    }
    terms.sort_by_key(|term| term.stride);
    let mut inner_reach = 0i128;
    let is_nested = terms.iter().all(|term| {
        let clears = term.stride > inner_reach;
        inner_reach = inner_reach.saturating_add(term.reach());
        clears
    });
    !is_nested && (0..terms.len()).any(|first| collides_from(first, &terms).unwrap_or(true))
}

/// Returns whether the elements of two tensors on the same storage have a byte in common. Like [`overlaps_itself`],
/// this may be a false positive.
pub(crate) fn overlaps(header: &Header, other: &Header) -> bool {
    overlaps_within(header, other, &mut MAX_STEPS.clone()).unwrap_or(true)
}

/// Like [`overlaps`], but takes its steps from `steps_left`. Returns `None` if the search exceeds its own limit, or
/// these.
pub(crate) fn overlaps_within(header: &Header, other: &Header, steps_left: &mut u64) -> Option<bool> {
    if header.numel() == 0 || other.numel() == 0 {
        return Some(false);
    }
    // offset + sum(stride * x) + part = other offset + sum(other stride * y) + other part, in units of the
    // narrower element. A part counts the units inside an element, so that of the narrower element is always 0.
    let (width, other_width) = (header.dtype().itemsize(), other.dtype().itemsize());
    let unit = width.min(other_width);
    let units = |width: usize| width.checked_div(unit).unwrap_or(1) as i128;
    let (width, other_width) = (units(width), units(other_width));
    let start = |of: &Header, width: i128| (of.storage_offset() as i128).saturating_mul(width);
    let mut target = start(other, other_width).saturating_sub(start(header, width));
    let strides = |of: &Header, factor: i128| -> Vec<(usize, i128)> {
        of.dims().map(|(n, stride)| (n, (stride as i128).saturating_mul(factor))).collect()
    };
    let dims = strides(header, width).into_iter().chain(strides(other, other_width.saturating_neg()));
    let parts = [(width, 1i128), (other_width, -1)].map(|(n, stride)| (n as usize, stride));
    let mut terms = Vec::new();
    for (n, stride) in dims.chain(parts).filter(|&(n, stride)| n > 1 && stride != 0) {
        let term = Term { stride: stride.abs(), highest: (n as i128).saturating_sub(1) };
        if stride < 0 {
            // Count from the other end to make the stride positive.
            target = target.saturating_add(term.reach());
        }
        terms.push(term);
    }
    let mut own_steps = MAX_STEPS.min(*steps_left);
    let before = own_steps;
    let found = has_solution(terms, target, &mut own_steps);
    *steps_left = steps_left.saturating_sub(before.saturating_sub(own_steps));
    found
}

/// Returns whether two indices that first differ in this term, by at least 1, refer to one element.
fn collides_from(first: usize, terms: &[Term]) -> Option<bool> {
    let mut rest = terms.iter().skip(first).copied();
    let Some(term) = rest.next() else { return Some(false) };
    let mut target = term.stride.saturating_neg();
    let mut differences = vec![Term { highest: term.highest.saturating_sub(1), ..term }];
    for term in rest {
        // From -highest to highest, counted from the lower end.
        target = target.saturating_add(term.reach());
        differences.push(Term { highest: term.highest.saturating_mul(2), ..term });
    }
    has_solution(differences, target, &mut MAX_STEPS.clone())
}

/// Returns whether the terms can add up to `target`. `None` if the search would take more steps than are left.
fn has_solution(mut terms: Vec<Term>, target: i128, steps_left: &mut u64) -> Option<bool> {
    terms.retain(|term| term.highest > 0);
    terms.sort_by_key(|term| std::cmp::Reverse(term.stride));
    terms.dedup_by(|next, term| {
        let is_same = next.stride == term.stride;
        if is_same {
            term.highest = term.highest.saturating_add(next.highest);
        }
        is_same
    });
    // `reaches[i]` is the sum of the reaches of `terms[i..]`.
    let mut reaches = vec![0i128];
    for term in terms.iter().rev() {
        reaches.push(reaches.last().map_or(0, |&inner| term.reach().saturating_add(inner)));
    }
    reaches.reverse();
    search(&terms, &reaches, target, steps_left)
}

/// Searches for a solution. `reaches[i]` is the sum of the reaches of `terms[i..]`, so the last one is 0.
fn search(terms: &[Term], reaches: &[i128], target: i128, steps_left: &mut u64) -> Option<bool> {
    let Some((&reach, inner_reaches)) = reaches.split_first() else { return Some(target == 0) };
    if target == 0 || !(0..=reach).contains(&target) {
        return Some(target == 0);
    }
    // Count before the checks below: a term can have billions of multiples, and each may end at one of these checks.
    let Some(left) = steps_left.checked_sub(terms.len() as u64) else {
        *steps_left = 0;
        return None;
    };
    *steps_left = left;
    // Any sum of the first few terms is a multiple of their common divisor. The other terms must cover the remainder.
    let mut divisor = 0;
    for (term, &rest) in terms.iter().zip(inner_reaches) {
        divisor = gcd(divisor, term.stride);
        if target.checked_rem(divisor).is_none_or(|missing| missing > rest) {
            return Some(false);
        }
    }
    match terms {
        [] => Some(false),
        [_] => Some(true),
        [a, b] => Some(pair_has_solution(*a, *b, target)),
        [term, terms @ ..] => {
            let rest = inner_reaches.first().copied().unwrap_or_default();
            // Try the most steps that do not exceed the target, then fewer, while the other terms can cover the rest.
            let most = target.checked_div(term.stride).unwrap_or_default().min(term.highest);
            let mut left = target.saturating_sub(most.saturating_mul(term.stride));
            for _ in 0..=most {
                if left > rest {
                    return Some(false);
                }
                if search(terms, inner_reaches, left, steps_left)? {
                    return Some(true);
                }
                left = left.saturating_add(term.stride);
            }
            Some(false)
        }
    }
}

/// Returns whether two terms can add up to `target`, a multiple of their greatest common divisor.
fn pair_has_solution(a: Term, b: Term, target: i128) -> bool {
    let divisor = gcd(a.stride, b.stride);
    let parts = (a.stride.checked_div(divisor), b.stride.checked_div(divisor), target.checked_div(divisor));
    let (Some(p), Some(q), Some(goal)) = parts else { return true };
    // p * x = goal, modulo q.
    let first = goal
        .checked_rem(q)
        .zip(inverse(p, q))
        .and_then(|(goal, inverse)| goal.checked_mul(inverse)?.checked_rem_euclid(q));
    // The lowest x is the first for which `b` can cover the rest of the target. The highest x is the last for which the
    // rest is not negative.
    let missing = target.saturating_sub(b.reach()).max(0);
    let lowest = missing.saturating_add(a.stride.saturating_sub(1)).checked_div(a.stride).unwrap_or_default();
    let highest = target.checked_div(a.stride).unwrap_or_default().min(a.highest);
    let Some(first) = first else { return true };
    let to_first = first.saturating_sub(lowest).checked_rem_euclid(q).unwrap_or_default();
    lowest.saturating_add(to_first) <= highest
}

/// Returns the multiplicative inverse of `a` modulo `modulus`. The two must be coprime.
fn inverse(a: i128, modulus: i128) -> Option<i128> {
    let (mut old, mut new) = ((a, 1i128), (modulus, 0i128));
    while new.0 != 0 {
        let times = old.0.checked_div(new.0)?;
        let next =
            (old.0.checked_sub(times.checked_mul(new.0)?)?, old.1.checked_sub(times.checked_mul(new.1)?)?);
        (old, new) = (new, next);
    }
    old.1.checked_rem_euclid(modulus)
}

/// Returns the greatest common divisor.
pub(super) fn gcd(mut a: i128, mut b: i128) -> i128 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use stridemap_format::{DType, Dims};

    use super::*;

    fn bytes(header: &Header, width: usize) -> Vec<isize> {
        let mut places = vec![header.storage_offset() as isize];
        for (n, stride) in header.dims() {
            places = places.iter().flat_map(|at| (0..n as isize).map(move |i| at + i * stride)).collect();
        }
        places.iter().flat_map(|at| (0..width as isize).map(move |byte| at * width as isize + byte)).collect()
    }

    /// Each item size once.
    const DTYPES: [DType; 5] = [DType::U8, DType::U16, DType::U32, DType::U64, DType::C128];

    fn header(size: impl Into<Dims<usize>>, stride: impl Into<Dims<isize>>, offset: usize) -> Header {
        Header::new(DType::F32, size, stride, offset).unwrap()
    }

    fn headers() -> impl Strategy<Value = Header> {
        let many_short = prop::collection::vec((0..5usize, -9..10isize), 0..5);
        let few_long = prop::collection::vec((0..60usize, -9..10isize), 0..3);
        let dtype = prop::sample::select(&DTYPES[..]);
        (prop_oneof![many_short, few_long], 1100..1140usize, dtype).prop_map(|(dims, offset, dtype)| {
            let (size, stride): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            Header::new(dtype, size, stride, offset).unwrap()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn overlaps_of_small_views_match_their_bytes(a in headers(), b in headers()) {
            let places = bytes(&a, 1);
            let is_doubled = places.iter().collect::<HashSet<_>>().len() < places.len();
            prop_assert_eq!(overlaps_itself(&a), is_doubled, "{:?}", a);

            let own: HashSet<isize> = bytes(&a, a.dtype().itemsize()).into_iter().collect();
            let meet = bytes(&b, b.dtype().itemsize()).iter().any(|byte| own.contains(byte));
            prop_assert_eq!(overlaps(&a, &b), meet, "{:?} {:?}", a, b);
        }
    }

    #[test]
    fn large_views_are_decided_without_counting() {
        let matrix = Header::contiguous(DType::F32, &[1 << 20, 1 << 20]).unwrap();
        assert!(!overlaps_itself(&matrix));
        let shifted = header([1 << 19, 1 << 19], [1 << 21, 2], 1);
        let even = header([1 << 19, 1 << 19], [1 << 21, 2], 0);
        assert!(!overlaps(&shifted, &even));
        assert!(overlaps(&shifted, &matrix));
        assert!(overlaps_itself(&header(vec![1 << 30, 2], vec![1, (1 << 30) - 1], 0)));
    }

    #[test]
    fn overlap_of_long_slices_of_typical_tensors_is_exact() {
        let slice = |n: usize, stride: isize, offset| header([n], [stride], offset);
        let grid = |rows: usize, row: isize, columns: usize, column: isize, offset| {
            header([rows, columns], [row, column], offset)
        };
        let n = 1 << 40;
        let meet = |a: &Header, b: &Header| overlaps(a, b);
        assert!(!meet(&slice(n, 2, 0), &slice(n / 2, 4, 1)));
        assert!(!meet(&slice(n, 6, 0), &slice(n, 4, 1)));
        assert!(meet(&slice(n, 6, 0), &slice(n, 4, 2)));
        assert!(meet(&slice(n, 6, 0), &slice(n, 35, n)));
        assert!(!meet(&slice(n, 6, 0), &slice(n, 35, n * 7)));
        assert!(!meet(&grid(n, 4, 1, 1, 0), &grid(n, 2, 1, 1, 1)));
        assert!(!meet(&grid(n, 48, 8, 2, 0), &grid(n, 32, 8, 2, 1)));
        assert!(meet(&grid(n, 48, 8, 2, 0), &grid(n, 32, 8, 3, 1)));
        let of_bytes = |rows: usize, row: isize, columns: usize| {
            Header::new(DType::U8, [rows, columns], [row, 1], 0).unwrap()
        };
        // Bytes of the first half of each row against floats of the second.
        let (bytes, floats) = (of_bytes(n, 800, 400), grid(n, 200, 100, 1, 100));
        assert!(!overlaps(&bytes, &floats) && !overlaps(&floats, &bytes));
        assert!(overlaps(&bytes, &grid(n, 200, 100, 1, 99)));
    }

    #[test]
    fn searches_share_their_steps() {
        let hard = |at: usize| {
            let strides: Vec<_> = (0..40).map(|i: isize| (1 << 35) + i * i * 7_919_003 + 1).collect();
            Header::new(DType::U8, [2; 40], strides, at).unwrap()
        };
        let (a, b, mut steps) = (hard(0), hard(7), MAX_STEPS + MAX_STEPS / 2);
        assert_eq!(overlaps_within(&a, &b, &mut steps), None);
        assert_eq!(steps, MAX_STEPS / 2);
        assert_eq!(overlaps_within(&a, &b, &mut steps), None);
        assert_eq!(steps, 0);
        // Without steps, only what needs no search is found.
        assert_eq!(overlaps_within(&a, &b, &mut steps), None);
        let far = Header::new(DType::U8, [2], [1], 1 << 50).unwrap();
        assert_eq!(overlaps_within(&a, &far, &mut steps), Some(false));
        assert!(overlaps(&a, &b));
        // An ordinary pair takes few.
        let (rows, column) = (header([1000, 1000], [1000, 1], 0), header([1000], [1000], 7));
        let mut steps = 100;
        assert_eq!(overlaps_within(&rows, &column, &mut steps), Some(true));
        assert!(steps > 80, "{steps}");
    }

    #[test]
    fn a_search_beyond_the_limit_says_yes() {
        // Sixty nearly equal strides: a subset sum.
        let strides: Vec<isize> = (0..60).map(|i| (1 << 40) + i * i * 7_919 + 1).collect();
        assert!(overlaps_itself(&header(vec![2; 60], strides, 0)));
        // Four strides. There are tens of millions of ways to choose steps along the larger ones such that the
        // smaller ones cannot cover the rest.
        let strides = vec![66, 23_807_482, 134_217_728, 4_294_967_296];
        assert!(overlaps_itself(&header(vec![11, 4098, 1 << 23, 1 << 14], strides, 0)));
    }
}
