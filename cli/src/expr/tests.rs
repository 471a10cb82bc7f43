//! Tests of expressions: parsing, errors, and the operations that they apply.

use proptest::prelude::*;
use stridemap::{DType, Tensor};

use super::operations::{ALIASES, OPERATIONS, Operation};
use super::{Copies, Expr, parse};
use crate::names::quoted;

const PAGE: &str = include_str!("../../../docs/views.md");

fn parsed(text: &str) -> Expr {
    Expr::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Returns the message, without the text and the mark under it.
fn refusal(text: &str) -> String {
    Expr::parse(text).unwrap_err().to_string().lines().next().unwrap().to_owned()
}

fn arange(size: &[usize]) -> Tensor {
    Tensor::from_vec((0..size.iter().product::<usize>() as i64).collect(), size).unwrap()
}

/// Returns the size and elements of the view that "x" followed by an expression selects.
fn meant(x: &Tensor, text: &str) -> (Vec<usize>, Vec<i64>) {
    let view = parsed(&format!("x{text}")).apply(x.clone(), Copies::Allowed).unwrap();
    (view.size().to_vec(), view.read().unwrap())
}

#[test]
fn bare_name_ends_at_the_first_bracket_or_call() {
    for (text, name) in [
        ("lstm_cell.weight_ih", "lstm_cell.weight_ih"),
        ("lstm_cell.weight_ih.t()", "lstm_cell.weight_ih"),
        ("layers.0.weight[0]", "layers.0.weight"),
        ("a b/c(d).e [0]", "a b/c(d).e "),
        ("x.0(1)", "x.0(1)"),
        ("x.", "x."),
        ("größe.t()", "größe"),
    ] {
        assert_eq!(parsed(text).name, name, "{text}");
    }
}

#[test]
fn quoted_name_holds_what_a_bare_one_cannot() {
    for (text, name) in [
        ("'odd [name]'[0]", "odd [name]"),
        ("'x.t()'.t()", "x.t()"),
        ("'it''s'", "it's"),
        (r"'it\'s'", "it's"),
        (r"'a\\b\n\t\r\u{1b}'", "a\\b\n\t\r\u{1b}"),
        ("''", ""),
    ] {
        assert_eq!(parsed(text).name, name, "{text}");
    }
}

#[test]
fn only_names_that_would_not_read_back_are_quoted() {
    for (name, text) in [
        ("encoder.0.weight", "encoder.0.weight"),
        ("it's", "it's"),
        ("two words", "two words"),
        ("odd [name]", "'odd [name]'"),
        ("f.t()", "'f.t()'"),
        ("'", r"'\''"),
        ("a\tb\u{1b}", r"'a\tb\u{1b}'"),
    ] {
        assert_eq!(quoted(name), text);
    }
}

#[test]
fn arguments_are_the_same_by_position_by_keyword_and_in_brackets() {
    let x = arange(&[2, 3, 1]);
    for same in [
        &[".permute(1, 0, 2)", ".permute([1, 0, 2])", ".permute((1, 0, 2,))", ".permute( dims = (1,0,2) )"][..],
        &[".select(1, -1)", ".select(1, index=-1)", ".select(index=-1, dim=1)"],
        &[".slice(0, None, None, 1)", ".slice()", ".slice(step=1)", ".slice(0, None, None, None)"],
        &[".split(1, 0)[1]", ".split(1)[1]", ".split((1), dim=0)[1]", ".split((1,1,))[-1]"],
        &[
            ".tensor_split(2)[0]",
            ".tensor_split([1])[0]",
            ".tensor_split(sections=2)[0]",
            ".tensor_split(indices=(1,))[0]",
        ],
        &[".squeeze()", ".squeeze(2)", ".squeeze(dim=2)", ".squeeze((2,))", ".squeeze(0, -1)"],
        &[".flatten()", ".flatten(0)", ".flatten(end_dim=-1)", ".reshape(-1)", ".view([-1])", ".ravel()"],
        &[".rename(a, b, c).flip(b)", ".rename('a', \"b\", 'c').flip(['b'])", ".rename(..., b, c).flip(1)"],
        &[".transpose(0, 1)[0].mT", ".transpose(0, 1)[0].T", ".transpose(0, 1)[0].t()"],
        &[".transpose(0, -1)", ".swapaxes(0, -1)", ".swapdims(0, -1)"],
        &[".movedim(0, 2)", ".moveaxis(0, 2)"],
        &[".expand(2, 2, 3, -1)", ".broadcast_to(2, 2, 3, -1)", ".broadcast_to((2, -1, -1, 1))"],
    ] {
        for text in same {
            assert_eq!(meant(&x, text), meant(&x, same[0]), "{text}");
        }
    }
}

#[test]
fn aliases_are_not_operations_and_mean_one() {
    for (alias, meaning) in ALIASES {
        assert_eq!(Operation::named(alias).map(Operation::name), Some(*meaning));
        assert!(OPERATIONS.iter().all(|operation| operation.name() != *alias));
        assert!(PAGE.contains(&format!("`{alias}`")), "{alias}");
    }
}

#[test]
fn operations_are_applied_from_left_to_right() {
    let text = "[1].t().flip(0)[:2].view(-1, 3)[..., None].select(2, 0).narrow(1, 0, 2)";
    assert_eq!(meant(&arange(&[2, 3, 4]), text).1, [15, 19, 14, 18]);
}

#[test]
fn refusal_to_copy_is_reported_without_copying() {
    // One element is repeated so many times that a copy would not fit in memory.
    let x = Tensor::zeros(DType::U8, &[1]).unwrap().as_strided([1i64 << 40, 1i64 << 20], [0, 0], 0).unwrap();
    for text in ["x.contiguous()", "x[:, None].expand(-1, 3, -1)[:, :2].contiguous()"] {
        let e = parsed(text).apply(x.clone(), Copies::Refused).unwrap_err();
        assert!(e.to_string().starts_with("a view copies no data, but "), "{e}");
    }
    assert!(parsed("x.flatten().reshape(1024, -1)").apply(x, Copies::Refused).is_ok());
    let y = arange(&[2, 3, 4]).transpose(0, 1).unwrap();
    for text in ["flatten()", "flatten(0, 1)", "reshape(6, 4)", "reshape([24])"] {
        let e = parsed(&format!("x.{text}")).apply(y.clone(), Copies::Refused).unwrap_err();
        assert!(e.to_string().contains("needs a copy"), "{e}");
        let copy = parsed(&format!("x.{text}")).apply(y.clone(), Copies::Allowed).unwrap();
        assert!(!copy.shares_storage(&y));
    }
    for text in ["flatten(1, 2)", "flatten(2)", "reshape(3, 2, 2, 2)"] {
        let view = parsed(&format!("x.{text}")).apply(y.clone(), Copies::Refused);
        assert_eq!(view.is_ok_and(|view| view.shares_storage(&y)), !text.starts_with("flatten(1"), "{text}");
    }
}

#[test]
fn guide_has_a_row_for_every_operation_and_for_no_other() {
    let (_, table) = PAGE.split_once("\n| operation |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.flat_map(|row| row.split('|').nth(1).unwrap().split(','));
    let mut listed: Vec<&str> = cells.map(|cell| cell.trim().trim_matches('`')).collect();
    let mut known: Vec<&str> = OPERATIONS.iter().map(Operation::name).chain(["[...]"]).collect();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known);
}

#[test]
fn error_names_the_column_and_what_was_expected() {
    for (text, message) in [
        ("", "expression, column 1: expected a name, found the end"),
        (".t()", "expression, column 1: expected a name, found '.'"),
        ("'x", "expression, column 3: expected a closing quote, found the end"),
        (r"'x\y'", r"expression, column 3: expected one of \' \\ \t \n \r \u{...}, found '\\'"),
        ("'x'y", r#"expression, column 4: expected "[", "." or the end, found 'y'"#),
        ("x[0", r#"expression, column 4: expected "," or "]", found the end"#),
        (
            "x[]",
            "expression, column 3: expected an index: a number, a slice such as 0:10:2, an ellipsis (...) or None, found ']'",
        ),
        (
            "x[0][",
            "expression, column 6: expected an index: a number, a slice such as 0:10:2, an ellipsis (...) or None, found the end",
        ),
        (
            "é[a]",
            "expression, column 3: expected an index: a number, a slice such as 0:10:2, an ellipsis (...) or None, found 'a'",
        ),
        ("x[1 2]", r#"expression, column 5: expected "," or "]", found '2'"#),
        ("x[99999999999999999999]", "expression, column 3: 99999999999999999999 does not fit in 64 bits"),
        ("x.t(1)", "expression, column 5: expected t()"),
        ("x.t(é=1)", "expression, column 5: expected a number or a name, found 'é'"),
        ("x.transpose(0)", "expression, column 3: expected transpose(dim0, dim1)"),
        ("x.transpose(0, 1, 2)", "expression, column 19: expected transpose(dim0, dim1)"),
        ("x.transpose(0, dim0=1)", "expression, column 3: expected transpose(dim0, dim1)"),
        ("x.transpose(dim0=1, 0)", "expression, column 3: expected transpose(dim0, dim1)"),
        ("x.transpose(0, 1, dim=2)", "expression, column 19: expected transpose(dim0, dim1)"),
        ("x.rename(a, b=c)", "expression, column 13: expected rename(*names)"),
        ("x.view(", "expression, column 8: expected a number or a name, found the end"),
        ("x.view(=3)", "expression, column 8: expected a number or a name, found '='"),
        ("x.view([1)", r#"expression, column 10: expected "," or "]", found ')'"#),
        ("x.view([[1]])", "expression, column 9: expected a number or a name, found '['"),
        ("x.select('a", "expression, column 12: expected a closing quote, found the end"),
        ("x[0].t", r#"expression, column 7: expected "(", found the end"#),
        ("x[0].mT.5", "expression, column 9: expected the name of an operation, found '5'"),
        ("x.chunk(2)[:]", "expression, column 11: expected one number, which selects one of the views"),
    ] {
        assert_eq!(refusal(text), message, "{text}");
    }
}

#[test]
fn unknown_operation_suggests_the_nearest_and_points_to_the_help() {
    assert_eq!(
        refusal("x.transpsoe(0, 1)"),
        "expression, column 3: unknown operation \"transpsoe\"; did you mean transpose? \
         stridemap view --help lists all"
    );
    assert_eq!(
        refusal("x[0].zzz(2)"),
        "expression, column 6: unknown operation \"zzz\"; stridemap view --help lists all; if it is part of a tensor's \
         name, quote the name: 'odd.name()'"
    );
    let suggested = refusal("x.unsqeeze(2)");
    assert!(suggested.contains("did you mean unsqueeze or squeeze?"), "{suggested}");
}

/// Generates text from the grammar's own characters, which gets further into the parser than random text.
fn grammar_like() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        Just("x"),
        Just("'"),
        Just("''"),
        Just("\\"),
        Just("u{1}"),
        Just("["),
        Just("]"),
        Just("("),
        Just(")"),
        Just("."),
        Just("..."),
        Just(":"),
        Just(","),
        Just("-"),
        Just("12"),
        Just("None"),
        Just(" "),
        Just("é"),
        Just(".t()"),
        Just(".view("),
        Just(".slice("),
        Just(".permute(["),
        Just(".rename("),
        Just(".chunk("),
        Just(".flatten("),
        Just(".as_strided("),
        Just(".sliding_window_view("),
        Just(".mT"),
        Just("\""),
        Just("dim="),
        Just("dim"),
        Just("="),
        Just("int32"),
        Just("[0]"),
        Just("(0, 1)"),
        Just("99999999999999999999"),
    ];
    prop::collection::vec(token, 0..24).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in prop_oneof![any::<String>(), grammar_like()]) {
        if let Err(mistake) = parse::parse(&text) {
            prop_assert!(text.get(mistake.span.clone()).is_some(), "{mistake:?}");
        }
    }

    #[test]
    fn no_expression_panics_when_it_is_applied(operations in grammar_like()) {
        let expr = Expr::parse(&format!("'x'{operations}"));
        for copies in [Copies::Allowed, Copies::Refused] {
            let applied = expr.as_ref().map(|expr| expr.apply(arange(&[2, 3]), copies));
            if let Err(message) = applied.map_err(|e| e.to_string()).and_then(|view| view.map_err(|e| e.to_string())) {
                prop_assert_eq!(message.split('\n').count(), 3, "{}", message);
            }
        }
    }

    #[test]
    fn every_name_reads_back_from_its_quoted_form(name in prop_oneof![any::<String>(), grammar_like()]) {
        prop_assert!(!quoted(&name).contains(char::is_control));
        let expr = parsed(&quoted(&name));
        prop_assert_eq!(&expr.name, &name);
        prop_assert!(expr.steps.is_empty());

        let expr = parsed(&format!("{}[0].t()", quoted(&name)));
        prop_assert_eq!(&expr.name, &name);
        prop_assert_eq!(expr.steps.len(), 2);
    }
}
