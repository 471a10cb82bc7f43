//! Values of the metadata as attributes, and back.

use super::types::{Shape, ValueType};
use super::value::{Encoded, count_values, to_attribute};

/// Returns the attribute of a value, and the name of the type that it is written with when none is stated.
fn there_and_back(shape: Shape, bytes: &[u8]) -> (String, &'static str) {
    let attribute = to_attribute(shape, bytes).unwrap();
    assert_eq!(Encoded::of(&attribute, Some(shape)).bytes, bytes, "{attribute}");
    let assumed = Encoded::of(&attribute, None);
    (attribute, assumed.shape.name())
}

#[test]
fn floats_are_kept_to_the_bit() {
    let one = Shape::One(ValueType::F32);
    for bits in (0..=u32::MAX).step_by(65_537) {
        let value = f32::from_bits(bits);
        if !value.is_nan() {
            there_and_back(one, &value.to_le_bytes());
        }
    }
    assert_eq!(there_and_back(one, &0.1f32.to_le_bytes()), ("json:0.1".to_owned(), "float32"));
    assert_eq!(there_and_back(one, &1f32.to_le_bytes()), ("json:1.0".to_owned(), "float32"));
    assert_eq!(there_and_back(one, &(-0f32).to_le_bytes()).0, "json:-0.0");
    assert_eq!(there_and_back(one, &f32::NEG_INFINITY.to_le_bytes()).0, "json:\"-inf\"");
    assert_eq!(there_and_back(one, &f32::NAN.to_le_bytes()).0, "json:\"nan\"");
    assert_eq!(there_and_back(one, &(-f32::NAN).to_le_bytes()).0, "json:\"-nan\"");
    let wide = there_and_back(Shape::One(ValueType::F64), &1e300f64.to_le_bytes());
    assert_eq!(wide, ("json:1e300".to_owned(), "float64"));
}

#[test]
fn a_value_without_a_stated_type_has_the_first_that_can_hold_it() {
    for (attribute, name) in [
        ("5", "string"),
        ("json:5", "uint32"),
        ("json:-5", "int32"),
        ("json:4294967296", "uint64"),
        ("json:-4294967296", "int64"),
        ("json:5.5", "float32"),
        ("json:1e39", "float64"),
        ("json:true", "bool"),
        ("json:\"json:x\"", "string"),
        ("json:[1, 2]", "[uint32]"),
        ("json:[1, -2]", "[int32]"),
        ("json:[1, 2.5]", "[float32]"),
        ("json:[]", "[string]"),
        ("json:[true]", "[bool]"),
        ("json:[1, \"a\"]", "string"),
        ("json:[[1]]", "string"),
        ("json:{\"a\": 1}", "string"),
        ("json:null", "string"),
    ] {
        assert_eq!(Encoded::of(attribute, None).shape.name(), name, "{attribute}");
    }
    // A stated type that cannot hold the value any more does not count.
    let stated = Some(Shape::One(ValueType::U8));
    assert_eq!(Encoded::of("json:255", stated).shape.name(), "uint8");
    assert_eq!(Encoded::of("json:256", stated).shape.name(), "uint32");
    assert_eq!(Encoded::of("text", stated).shape.name(), "string");
    // GGUF has no null and no objects. They are written as text, with "json:" before it, and so are imported as they were.
    let object = Encoded::of("json:{\"a\": 1}", None);
    assert_eq!(object.bytes, [&13u64.to_le_bytes()[..], b"json:{\"a\": 1}"].concat());
}

#[test]
fn values_of_arrays_are_counted_only_if_they_are_whole() {
    assert_eq!(count_values(ValueType::U16, &[0; 6]), Some(3));
    assert_eq!(count_values(ValueType::U16, &[0; 5]), None);
    let text = [&2u64.to_le_bytes()[..], b"ab"].concat();
    assert_eq!(count_values(ValueType::Text, &text.repeat(3)), Some(3));
    assert_eq!(count_values(ValueType::Text, &text[..9]), None);
    let pair = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &text, &text].concat();
    assert_eq!(count_values(ValueType::Array, &pair.repeat(2)), Some(2));
    let huge = [&0u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat();
    assert_eq!(count_values(ValueType::Array, &huge), None);
}
