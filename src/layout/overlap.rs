//! Whether two indices of a view, or of two views, lead to one place of the storage.
//!
//! Both questions ask for a solution in whole numbers of `a[0]*x[0] + a[1]*x[1] + ... = b` where each `x` has a bound.
//! In general that is hard; the strides of real tensors make it easy, because each is larger than what lies below it
//! can reach. So the search is exact up to an amount of work that they never need, and beyond it says yes.

use super::Layout;

/// Steps of a search before it gives up.
const MAX_WORK: usize = 100_000;

/// `stride * x` with `x` from 0 to `highest`; both at least 1.
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

impl Layout {
    /// Whether two indices lead to one element. It may say so of a view of many dimensions in which none do, never the
    /// other way round.
    pub(crate) fn overlaps_itself(&self) -> bool {
        if self.numel() == 0 {
            return false;
        }
        let mut terms = Vec::with_capacity(self.rank());
        for (n, stride) in self.dims().filter(|&(n, _)| n > 1) {
            if stride == 0 {
                return true;
            }
            // Two indices differ by some number of steps, in either direction: the sign of a stride does not matter.
            terms.push(Term { stride: (stride as i128).abs(), highest: (n as i128).saturating_sub(1) });
        }
        terms.sort_by_key(|term| term.stride);
        let mut inner_reach = 0i128;
        let is_nested = terms.iter().all(|term| {
            let clears = term.stride > inner_reach;
            inner_reach = inner_reach.saturating_add(term.reach());
            clears
        });
        !is_nested && (0..terms.len()).any(|first| differ_from(first, &terms))
    }

    /// Whether an element of one has a byte in common with an element of the other, over the same storage; the widths
    /// are in bytes. As [`overlaps_itself`](Self::overlaps_itself), it errs on the side of yes.
    pub(crate) fn overlaps(&self, width: usize, other: &Layout, other_width: usize) -> bool {
        if self.numel() == 0 || other.numel() == 0 {
            return false;
        }
        // offset + sum(stride * x) + byte = other offset + sum(other stride * y) + other byte, all in bytes.
        let (width, other_width) = (width as i128, other_width as i128);
        let bytes = |layout: &Layout, width: i128| (layout.offset() as i128).saturating_mul(width);
        let mut target = bytes(other, other_width).saturating_sub(bytes(self, width));
        let strides = |layout: &Layout, factor: i128| -> Vec<(usize, i128)> {
            layout.dims().map(|(n, stride)| (n, (stride as i128).saturating_mul(factor))).collect()
        };
        let dims = strides(self, width).into_iter().chain(strides(other, other_width.saturating_neg()));
        let byte_dims = [(width, 1i128), (other_width, -1)].map(|(n, stride)| (n as usize, stride));
        let mut terms = Vec::new();
        for (n, stride) in dims.chain(byte_dims).filter(|&(n, stride)| n > 1 && stride != 0) {
            let term = Term { stride: stride.abs(), highest: (n as i128).saturating_sub(1) };
            if stride < 0 {
                // Counted from the other end, so that the stride is positive.
                target = target.saturating_add(term.reach());
            }
            terms.push(term);
        }
        has_solution(terms, target)
    }
}

/// Whether two indices that first differ at this term, and there by at least 1, lead to one element.
fn differ_from(first: usize, terms: &[Term]) -> bool {
    let mut rest = terms.iter().skip(first).copied();
    let Some(term) = rest.next() else { return false };
    let mut target = term.stride.saturating_neg();
    let mut differences = vec![Term { highest: term.highest.saturating_sub(1), ..term }];
    for term in rest {
        // From -highest to highest, counted from the lower end.
        target = target.saturating_add(term.reach());
        differences.push(Term { highest: term.highest.saturating_mul(2), ..term });
    }
    has_solution(differences, target)
}

