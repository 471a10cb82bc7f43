//! The `diff` command on values of every kind, with tolerances, and on tensors larger than memory.

use std::fs::File;
use std::process::Command;

use stridemap::{DType, Tensor};

use crate::harness::Dir;

/// Returns the result of comparing two tensors of the same name.
fn compared(a: &Tensor, b: &Tensor, args: &[&str]) -> String {
    let dir = Dir::empty();
    dir.store_of("a", &[("x", a.clone())]);
    dir.store_of("b", &[("x", b.clone())]);
    let (is_equal, text) = dir.diff(&[&["a", "b"], args].concat());
    assert_eq!(is_equal, text.starts_with("equal: 1 tensor"), "{text}");
    match text.split_once('\n').unwrap().0.strip_prefix("~ x\tvalues differ in ") {
        Some(difference) => difference.to_owned(),
        None => text,
    }
}

fn f64s(values: &[f64]) -> Tensor {
    Tensor::from_vec(values.to_vec(), &[values.len()]).unwrap()
}

#[test]
fn every_kind_of_element_is_compared_by_value() {
    let ints =
        |a: Vec<i64>, b: Vec<i64>| (Tensor::from_vec(a, &[2]).unwrap(), Tensor::from_vec(b, &[2]).unwrap());
    let bytes = |dtype: DType, a: &[u8], b: &[u8]| {
        let tensor =
            |bytes: &[u8]| Tensor::from_bytes(dtype, &[bytes.len() / dtype.itemsize()], bytes).unwrap();
        (tensor(a), tensor(b))
    };
    let parts = |parts: [f32; 2]| parts.map(f32::to_le_bytes).concat();
    for ((a, b), expected) in [
        (
            ints(vec![i64::MIN, 1], vec![i64::MAX, 1]),
            "1 of 2 elements, by at most 18446744073709551615 (relative 2), first at [0]: -9223372036854775808, 9223372036854775807",
        ),
        (
            ints(vec![0, (1 << 53) + 1], vec![0, 1 << 53]),
            "1 of 2 elements, by at most 1 (relative 1.1102e-16), first at [1]: 9007199254740993, 9007199254740992",
        ),
        (bytes(DType::Bool, &[0, 1], &[1, 1]), "1 of 2 elements, first at [0]: False, True"),
        (
            bytes(DType::U8, &[0, 255], &[1, 0]),
            "2 of 2 elements, by at most 255 (relative inf), first at [0]: 0, 1",
        ),
        (
            bytes(DType::I8, &[0x80], &[0x7f]),
            "1 of 1 element, by at most 255 (relative 2.0079), first at [0]: -128, 127",
        ),
        (
            bytes(DType::F4E2M1FNx2, &[0x00, 0x7f], &[0x80, 0x75]),
            "1 of 2 elements, by at most 9 (relative 3), first at [1]: -6 6, 3 6",
        ),
        (
            bytes(DType::C64, &parts([3., 0.]), &parts([0., 4.])),
            "1 of 1 element, by at most 5 (relative 1.25), first at [0]: 3+0j, 0+4j",
        ),
        (
            bytes(DType::C64, &parts([f32::INFINITY, 0.]), &parts([f32::INFINITY, 2.])),
            "1 of 1 element, by at most 2 (relative 0), first at [0]: inf+0j, inf+2j",
        ),
        (
            bytes(DType::C128, &[0; 16], &[[0u8; 8], 1f64.to_le_bytes()].concat()),
            "1 of 1 element, by at most 1 (relative 1), first at [0]: 0+0j, 0+1j",
        ),
    ] {
        assert_eq!(compared(&a, &b, &[]), expected);
    }
    for (dtype, one, two) in [
        (DType::F16, &[0, 0x3c][..], &[0, 0x40][..]),
        (DType::BF16, &[0x80, 0x3f], &[0, 0x40]),
        (DType::F8E4M3FN, &[0x38], &[0x40]),
        (DType::F8E5M2, &[0x3c], &[0x40]),
        (DType::F8E4M3FNUZ, &[0x40], &[0x48]),
        (DType::F8E5M2FNUZ, &[0x40], &[0x44]),
        (DType::F8E8M0FNU, &[127], &[128]),
    ] {
        let (one, two) = bytes(dtype, one, two);
        let expected = "1 of 1 element, by at most 1 (relative 0.5), first at [0]: 1, 2";
        assert_eq!(compared(&one, &two, &[]), expected, "{dtype}");
    }
}

#[test]
fn nan_equals_only_nan_and_the_sign_of_zero_does_not_matter() {
    let nan = f64::from_bits(f64::NAN.to_bits() ^ 1);
    let same = compared(&f64s(&[f64::NAN, 0., f64::INFINITY]), &f64s(&[nan, -0., f64::INFINITY]), &[]);
    assert_eq!(same, "equal: 1 tensor, 24 B\n");
    assert_eq!(
        compared(&f64s(&[1., f64::NAN, 2.]), &f64s(&[f64::NAN, 3., 2.5]), &["--atol", "100"]),
        "2 of 3 elements, 2 of them NaN on one side only, first at [0]: 1, NaN"
    );
    assert_eq!(
        compared(&f64s(&[f64::INFINITY, 1.]), &f64s(&[1., f64::NEG_INFINITY]), &["--rtol", "1"]),
        "2 of 2 elements, by at most inf (relative inf), first at [0]: inf, 1"
    );
}

