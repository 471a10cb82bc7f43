//! Statistics, against a plain computation over all elements.

use std::sync::PoisonError;

use stridemap::{DType, Scalar, Statistics, Store, Tensor, set_num_threads};

use crate::harness::{fast, filled, new_path, open_mapped};
use crate::random::Random;

/// Returns the numbers that count: two for a pair, and the magnitude of a complex number.
fn numbers(x: &Tensor) -> Vec<f64> {
    let numbers = x.to_scalars().unwrap().into_iter().flat_map(|scalar| match scalar {
        Scalar::Bool(value) => vec![f64::from(value)],
        Scalar::Int(value) => vec![value as f64],
        Scalar::Float(value) => vec![value],
        Scalar::Pair(low, high) => vec![low, high],
        Scalar::Complex(re, im) if re.is_nan() || im.is_nan() => vec![f64::NAN],
        // Their squares do not overflow.
        Scalar::Complex(re, im) if x.dtype() == DType::C64 => vec![(re * re + im * im).sqrt()],
        Scalar::Complex(re, im) => vec![re.hypot(im)],
        other => panic!("{other:?}"),
    });
    numbers.collect()
}

fn is_near(found: f64, expected: f64, tolerance: f64) -> bool {
    found == expected || (found - expected).abs() <= tolerance
}

#[track_caller]
fn check(x: &Tensor) -> Statistics {
    let found = x.statistics(|_| ()).unwrap();
    let all = numbers(x);
    let count_of =
        |is_counted: fn(&f64) -> bool| all.iter().filter(|number| is_counted(number)).count() as u64;
    assert_eq!(found.count, all.len() as u64, "{x:?}");
    assert_eq!(found.nan_count, count_of(|x| x.is_nan()), "{x:?}");
    assert_eq!(found.positive_infinity_count, count_of(|x| *x == f64::INFINITY), "{x:?}");
    assert_eq!(found.negative_infinity_count, count_of(|x| *x == f64::NEG_INFINITY), "{x:?}");
    assert_eq!(found.zero_count, count_of(|x| *x == 0.), "{x:?}");
    let mut finite: Vec<f64> = all.into_iter().filter(|number| number.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    assert_eq!(found.finite_count(), finite.len() as u64, "{x:?}");
    check_range(x, &found);
    check_moments(x, &found, &finite);
    check_distribution(x, &found, &finite);
    found
}

fn check_range(x: &Tensor, found: &Statistics) {
    let scalars = x.to_scalars().unwrap();
    if x.dtype().is_complex() || x.dtype() == DType::F4E2M1FNx2 {
        let finite = numbers(x).into_iter().filter(|number| number.is_finite());
        let max = finite.clone().max_by(f64::total_cmp).map(Scalar::Float);
        assert_eq!((found.min, found.max), (finite.min_by(f64::total_cmp).map(Scalar::Float), max), "{x:?}");
    } else if scalars.iter().any(|scalar| matches!(scalar, Scalar::Int(_))) {
        let integers = || scalars.iter().map(|scalar| if let Scalar::Int(n) = scalar { *n } else { 0 });
        assert_eq!(found.min, integers().min().map(Scalar::Int), "{x:?}");
        assert_eq!(found.max, integers().max().map(Scalar::Int), "{x:?}");
    } else {
        let values = || {
            scalars.iter().filter_map(|scalar| match scalar {
                Scalar::Float(value) if value.is_finite() => Some((*value, *scalar)),
                Scalar::Bool(value) => Some((f64::from(*value), *scalar)),
                _ => None,
            })
        };
        let by_value = |a: &(f64, Scalar), b: &(f64, Scalar)| a.0.total_cmp(&b.0);
        assert_eq!(found.min, values().min_by(by_value).map(|(_, scalar)| scalar), "{x:?}");
        assert_eq!(found.max, values().max_by(by_value).map(|(_, scalar)| scalar), "{x:?}");
    }
}

fn check_moments(x: &Tensor, found: &Statistics, finite: &[f64]) {
    let n = finite.len() as f64;
    let mean = finite.iter().sum::<f64>() / n;
    let std = (finite.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.)).sqrt();
    let size = finite.iter().map(|x| x.abs()).fold(0., f64::max);
    // Then the sums of blocks cannot overflow, in whatever order they are added up.
    let is_summable = finite.iter().map(|x| x.abs()).sum::<f64>().is_finite();
    match found.mean() {
        Some(found) if is_summable => {
            assert!(is_near(found, mean, 1e-12 * size), "{x:?}: {found} {mean}")
        }
        found => assert!(found.is_some() || finite.is_empty(), "{x:?}"),
    }
    match found.std() {
        Some(found) if std.is_finite() => {
            assert!(is_near(found, std, 1e-9 * std + 1e-12 * size), "{x:?}: {found} {std}")
        }
        found => assert!(found.is_some() || finite.len() < 2, "{x:?}"),
    }
}