/// Whether the terms can add up to `target`; yes, too, when that would take too much work to find out.
fn has_solution(mut terms: Vec<Term>, target: i128) -> bool {
    terms.retain(|term| term.highest > 0);
    terms.sort_by_key(|term| std::cmp::Reverse(term.stride));
    terms.dedup_by(|next, term| {
        let is_same = next.stride == term.stride;
        if is_same {
            term.highest = term.highest.saturating_add(next.highest);
        }
        is_same
    });
    // For each place the greatest common divisor and the reach of the terms from there on.
    let mut tails = vec![(0i128, 0i128)];
    for term in terms.iter().rev() {
        let (divisor, reach) = tails.last().copied().unwrap_or_default();
        tails.push((gcd(term.stride, divisor), reach.saturating_add(term.reach())));
    }
    tails.reverse();
    search(&terms, &tails, target, &mut 0)
}

fn search(terms: &[Term], tails: &[(i128, i128)], target: i128, work: &mut usize) -> bool {
    *work = work.saturating_add(1);
    let Some((&(divisor, reach), tails)) = tails.split_first() else { return true };
    let is_possible = target == 0
        || (0..=reach).contains(&target) && target.checked_rem(divisor).is_none_or(|rest| rest == 0);
    let Some((term, terms)) = terms.split_first() else { return target == 0 };
    if !is_possible || target == 0 {
        return is_possible;
    }
    let rest_reach = tails.first().map_or(0, |&(_, reach)| reach);
    // The most steps that do not pass the target, down to the fewest from which the other terms can make up.
    let most = target.checked_div(term.stride).unwrap_or_default().min(term.highest);
    let mut left = target.saturating_sub(most.saturating_mul(term.stride));
    for _ in 0..=most {
        if left > rest_reach {
            return false;
        }
        if *work > MAX_WORK || search(terms, tails, left, work) {
            return true;
        }
        left = left.saturating_add(term.stride);
    }
    false
}

fn gcd(mut a: i128, mut b: i128) -> i128 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn bytes(layout: &Layout, width: usize) -> Vec<isize> {
        let mut places = vec![layout.offset() as isize];
        for (n, stride) in layout.dims() {
            places = places.iter().flat_map(|at| (0..n as isize).map(move |i| at + i * stride)).collect();
        }
        places.iter().flat_map(|at| (0..width as isize).map(move |byte| at * width as isize + byte)).collect()
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        let dims = prop::collection::vec((0..5usize, -9..10isize), 0..5);
        (dims, 150..170usize).prop_map(|(dims, offset)| {
            let (size, stride) = dims.into_iter().unzip();
            Layout::new(size, stride, offset).unwrap()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn small_views_overlap_exactly_where_their_elements_do(a in layouts(), b in layouts(), widths in (0..5u32, 0..5u32)) {
            let places = bytes(&a, 1);
            let is_doubled = places.iter().collect::<HashSet<_>>().len() < places.len();
            prop_assert_eq!(a.overlaps_itself(), is_doubled, "{:?}", a);

            let (width, other_width) = (1 << widths.0, 1 << widths.1);
            let own: HashSet<isize> = bytes(&a, width).into_iter().collect();
            let meet = bytes(&b, other_width).iter().any(|byte| own.contains(byte));
            prop_assert_eq!(a.overlaps(width, &b, other_width), meet, "{:?} {:?} {:?}", a, b, (width, other_width));
        }
    }

    #[test]
    fn large_views_are_decided_without_counting() {
        let matrix = Layout::contiguous(&[1 << 20, 1 << 20]).unwrap();
        assert!(!matrix.overlaps_itself());
        let shifted = Layout::new(vec![1 << 19, 1 << 19], vec![1 << 21, 2], 1).unwrap();
        let even = Layout::new(vec![1 << 19, 1 << 19], vec![1 << 21, 2], 0).unwrap();
        assert!(!shifted.overlaps(4, &even, 4));
        assert!(shifted.overlaps(4, &matrix, 4));
        assert!(Layout::new(vec![1 << 30, 2], vec![1, (1 << 30) - 1], 0).unwrap().overlaps_itself());
    }

    #[test]
    fn a_search_without_end_says_yes() {
        // Sixty strides that are nearly equal: a subset sum.
        let strides = (0..60).map(|i| (1 << 40) + i * i * 7_919 + 1).collect();
        assert!(Layout::new(vec![2; 60], strides, 0).unwrap().overlaps_itself());
    }
}
