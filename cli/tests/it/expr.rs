//! Expressions: every operation, with `show` and with `view`, and the error messages.

use std::collections::BTreeSet;

use serde_json::Value;
use stridemap::{DType, Store, Tensor};

use crate::harness::Dir;

/// An expression, the dtype and size of its result, and the elements in row-major order. `x` counts from 0 with size
/// [2, 3], `y` with [2, 3, 4], `one` with [1, 3, 1], and `f`, in float32, with [2, 2]. `z` is 1+2j, 3+4j, 5+6j.
const VIEWS: &[(&str, &str, &str)] = &[
    ("x[1]", "int64 [3]", "3 4 5"),
    ("x[-1, ::-2]", "int64 [2]", "5 3"),
    ("y[0, ..., 1:3]", "int64 [3, 2]", "1 2 5 6 9 10"),
    ("x[:, None, 2]", "int64 [2, 1]", "2 5"),
    ("x.select(1, -1)", "int64 [2]", "2 5"),
    ("x.narrow(1, 1, 2)", "int64 [2, 2]", "1 2 4 5"),
    ("x.slice(1, 2, 0, -1)", "int64 [2, 2]", "2 1 5 4"),
    ("x.slice(start=1)", "int64 [1, 3]", "3 4 5"),
    ("x.flip(1)", "int64 [2, 3]", "2 1 0 5 4 3"),
    ("x.flip([0, 1])", "int64 [2, 3]", "5 4 3 2 1 0"),
    ("x.diagonal(1)", "int64 [2]", "1 5"),
    ("y.diagonal(0, 0, 2)", "int64 [3, 2]", "0 13 4 17 8 21"),
    ("y.diagonal(offset=-1, dim1=1, dim2=2)", "int64 [2, 2]", "4 9 16 21"),
    ("y.transpose(0, 2)", "int64 [4, 3, 2]", "0 12 4 16 8 20 1 13 5 17 9 21 2 14 6 18 10 22 3 15 7 19 11 23"),
    ("x.swapaxes(0, -1)", "int64 [3, 2]", "0 3 1 4 2 5"),
    ("x.t()", "int64 [3, 2]", "0 3 1 4 2 5"),
    ("x[...].T", "int64 [3, 2]", "0 3 1 4 2 5"),
    ("y[:, :2, :2].mT", "int64 [2, 2, 2]", "0 4 1 5 12 16 13 17"),
    ("x.permute((-1, 0))", "int64 [3, 2]", "0 3 1 4 2 5"),
    ("y.movedim(0, -1)", "int64 [3, 4, 2]", "0 12 1 13 2 14 3 15 4 16 5 17 6 18 7 19 8 20 9 21 10 22 11 23"),
    ("one.squeeze()", "int64 [3]", "0 1 2"),
    ("one.squeeze(dim=-1)", "int64 [1, 3]", "0 1 2"),
    ("one.squeeze((0, 1))", "int64 [3, 1]", "0 1 2"),
    ("x.unsqueeze(1)", "int64 [2, 1, 3]", "0 1 2 3 4 5"),
    ("one.expand(2, 3, -1)", "int64 [2, 3, 1]", "0 1 2 0 1 2"),
    ("one.broadcast_to(1, 3, 2)", "int64 [1, 3, 2]", "0 0 1 1 2 2"),
    ("x.view(3, 2)", "int64 [3, 2]", "0 1 2 3 4 5"),
    ("x[0].view(int32)", "int32 [6]", "0 0 1 0 2 0"),
    ("f.view(int16)", "int16 [2, 4]", "0 0 0 16256 0 16384 0 16448"),
    ("x.t().reshape([3, 2])", "int64 [3, 2]", "0 3 1 4 2 5"),
    ("x.t().reshape(6)", "int64 [6]", "0 3 1 4 2 5"),
    ("y[:, :, :2].flatten(1)", "int64 [2, 6]", "0 1 4 5 8 9 12 13 16 17 20 21"),
    ("x.flatten(start_dim=1)", "int64 [2, 3]", "0 1 2 3 4 5"),
    ("x.unflatten(1, (3, 1))", "int64 [2, 3, 1]", "0 1 2 3 4 5"),
    ("x.t().ravel()", "int64 [6]", "0 3 1 4 2 5"),
    ("x.t().contiguous()", "int64 [3, 2]", "0 3 1 4 2 5"),
    ("x.unfold(dimension=1, size=1, step=2)", "int64 [2, 2, 1]", "0 2 3 5"),
    ("x.sliding_window_view((2, 2))", "int64 [1, 2, 2, 2]", "0 1 3 4 1 2 4 5"),
    ("x.sliding_window_view([2], axis=-1)", "int64 [2, 2, 2]", "0 1 1 2 3 4 4 5"),
    ("x.as_strided((2, 2), (1, 2))", "int64 [2, 2]", "0 2 1 3"),
    ("x[1].as_strided([2], [-1])", "int64 [2]", "3 2"),
    ("x.chunk(2, 1)[-1]", "int64 [2, 1]", "2 5"),
    ("x.split(2, 1)[0]", "int64 [2, 2]", "0 1 3 4"),
    ("x.split([1, 2], 1)[1]", "int64 [2, 2]", "1 2 4 5"),
    ("x.tensor_split((1,), 1)[1]", "int64 [2, 2]", "1 2 4 5"),
    ("x.tensor_split(indices=[1, 2], dim=1)[1]", "int64 [2, 1]", "1 4"),
    ("x.unbind(-1)[0]", "int64 [2]", "0 3"),
    ("z[1:].real", "float32 [2]", "3.0 5.0"),
    ("z[1:].imag", "float32 [2]", "4.0 6.0"),
    ("z.view_as_real()", "float32 [3, 2]", "1.0 2.0 3.0 4.0 5.0 6.0"),
    ("f.view_as_complex()", "complex64 [2]", "[0.0,1.0] [2.0,3.0]"),
    ("x.refine_names(row, column).select('column', 0)", "int64 [2]", "0 3"),
    ("x.refine_names(\"row\", ...).transpose(row, 1)", "int64 [3, 2]", "0 3 1 4 2 5"),
    ("x.rename(a, None).unbind(a)[1]", "int64 [3]", "3 4 5"),
    ("x.rename(a, b).rename(None, c).flip(c)", "int64 [2, 3]", "2 1 0 5 4 3"),
    ("x.rename(a, b).rename(..., 'c').flatten(a, c)", "int64 [6]", "0 1 2 3 4 5"),
    ("x.rename(a, b).align_to(b, c, ...)", "int64 [3, 1, 2]", "0 3 1 4 2 5"),
];