fn check_distribution(x: &Tensor, found: &Statistics, finite: &[f64]) {
    assert_eq!(found.histogram(40).iter().sum::<u64>(), finite.len() as u64, "{x:?}");
    assert_eq!((found.quantile(-0.1), found.quantile(f64::NAN)), (None, None));
    let (Some(&first), Some(&last)) = (finite.first(), finite.last()) else {
        assert_eq!((found.histogram(2), found.quantile(0.5)), (vec![0, 0], None));
        return;
    };
    let is_exact = x.dtype().itemsize() <= 2 || x.statistics(|_| ()).unwrap().count <= 4096;
    let is_integer = matches!(found.min, Some(Scalar::Int(_)));
    for fraction in [0., 0.001, 0.3, 0.5, 0.999, 1.] {
        let expected = finite[((finite.len() - 1) as f64 * fraction - 0.5).ceil().max(0.) as usize];
        let tolerance = match (is_exact, is_integer) {
            (true, _) => 0.,
            (false, true) => (last - first) / 32768.,
            (false, false) => 0.032 * expected.abs() + (last - first) / 65536.,
        };
        let quantile = found.quantile(fraction).unwrap();
        assert!(is_near(quantile, expected, tolerance), "{x:?} {fraction}: {quantile} {expected}");
    }
    if is_exact {
        let edge = |part: f64| ((first / 2. + (last / 2. - first / 2.) * part / 7.) * 2.).min(last);
        let below = |bin: usize| match bin {
            7 => finite.len(),
            bin => finite.iter().filter(|x| **x < edge(bin as f64)).count(),
        };
        let expected: Vec<u64> =
            (0..7).map(|bin| if bin == 0 { below(1) } else { below(bin + 1) - below(bin) } as u64).collect();
        assert_eq!(found.histogram(7), expected, "{x:?}");
    }
}

/// Returns a tensor of arbitrary bytes, and one of ordinary numbers.
fn samples(dtype: DType, size: &[usize], random: &mut Random) -> [Tensor; 2] {
    let numel: usize = size.iter().product();
    let byte = |random: &mut Random| match dtype {
        DType::Bool => random.below(2u64) as u8,
        _ => random.below(256u64) as u8,
    };
    let bytes: Vec<u8> = (0..numel * dtype.itemsize()).map(|_| byte(random)).collect();
    let arbitrary = Tensor::from_bytes(dtype, size, &bytes).unwrap();
    if dtype == DType::F4E2M1FNx2 {
        return [arbitrary.clone(), arbitrary];
    }
    let mut ordinary = || (0..4).map(|_| random.below(1000u64) as f64 / 100. - 5.).sum::<f64>();
    let ordinary = Tensor::from_vec((0..numel).map(|_| ordinary()).collect(), size).unwrap();
    [arbitrary, ordinary.to_dtype(dtype).unwrap()]
}

/// Returns views of every kind of a tensor with three dimensions.
fn views(x: &Tensor) -> Vec<Tensor> {
    let shape = x.size().to_vec();
    vec![
        x.clone(),
        x.transpose(0, 2).unwrap(),
        x.flip([0, 2]).unwrap(),
        x.permute([1, 2, 0]).unwrap().flip(1).unwrap(),
        x.slice(2, 1, None, 2).unwrap(),
        x.slice(0, 1, 3, 1).unwrap().slice(1, None, None, 3).unwrap(),
        x.select(1, 2).unwrap(),
        x.select(1, 2).unwrap().unsqueeze(1).unwrap().expand([shape[0], 5, shape[2]]).unwrap(),
        x.unfold(1, 3, 1).unwrap(),
        x.select(0, 0).unwrap().select(0, 0).unwrap().select(0, 1).unwrap(),
        x.select(0, 0).unwrap().select(0, 0).unwrap().select(0, 1).unwrap().expand([30, 100]).unwrap(),
        x.narrow(1, 2, 0).unwrap(),
        x.narrow(1, 2, 0).unwrap().unsqueeze(0).unwrap().expand([9, shape[0], 0, shape[2]]).unwrap(),
    ]
}