#[test]
fn tolerances_are_defined_as_in_numpy() {
    let (a, b) = (f64s(&[10., 0.001]), f64s(&[11., 0.]));
    for (args, expected) in [
        (&["--rtol", "0.1"][..], "1 of 2 elements, by at most 0.001 (relative inf), first at [1]: 0.001, 0"),
        (&["--atol", "0.001"], "1 of 2 elements, by at most 1 (relative 0.090909), first at [0]: 10, 11"),
        (&["--atol", "0.001", "--rtol", "0.1"], "equal: 1 tensor, 16 B\n"),
    ] {
        assert_eq!(compared(&a, &b, args), expected);
    }
    // The difference from 11 is within a tenth of 11, but not within a tenth of 10.
    assert!(compared(&f64s(&[11.]), &f64s(&[9.95]), &["--rtol", "0.1"]).starts_with("1 of 1"));
    let (a, b) = (Tensor::from_vec(vec![5i32], &[]), Tensor::from_vec(vec![-5i32], &[]));
    assert!(compared(&a.unwrap(), &b.unwrap(), &["--rtol", "2"]).starts_with("equal"));
}

#[test]
fn first_difference_is_the_first_in_row_major_order_for_any_strides() {
    let (rows, columns) = (1300usize, 1700usize);
    let values: Vec<i64> = (0..(rows * columns) as i64).collect();
    let mut other = values.clone();
    for (row, column) in [(3, 5), (4, 0), (1299, 5), (700, 2)] {
        other[row * columns + column] -= 7;
    }
    let size = [rows, columns];
    let (a, b) = (Tensor::from_vec(values, &size).unwrap(), Tensor::from_vec(other, &size).unwrap());
    let (a_turned, b_turned) = (
        a.t().unwrap().contiguous().unwrap().t().unwrap(),
        b.t().unwrap().contiguous().unwrap().t().unwrap(),
    );
    let dir = Dir::empty();
    for (name, tensor) in [("a", &a), ("b", &b)] {
        let store = dir.store_of(name, &[("x", tensor.clone())]);
        store.save_view("reversed", &store.load("x").unwrap().flip([0, 1]).unwrap()).unwrap();
    }
    for (name, tensor) in [("a_turned", &a_turned), ("b_turned", &b_turned)] {
        let store = dir.store_of(name, &[("base", tensor.t().unwrap())]);
        store.save_view("x", &store.load("base").unwrap().t().unwrap()).unwrap();
        store.save_view("reversed", &store.load("x").unwrap().flip([0, 1]).unwrap()).unwrap();
        let mut txn = store.begin().unwrap();
        txn.remove("base").unwrap();
        txn.commit().unwrap();
    }
    for (a, b, note) in [
        ("a", "b", ""),
        ("a_turned", "b_turned", ""),
        ("a", "b_turned", "; 2 with different strides"),
        ("a_turned", "b", "; 2 with different strides"),
    ] {
        let (_, text) = dir.diff(&[a, b]);
        let lines: Vec<&str> = text.lines().collect();
        let expected = "in 4 of 2210000 elements, by at most 7 (relative ";
        assert!(lines[0].starts_with(&format!("~ reversed\tvalues differ {expected}")), "{text}");
        assert!(lines[0].contains(", first at [0, 1694]: "), "{text}");
        assert!(lines[1].contains(expected) && lines[1].contains(", first at [3, 5]: 5105, 5098"), "{text}");
        assert_eq!(lines[2], format!("different: 0 equal, 2 different{note}"));
    }
}

#[test]
fn elements_that_both_broadcast_are_compared_once() {
    let dir = Dir::empty();
    for (name, last) in [("a", 3f32), ("b", 4.)] {
        let store = dir.store_of(name, &[("x", Tensor::from_vec(vec![1f32, 2., last], &[3, 1]).unwrap())]);
        let wide = store.load("x").unwrap().expand([1 << 30, 3, 1 << 20]).unwrap();
        store.save_view("wide", &wide).unwrap();
    }
    let (_, text) = dir.diff(&["a", "b"]);
    let expected = format!(
        "~ wide\tvalues differ in {} of {} elements, by at most 1 (relative 0.25), first at [0, 2, 0]: 3, 4",
        1u64 << 50,
        3u64 << 50
    );
    assert_eq!(text.lines().next(), Some(expected.as_str()));
}

/// Both files are sparse and take no space on disk.
#[test]
fn tensors_larger_than_the_available_memory_are_compared() {
    let dir = Dir::empty();
    let size_bytes = 768u64 << 20;
    let header =
        format!(r#"{{"x":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{size_bytes}]}}}}"#, size_bytes / 4);
    for name in ["a.safetensors", "b.safetensors"] {
        dir.write_safetensors(name, &header, &[]);
        let file = File::options().append(true).open(dir.path(name)).unwrap();
        file.set_len(file.metadata().unwrap().len() + size_bytes).unwrap();
    }
    let limited = |a: &str, b: &str| {
        let script = format!("ulimit -v 600000 && exec '{}' diff {a} {b}", env!("CARGO_BIN_EXE_stridemap"));
        let output = Command::new("sh").args(["-c", &script]).current_dir(dir.path("")).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(
        limited("a.safetensors", "b.safetensors"),
        (Some(0), "equal: 1 tensor, 768.00 MiB\n".into(), String::new())
    );
}
