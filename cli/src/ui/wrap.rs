//! Lines that fit the terminal.

use unicode_width::UnicodeWidthStr as _;

use super::table::shorten;

/// Divides a text at spaces into lines of at most `width` columns. A longer word is shortened.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    if text.width() <= width {
        return vec![text.to_owned()];
    }
    let mut lines = Vec::<String>::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let word = shorten(word, width);
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_divided_at_spaces_and_long_words_are_shortened() {
        assert_eq!(wrapped("w  float32  [2, 3]", 18), ["w  float32  [2, 3]"]);
        assert_eq!(wrapped("w  float32  [2, 3]", 12), ["w float32", "[2, 3]"]);
        assert_eq!(wrapped("encoder.layer.0.weight  int8", 10), ["enco…eight", "int8"]);
        assert_eq!(wrapped("重み 重み", 4), ["重み", "重み"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
