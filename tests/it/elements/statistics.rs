//! Statistics, against a plain computation over all elements.

use std::sync::PoisonError;

use serde_json::Value;
use stridemap::{DType, Scalar, Statistics, Store, Tensor, set_num_threads};

use crate::harness::{fast, new_path, open_mapped};
use crate::random::Random;

const QUANTILES: &str = include_str!("../../data/numpy_quantiles.jsonl");

/// Returns the numbers that count: two for a pair, and the magnitude of a complex number.
fn numbers(x: &Tensor) -> Vec<f64> {
    let numbers = x.to_scalars().unwrap().into_iter().flat_map(|scalar| match scalar {
        Scalar::Bool(value) => vec![f64::from(value)],
        Scalar::Int(value) => vec![value as f64],
        Scalar::Float(value) => vec![value],
        Scalar::Pair(low, high) => vec![low, high],
        Scalar::Complex(re, im) if re.is_nan() || im.is_nan() => vec![f64::NAN],
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

/// Quantiles are compared with NumPy's in another test: here, the two elements around the position.
fn check_distribution(x: &Tensor, found: &Statistics, finite: &[f64]) {
    assert_eq!(found.sample_count, finite.len() as u64, "{x:?}");
    assert_eq!((found.quantile(-0.1), found.quantile(f64::NAN)), (None, None));
    let (Some(&first), Some(&last)) = (finite.first(), finite.last()) else {
        assert_eq!((found.histogram(2), found.quantile(0.5)), (vec![0, 0], None));
        return;
    };
    for fraction in [0., 0.001, 0.3, 0.5, 0.999, 1.] {
        let position = (finite.len() - 1) as f64 * fraction;
        let (low, high) = (finite[position.floor() as usize], finite[position.ceil() as usize]);
        let quantile = found.quantile(fraction).unwrap();
        assert!(low <= quantile && quantile <= high, "{x:?} {fraction}: {low} {quantile} {high}");
    }
    // The numbers are halved, because the difference of two can be infinite.
    let edge = |bin: usize| ((first / 2. + (last / 2. - first / 2.) / 7. * bin as f64) * 2.).min(last);
    let is_apart =
        |edge: f64| finite.iter().all(|x| !is_near(*x, edge, 1e-12 * (last - first)) || *x == edge);
    if (1..7).all(|bin| is_apart(edge(bin))) {
        let below = |bin: usize| finite.iter().filter(|x| bin == 7 || **x < edge(bin)).count() as u64;
        let below: Vec<u64> = (0..=7).map(|bin| if bin == 0 { 0 } else { below(bin) }).collect();
        let expected: Vec<u64> = below.iter().zip(below.iter().skip(1)).map(|(a, b)| b - a).collect();
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
        x.permute([1, 2, 0]).unwrap().flip([1]).unwrap(),
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
    let x = Tensor::from_vec((0..3 << 19).map(number).collect(), &[1536, 1024]).unwrap();
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
    // The repeated elements count for a quantile: one in four is in the middle of the ones.
    assert_eq!(
        (found.quantile(0.25), found.quantile(0.5), found.sample_count),
        (Some(1.), Some(2.), 1 << 41)
    );
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
fn histogram_of_more_elements_than_a_float_can_count_adds_up() {
    let mut elements: Vec<u32> = (0..4200).map(|n| n % 16).collect();
    elements.push(1_048_575);
    let x = Tensor::from_vec(elements, &[4201]).unwrap();
    let many = x.expand([(1i64 << 49) - 1, 4201]).unwrap();
    let counts = many.statistics(|_| ()).unwrap().histogram(69_905);
    assert_eq!(counts.iter().sum::<u64>(), ((1u64 << 49) - 1) * 4201);
}

#[test]
fn zero_has_no_sign() {
    for dtype in [DType::F16, DType::F32, DType::F64] {
        let x = Tensor::from_vec(vec![-0f32], &[1]).unwrap().to_dtype(dtype).unwrap();
        let Some(Scalar::Float(min)) = x.statistics(|_| ()).unwrap().min else { panic!("{dtype}") };
        assert!(min.is_sign_positive(), "{dtype}");
    }
}

/// Returns the elements that a line describes, as text or as the upper bits of products.
fn elements_of(row: &Value) -> Tensor {
    let dtype: DType = row["dtype"].as_str().unwrap().parse().unwrap();
    let number = |key: &str| row[key].as_i64().unwrap();
    let Some(text) = row["numbers"].as_array() else {
        let product = |at: i64| i64::from((at as u32).wrapping_mul(2_654_435_769) >> (32 - number("bits")));
        let numbers = (0..number("count")).map(|at| product(at) - number("minus")).collect();
        return Tensor::from_vec(numbers, &[number("count") as usize]).unwrap().to_dtype(dtype).unwrap();
    };
    let (text, size) = (text.iter().map(|text| text.as_str().unwrap()), [text.len()]);
    match dtype {
        DType::I64 => Tensor::from_vec(text.map(|text| text.parse::<i64>().unwrap()).collect(), &size),
        DType::U64 => Tensor::from_vec(text.map(|text| text.parse::<u64>().unwrap()).collect(), &size),
        _ => Tensor::from_vec(text.map(|text| text.parse::<f64>().unwrap()).collect(), &size)
            .and_then(|wide| wide.to_dtype(dtype)),
    }
    .unwrap()
}

#[test]
fn quantiles_are_those_of_numpy() {
    for line in QUANTILES.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let found = elements_of(&row).statistics(|_| ()).unwrap();
        for pair in row["quantiles"].as_array().unwrap() {
            let (fraction, expected) = (pair[0].as_f64().unwrap(), pair[1].as_f64().unwrap());
            let quantile = found.quantile(fraction).unwrap();
            assert_eq!(
                quantile.to_bits(),
                expected.to_bits(),
                "{} {fraction}: {quantile} {expected}",
                row["what"]
            );
        }
        assert_eq!(found.quantile(0.5).is_none(), row["quantiles"].as_array().unwrap().is_empty(), "{row}");
    }
}

/// Checks that quantiles and a histogram of a sample are near those of all elements.
fn check_sampled(what: &str, all: &[f32]) -> Statistics {
    let found = Tensor::from_vec(all.to_vec(), &[all.len()]).unwrap().statistics(|_| ()).unwrap();
    assert_eq!((found.count, found.sample_count), (all.len() as u64, 1 << 20), "{what}");
    let mut sorted = all.to_vec();
    sorted.sort_by(f32::total_cmp);
    let below = |limit: f64| sorted.partition_point(|x| f64::from(*x) < limit) as f64 / sorted.len() as f64;
    let up_to = |limit: f64| sorted.partition_point(|x| f64::from(*x) <= limit) as f64 / sorted.len() as f64;
    for fraction in [0., 0.001, 0.01, 0.25, 0.5, 0.799, 0.99, 0.999, 1.] {
        let quantile = found.quantile(fraction).unwrap();
        let within = below(quantile) - 0.002..=up_to(quantile) + 0.002;
        assert!(within.contains(&fraction), "{what} {fraction}: {quantile} {within:?}");
    }
    let counts = found.histogram(10);
    assert_eq!(counts.iter().sum::<u64>(), found.finite_count(), "{what}");
    let (min, max) = (f64::from(sorted[0]), f64::from(sorted[sorted.len() - 1]));
    assert_eq!((found.quantile(0.), found.quantile(1.)), (Some(min), Some(max)), "{what}");
    let share = |bin: usize| if bin == 10 { 1. } else { below(min + (max - min) * bin as f64 / 10.) };
    for (bin, &bin_count) in counts.iter().enumerate() {
        let (counted, expected) = (bin_count as f64 / found.count as f64, share(bin + 1) - share(bin));
        assert!(is_near(counted, expected, 0.002), "{what} {bin}: {counted} {expected}");
    }
    found
}

#[test]
fn quantiles_of_more_elements_are_of_a_sample_without_a_bias() {
    const COUNT: usize = 6 << 20;
    let mut random = Random::new(5);
    let mut all = |of: &dyn Fn(usize, f32) -> f32| -> Vec<f32> {
        (0..COUNT).map(|at| of(at, random.below(1u64 << 24) as f32)).collect()
    };
    let _ = check_sampled("drawn", &all(&|_, drawn| drawn));
    let _ = check_sampled("ascending", &all(&|at, _| at as f32));
    // A sample at equal distances would be of a few of the columns.
    for period in [2, 3, 4, 6, 8, 10, 12, 1024] {
        let _ = check_sampled("columns", &all(&|at, _| (at % period) as f32));
    }
    // Parts of whole elements would have one or two elements, by the column in which they begin.
    for (rows, columns) in [((1 << 19) - 1, 3), ((1 << 19) - 1, 5), (1 << 19, 3), ((1 << 20) - 1, 2)] {
        let matrix: Vec<f32> = (0..rows * columns)
            .map(|at| match at % columns {
                0 => at as f32 / (rows * columns) as f32,
                column => column as f32,
            })
            .collect();
        let _ = check_sampled("narrow matrix", &matrix);
    }
    let zeros = check_sampled("80 % zeros", &all(&|at, drawn| if at % 5 > 0 { 0. } else { drawn }));
    assert_eq!(zeros.quantile(0.5), Some(0.));
    let one_hot = check_sampled("one-hot", &all(&|at, _| f32::from(at == 12_345)));
    assert_eq!((one_hot.quantile(0.999), one_hot.quantile(1.)), (Some(0.), Some(1.)));
}

#[test]
fn few_finite_elements_of_many_have_quantiles_and_a_histogram() {
    let mut all = vec![f32::NAN; 4 << 20];
    (all[77], all[3_000_000], all[4_000_000]) = (1., 2., 5.);
    let found = Tensor::from_vec(all, &[4 << 20]).unwrap().statistics(|_| ()).unwrap();
    assert_eq!((found.finite_count(), found.quantile(0.), found.quantile(1.)), (3, Some(1.), Some(5.)));
    assert_eq!(found.histogram(2).iter().sum::<u64>(), 3);
}