#[test]
fn statistics_of_every_dtype_and_view_match_a_plain_computation() {
    let mut random = Random::new(Random::seed("statistics"));
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    for &dtype in DType::ALL {
        for size in [[7, 40, 33], [4, 6, 5]] {
            for (kind, x) in samples(dtype, &size, &mut random).into_iter().enumerate() {
                views(&x).iter().for_each(|view| drop(check(view)));
                store.save(&format!("{dtype}.{}.{kind}", size[0]), &x).unwrap();
            }
        }
    }
    for store in [Store::open(&path).unwrap(), open_mapped(&path)] {
        for name in store.snapshot().names().unwrap() {
            let x = store.load(&name).unwrap();
            [x.clone(), x.transpose(0, 1).unwrap(), x.slice(2, None, None, 2).unwrap()].iter().for_each(
                |view| {
                    let heap = view.clone_data().unwrap();
                    let (found, expected) = (check(view), heap.statistics(|_| ()).unwrap());
                    assert_eq!(
                        (found.min, found.histogram(9)),
                        (expected.min, expected.histogram(9)),
                        "{view:?}"
                    );
                },
            );
        }
    }
}

#[test]
fn statistics_do_not_depend_on_the_number_of_threads() {
    let _alone = super::THREAD_LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut random = Random::new(7);
    let number = |at: usize| match random.below(1000u64) {
        0 => f64::NAN,
        1 => f64::NEG_INFINITY,
        // The range grows towards the end.
        n => (n as f64 - 500.) * (at as f64).exp2().min(1e9),
    };
    let x = Tensor::from_vec((0..1 << 20).map(number).collect(), &[1024, 1024]).unwrap();
    for dtype in [DType::F64, DType::F32, DType::I64, DType::F16] {
        for view in [x.to_dtype(dtype).unwrap(), x.to_dtype(dtype).unwrap().slice(1, None, None, 2).unwrap()]
        {
            let on_threads = [1, 2, 3, 0].map(|count| {
                set_num_threads(count);
                let mut read_bytes = 0;
                let found = view.statistics(|bytes| read_bytes += bytes).unwrap();
                assert_eq!(read_bytes, view.nbytes() as u64);
                found
            });
            // NaN is not equal to NaN, and none of these is NaN.
            assert!(on_threads.iter().all(|found| *found == on_threads[0]), "{view:?}");
        }
    }
}

#[test]
fn extremes_of_64_bits_are_exact() {
    let x = Tensor::from_vec(vec![i64::MIN, -1, 0, i64::MAX - 1], &[4]).unwrap();
    let found = x.expand([2000, 4]).unwrap().statistics(|_| ()).unwrap();
    assert_eq!((found.min, found.max), (Some(Scalar::from(i64::MIN)), Some(Scalar::from(i64::MAX - 1))));
    assert_eq!((found.count, found.zero_count), (8000, 2000));
    let x = Tensor::from_vec((0..5000).map(|n| u64::MAX - n).collect(), &[5000]).unwrap();
    let found = x.statistics(|_| ()).unwrap();
    assert_eq!((found.min, found.max), (Some(Scalar::from(u64::MAX - 4999)), Some(Scalar::from(u64::MAX))));
}

#[test]
fn a_tensor_expanded_beyond_memory_is_counted() {
    let x = Tensor::from_vec(vec![1f32, 3.], &[2]).unwrap().expand([1i64 << 40, 2]).unwrap();
    let found = x.statistics(|_| ()).unwrap();
    assert_eq!((found.count, found.mean()), (1 << 41, Some(2.)));
    assert!(is_near(found.std().unwrap(), 1., 1e-9));
    assert_eq!(found.histogram(2), [1 << 40, 1 << 40]);
}

#[test]
fn a_small_spread_far_from_zero_is_resolved() {
    let spread = |at: usize| 1e6 + (at % 5000) as f64 / 1000.;
    let x = Tensor::from_vec((0..100_000).map(spread).collect(), &[100_000]).unwrap();
    let found = x.statistics(|_| ()).unwrap();
    let even = 100_000 / 5;
    assert!(
        found.histogram(5).iter().all(|count| count.abs_diff(even) < even / 50),
        "{:?}",
        found.histogram(5)
    );
    assert!(is_near(found.quantile(0.25).unwrap(), 1e6 + 1.25, 0.001));
    assert!(is_near(found.std().unwrap(), 1.44338, 1e-4));
}

#[test]
fn no_finite_element_has_no_range() {
    let x = Tensor::from_vec(vec![f32::NAN, f32::INFINITY], &[2]).unwrap();
    let found = x.statistics(|_| ()).unwrap();
    assert_eq!((found.min, found.max, found.mean(), found.std()), (None, None, None, None));
    assert_eq!((found.finite_count(), found.histogram(3), found.quantile(0.)), (0, vec![0; 3], None));
}