fn store() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let counted =
        |size: &[usize]| Tensor::from_vec((0..size.iter().product::<usize>() as i64).collect(), size);
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    for (name, tensor) in [
        ("x", counted(&[2, 3])),
        ("y", counted(&[2, 3, 4])),
        ("one", counted(&[1, 3, 1])),
        ("f", Tensor::from_bytes(DType::F32, &[2, 2], &floats(&[0., 1., 2., 3.]))),
        ("z", Tensor::from_bytes(DType::C64, &[3], &floats(&[1., 2., 3., 4., 5., 6.]))),
    ] {
        store.save(name, &tensor.unwrap()).unwrap();
    }
    dir
}

fn shown(dir: &Dir, expr: &str) -> (String, String) {
    let json = dir.json(&["show", "s.smap", expr]);
    let size: Vec<u64> = serde_json::from_value(json["size"].clone()).unwrap();
    let values: Vec<String> = json["values"].as_array().unwrap().iter().map(Value::to_string).collect();
    (format!("{} {size:?}", json["dtype"].as_str().unwrap()), values.join(" "))
}

/// Returns the names of the operations in all expressions: the text between a dot and a parenthesis, a dot or the end.
fn operations() -> BTreeSet<&'static str> {
    let words = VIEWS.iter().flat_map(|(expr, ..)| expr.split('.').skip(1));
    let words =
        words.map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap());
    words.filter(|word| !word.is_empty()).collect()
}

#[test]
fn show_prints_the_result_of_an_expression_and_view_saves_it() {
    let dir = store();
    let mut copies = Vec::new();
    for &(expr, header, values) in VIEWS {
        let expected = (header.to_owned(), values.to_owned());
        assert_eq!(shown(&dir, expr), expected, "{expr}");
        let run = dir.run(&["view", "s.smap", expr, "saved", "--force"]);
        if run.code == Some(0) {
            assert_eq!(shown(&dir, "saved"), expected, "{expr}, saved");
        } else {
            assert!(run.stderr.starts_with("stridemap: a view copies no data, but "), "{run:?}");
            copies.push(expr);
        }
    }
    assert_eq!(copies, ["x.t().reshape(6)", "y[:, :, :2].flatten(1)", "x.t().ravel()", "x.t().contiguous()"]);
}

#[test]
fn every_operation_is_tested_here() {
    let help = store().stdout(&["view", "--help"]);
    let calls = help.split_whitespace().filter_map(|word| word.strip_prefix('.'));
    let names = calls.map(|call| call.split('(').next().unwrap());
    let names: BTreeSet<&str> = names.filter(|name| name.starts_with(char::is_alphabetic)).collect();
    let tested = operations();
    assert!(names.is_subset(&tested), "{:?}", names.difference(&tested));
    // Other names of the same operations.
    let others: Vec<&str> = tested.difference(&names).copied().collect();
    assert_eq!(others, ["broadcast_to", "ravel", "swapaxes"]);
}

