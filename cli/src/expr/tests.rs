use proptest::prelude::*;
use stridemap::{Index, Tensor};

use super::{Expr, Operation, parse, quoted};

fn parsed(text: &str) -> Expr {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn refusal(text: &str) -> String {
    text.parse::<Expr>().unwrap_err().to_string()
}

#[test]
fn bare_name_goes_on_to_the_first_bracket_or_call() {
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
fn every_operation_is_read_with_its_arguments() {
    let slice = |start, end, step| Index::Slice { start, end, step };
    let expected = vec![
        Operation::Index(vec![slice(Some(0), Some(10), 1), slice(None, None, 2), Index::At(-1)]),
        Operation::Index(vec![Index::Ellipsis, Index::NewAxis, slice(Some(-3), None, -1)]),
        Operation::T,
        Operation::Transpose(0, -1),
        Operation::Permute(vec![1, 0]),
        Operation::Permute(vec![1, 0]),
        Operation::View(vec![2, -1]),
        Operation::View(vec![]),
        Operation::Flip(vec![0]),
        Operation::Select(0, -2),
        Operation::Narrow(0, 1, 2),
        Operation::Slice { axis: 0, start: Some(1), end: None, step: 1 },
        Operation::Slice { axis: 1, start: None, end: Some(-1), step: -2 },
    ];
    let text = "x[0:10, ::2, -1][..., None, -3::-1,] .t( ).transpose(0, -1).permute(1, 0).permute([1, 0]).view(2,-1)\
                .view().flip([0]).select(0, -2).narrow(0, 1, 2).slice(0, 1, None, None).slice(1, None, -1, -2)";
    assert_eq!(parsed(text).operations, expected);
}

#[test]
fn operations_are_applied_from_left_to_right() {
    let x = Tensor::from_vec((0..24i64).collect(), &[2, 3, 4]).unwrap();
    let view =
        parsed("x[1].t().flip(0)[:2].view(-1, 3)[..., None].select(2, 0).narrow(1, 0, 2)").apply(x).unwrap();
    assert_eq!(view.read::<i64>().unwrap(), [15, 19, 14, 18]);
}

#[test]
fn error_names_the_column_and_what_was_expected() {
    for (text, message) in [
        ("", "expression, column 1: expected a name, found the end"),
        (".t()", "expression, column 1: expected a name, found '.'"),
        ("'x", "expression, column 3: expected a quote that ends the name, found the end"),
        (r"'x\y'", r"expression, column 3: expected one of \' \\ \t \n \r \u{...}, found '\\'"),
        ("'x'y", r#"expression, column 4: expected "[", "." or the end, found 'y'"#),
        ("x[0", r#"expression, column 4: expected "," or "]", found the end"#),
        ("x[]", "expression, column 3: expected an index (1, 0:10:2, ..., None), found ']'"),
        ("x[0][", "expression, column 6: expected an index (1, 0:10:2, ..., None), found the end"),
        ("é[a]", "expression, column 3: expected an index (1, 0:10:2, ..., None), found 'a'"),
        ("x[1 2]", r#"expression, column 5: expected "," or "]", found '2'"#),
        ("x[99999999999999999999]", "expression, column 3: 99999999999999999999 does not fit in 64 bits"),
        ("x.t(1)", "expression, column 3: expected t()"),
        ("x.transpose(0)", "expression, column 3: expected transpose(axis, axis)"),
        ("x.transpose([0, 1])", "expression, column 3: expected transpose(axis, axis)"),
        ("x.narrow(0, 0, -1)", "expression, column 3: expected narrow(axis, start, length)"),
        ("x.flip(None)", "expression, column 3: expected flip(axis, ...)"),
        ("x.view(a)", "expression, column 8: expected a number, found 'a'"),
        ("x.view([1)", r#"expression, column 10: expected "," or "]", found ')'"#),
        ("x[0].t", r#"expression, column 7: expected "(", found the end"#),
    ] {
        assert_eq!(refusal(text), message, "{text}");
    }
}

#[test]
fn unknown_operation_is_answered_with_the_known_ones() {
    let message = refusal("x.reshape(2)");
    assert!(
        message.starts_with("expression, column 3: unknown operation \"reshape\"; there are t(), "),
        "{message}"
    );
    assert!(message.contains("slice(axis, start, end, step)"), "{message}");
}

/// Text of the grammar's own characters, which gets further into the parser than any text would.
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
        Just("99999999999999999999"),
    ];
    prop::collection::vec(token, 0..24).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in prop_oneof![any::<String>(), grammar_like()]) {
        if let Err(e) = parse::parse(&text) {
            prop_assert!(e.column <= text.chars().count() + 1, "{e:?}");
        }
    }

    #[test]
    fn every_name_reads_back_from_its_quoted_form(name in prop_oneof![any::<String>(), grammar_like()]) {
        prop_assert!(!quoted(&name).contains(char::is_control));
        let expr = parsed(&quoted(&name));
        prop_assert_eq!(&expr.name, &name);
        prop_assert!(expr.operations.is_empty());

        let expr = parsed(&format!("{}[0].t()", quoted(&name)));
        prop_assert_eq!(&expr.name, &name);
        prop_assert_eq!(expr.operations, vec![Operation::Index(vec![Index::At(0)]), Operation::T]);
    }
}