#[test]
fn histogram_of_integers_has_them_in_the_bins_they_begin() {
    let x = Tensor::from_vec((0..=25i16).collect(), &[26]).unwrap();
    let mut expected = vec![1; 25];
    expected[24] = 2;
    assert_eq!(x.statistics(|_| ()).unwrap().histogram(25), expected);
}

#[test]
fn quantiles_0_and_1_are_the_extremes() {
    for x in [
        Tensor::from_vec((0..6000i64).map(|n| n * 1_000_000).collect(), &[6000]).unwrap(),
        Tensor::from_vec((0..6000).map(|n| (n * n) as f32 * 1.03).collect(), &[6000]).unwrap(),
        Tensor::from_vec((0..6000).map(|n| f64::from(n) * 1e296).collect(), &[6000]).unwrap(),
    ] {
        let statistics = x.statistics(|_| ()).unwrap();
        let last = x.to_dtype(DType::F64).unwrap().read::<f64>().unwrap()[5999];
        assert_eq!([statistics.quantile(0.), statistics.quantile(1.)], [Some(0.), Some(last)]);
    }
}

#[test]
fn histogram_of_more_elements_than_a_float_can_count_adds_up() {
    let mut elements: Vec<u32> = (0..4200).map(|n| n % 16).collect();
    elements.push(1_048_575);
    let x = Tensor::from_vec(elements, &[4201]).unwrap();
    let many = x.expand([(1i64 << 49) - 1, 4201]).unwrap();
    let counts = many.statistics(|_| ()).unwrap().histogram(69_905);
    assert_eq!(counts.iter().sum::<u64>(), ((1u64 << 49) - 1) * 4201);
}

#[test]
fn quantiles_and_histogram_of_very_large_tensors_are_of_a_sample() {
    let mut elements: Vec<f32> = (0..16_384).map(|at| ((at * 7919) % 16_384) as f32).collect();
    (elements[8190], elements[8191], elements[8192]) = (20_000., f32::NAN, 0.);
    let windows = Tensor::from_vec(elements.clone(), &[16_384]).unwrap().unfold(0, 8192, 1).unwrap();
    let found = windows.statistics(|_| ()).unwrap();
    let count = 8193 * 8192u64;
    assert!(count > 64 << 20);
    assert_eq!((found.count, found.nan_count, found.finite_count()), (count, 8192, count - 8192));
    assert_eq!([found.quantile(0.), found.quantile(1.)], [Some(0.), Some(20_000.)]);
    let part = found.sample_count() as f64 / count as f64;
    assert!((0.06..0.065).contains(&part), "{part}");

    // Each element, and in how many windows it is.
    let windows_of = |at: u64| at.min(8192) - at.saturating_sub(8191) + 1;
    let mut counted: Vec<(f32, u64)> = elements.into_iter().zip((0..).map(windows_of)).collect();
    counted.retain(|(element, _)| !element.is_nan());
    counted.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    assert_eq!(counted.iter().map(|(_, n)| n).sum::<u64>(), found.finite_count());
    let below = |limit: f64| -> u64 {
        counted.iter().filter(|(element, _)| f64::from(*element) < limit).map(|(_, n)| n).sum()
    };
    for fraction in [0.01, 0.25, 0.5, 0.99] {
        let quantile = found.quantile(fraction).unwrap();
        let found = below(quantile) as f64 / count as f64;
        assert!(is_near(found, fraction, 0.002), "{fraction}: {quantile} {found}");
    }
    let counts = found.histogram(10);
    assert_eq!(counts.iter().sum::<u64>(), found.finite_count());
    for (bin, &bin_count) in counts.iter().enumerate() {
        let edge = |bin: usize| if bin == 10 { f64::INFINITY } else { bin as f64 * 2000. };
        let expected = below(edge(bin + 1)) - below(edge(bin));
        assert!(
            is_near(bin_count as f64, expected as f64, 0.002 * count as f64),
            "{bin}: {bin_count} {expected}"
        );
    }
}

#[test]
fn zero_has_no_sign() {
    for dtype in [DType::F16, DType::F32, DType::F64] {
        let x = Tensor::from_vec(vec![-0f32], &[1]).unwrap().to_dtype(dtype).unwrap();
        let Some(Scalar::Float(min)) = x.statistics(|_| ()).unwrap().min else { panic!("{dtype}") };
        assert!(min.is_sign_positive(), "{dtype}");
    }
}

/// Returns the element at a quantile: the nearest one, and of two equally near ones the lower.
fn plain_quantile(sorted: &[f64], fraction: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * fraction - 0.5).ceil().max(0.) as usize]
}