#[test]
fn dimension_names_are_saved() {
    let dir = store();
    let named = |name: &str| {
        let listed = dir.json(&["ls", "s.smap", name]);
        listed["dim_names"].clone()
    };
    for (expr, names) in [
        ("y.refine_names(N, ..., 'W')", r#"["N",null,"W"]"#),
        ("y.refine_names(['N', \"H\", 'W']).rename(None, ...)", r#"[null,"H","W"]"#),
        ("y.rename(N, H, W).rename(..., row, W).align_to(W, ..., C)", r#"["W","N","row","C"]"#),
        ("y.rename(N, H, W).rename(None, None, None)", "null"),
        ("y", "null"),
    ] {
        dir.messages(&["view", "s.smap", expr, "named", "--force"]);
        assert_eq!(named("named").to_string(), names, "{expr}");
    }
}

#[test]
fn refusal_marks_the_wrong_part() {
    let dir = store();
    let mut refusals = String::new();
    for expr in [
        "x[0",
        "x[0].t(é)",
        "x[0].t",
        "x.reshpe(6)",
        "x[0, 3].t()",
        "x.t().select(0, 1, 2)",
        "x.select('column', 0)",
        "x.t().view(6)[0]",
        "y.chunk(3, 1)",
        "y.chunk(3, 1)[-4]",
        "y.unbind()[0:1]",
    ] {
        refusals += &dir.stderr_of_a_refusal(expr);
    }
    insta::assert_snapshot!(refusals, @r#"
    stridemap: expression, column 4: expected "," or "]", found the end
      | x[0
      |    ^
    stridemap: expression, column 8: expected a number or a name, found 'é'
      | x[0].t(é)
      |        ^
    stridemap: expression, column 7: expected "(", found the end
      | x[0].t
      |       ^
    stridemap: expression, column 3: unknown operation "reshpe"; did you mean reshape? stridemap view --help lists all
      | x.reshpe(6)
      |   ^^^^^^
    stridemap: index [0, 3]: index 3 is out of range for axis 1 with size 3 (tensor: size [2, 3] with stride [3, 1])
      | x[0, 3].t()
      |  ^^^^^^
    stridemap: expression, column 20: expected select(dim, index)
      | x.t().select(0, 1, 2)
      |                    ^
    stridemap: select("column", 0): no dimension is named "column": size [2, 3] with stride [3, 1] has the names [None, None]
      | x.select('column', 0)
      |   ^^^^^^^^^^^^^^^^^^^
    stridemap: view([6]): size [3, 2] with stride [1, 3] needs a copy; use reshape
      | x.t().view(6)[0]
      |       ^^^^^^^
    stridemap: chunk returns a list of 3 views; pick one with a subscript
      | y.chunk(3, 1)
      |   ^^^^^^^^^^^
    stridemap: index -4 is out of range: chunk returns a list of 3 views
      | y.chunk(3, 1)[-4]
      |              ^^^^
    stridemap: expression, column 11: expected one number, which selects one of the views
      | y.unbind()[0:1]
      |           ^^^^^
    "#);
}

#[test]
fn view_names_the_operation_that_would_copy() {
    let dir = store();
    let mut refusals = String::new();
    for expr in ["x.t().reshape(-1)[0]", "x[:, :2].contiguous().t()"] {
        refusals += &dir.run(&["view", "s.smap", expr, "new"]).stderr;
    }
    insta::assert_snapshot!(refusals, @r"
    stridemap: a view copies no data, but reshape of size [3, 2] with stride [1, 3] needs a copy
      | x.t().reshape(-1)[0]
      |       ^^^^^^^^^^^
    stridemap: a view copies no data, but contiguous of size [2, 2] with stride [3, 1] needs a copy
      | x[:, :2].contiguous().t()
      |          ^^^^^^^^^^^^
    ");
}

#[test]
fn refusal_of_a_long_or_unusual_expression_stays_on_its_lines() {
    let dir = store();
    let long = format!("x{}.t().t(0){}", "[...]".repeat(100), ".t()".repeat(100));
    insta::assert_snapshot!(dir.stderr_of_a_refusal(&long), @r"
    stridemap: expression, column 509: expected t()
      | …..][...][...][...][...][...][...].t().t(0).t().t().t().t().t().t().t().t().t().t(…
      |                                          ^
    ");
    insta::assert_snapshot!(dir.stderr_of_a_refusal("'größe\\u{7}'\n\u{1b}[31m.t()"), @r#"
    stridemap: expression, column 14: expected "[", "." or the end, found '\u{1b}'
      | 'größe\u{7}'\n\u{1b}[31m.t()
      |               ^^^^^^
    "#);
}