/// Checks quantiles: exactly where the element is zero, and within the error that is documented elsewhere. `smallest`
/// is the distance below which elements differ by more than that.
#[track_caller]
fn check_quantiles(x: &Tensor, relative: f64, smallest: f64) {
    let statistics = check(x);
    let mut sorted: Vec<f64> = numbers(x).into_iter().filter(|number| number.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    for fraction in [0., 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.79, 0.8, 0.81, 0.9, 0.99, 0.999, 1.] {
        let expected = plain_quantile(&sorted, fraction);
        let found = statistics.quantile(fraction).unwrap();
        let tolerance = if expected == 0. { 0. } else { expected.abs() * relative + smallest };
        assert!(is_near(found, expected, tolerance), "{x:?}: {fraction}: {found}, not {expected}");
    }
}

#[test]
fn quantiles_beside_zeros_are_zero() {
    const N: usize = 100_000;
    let mut random = Random::new(7);
    // Four of five elements are zeros, of either sign. The others are near zero and far from it, also on both sides.
    for signs in [&[1.][..], &[-1.], &[1., -1.]] {
        let elements: Vec<f64> = (0..N)
            .map(|i| match i % 5 {
                0 => signs[random.below(signs.len())] * 10f64.powi(random.below(60) - 30),
                1 => -0.,
                _ => 0.,
            })
            .collect();
        let narrow = elements.iter().map(|&x| x as f32).collect();
        check_quantiles(&Tensor::from_vec(narrow, &[N]).unwrap(), 0.004, 1e-40);
        check_quantiles(&Tensor::from_vec(elements, &[N]).unwrap(), 0.032, 1e-300);
    }
    // Numbers that are smaller than any normal one.
    let denormal = (0..N as u32).map(|i| if i % 5 == 0 { f32::from_bits(i) } else { 0. }).collect();
    check_quantiles(&Tensor::from_vec(denormal, &[N]).unwrap(), 0.004, 1e-40);
    // Integers, for which the error is a part of the range.
    let integers: Vec<i64> = (0..N as i64).map(|i| if i % 5 == 0 { i - 50_000 } else { 0 }).collect();
    check_quantiles(&Tensor::from_vec(integers.clone(), &[N]).unwrap(), 0., 2.);
    let absolute = integers.iter().map(|x| x.unsigned_abs() as u32 * 40_000).collect();
    check_quantiles(&Tensor::from_vec(absolute, &[N]).unwrap(), 0., 2e9 / 65_536.);
}

#[test]
fn quantiles_of_one_hot_rows_and_of_elements_that_are_all_equal() {
    let one_hot = |n: usize| {
        let mut elements = vec![0f32; n * 100];
        (0..100).for_each(|row| elements[row * n + row] = 1.);
        Tensor::from_vec(elements, &[100, n]).unwrap().statistics(|_| ()).unwrap()
    };
    let statistics = one_hot(4096);
    for fraction in [0., 0.5, 0.9, 0.99, 0.999] {
        assert_eq!(statistics.quantile(fraction), Some(0.), "{fraction}");
    }
    assert_eq!(statistics.quantile(1.), Some(1.));
    assert_eq!(statistics.histogram(2), [100 * 4095, 100]);
    for value in [0f32, -0., 1e-40, -1e-40, 1., 6., f32::MAX] {
        let statistics = filled(20_000, value).statistics(|_| ()).unwrap();
        for fraction in [0., 0.3, 0.5, 1.] {
            assert_eq!(statistics.quantile(fraction), Some(f64::from(value)), "{value:e} {fraction}");
        }
    }
}

#[test]
fn nan_and_infinities_have_no_part_in_quantiles() {
    let with = |special: f32| {
        let elements = (0..50_000).map(|i| [0., special, 0., special, 2.][i % 5]).collect();
        Tensor::from_vec(elements, &[50_000]).unwrap().statistics(|_| ()).unwrap()
    };
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let statistics = with(special);
        assert_eq!((statistics.finite_count(), statistics.sample_count()), (30_000, 30_000));
        assert_eq!([0., 0.5, 0.66].map(|fraction| statistics.quantile(fraction)), [Some(0.); 3]);
        assert_eq!([0.67, 1.].map(|fraction| statistics.quantile(fraction)), [Some(2.); 2]);
    }
    let nothing = Tensor::from_vec(vec![f32::NAN; 20_000], &[20_000]).unwrap().statistics(|_| ()).unwrap();
    assert_eq!((nothing.quantile(0.5), nothing.nan_count), (None, 20_000));
}
