//! Messages of servers and libraries without secrets.

use std::fmt;

/// The values of the environment that no message may contain.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<String>);

/// Shorter values are not secrets, and would be found in any text.
const MIN_SECRET_BYTES: usize = 6;

/// The longest text of a server that a message repeats, in characters.
const MAX_TEXT_CHARS: usize = 400;

impl Secrets {
    /// Takes those of the variables whose names say that they hold a secret.
    pub(super) fn of(variables: &[(String, String)]) -> Self {
        const WORDS: [&str; 9] =
            ["KEY", "SECRET", "TOKEN", "PASSWORD", "SAS", "CREDENTIAL", "SIGNATURE", "PROXY", "AUTH"];
        let is_secret = |name: &str| {
            let name = name.to_ascii_uppercase();
            WORDS.iter().any(|word| name.contains(word))
        };
        let mut values: Vec<String> = variables
            .iter()
            .filter(|(name, value)| value.len() >= MIN_SECRET_BYTES && is_secret(name))
            .map(|(_, value)| one_line(value))
            .collect();
        // A value that contains another one is replaced first.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Secrets(values)
    }

    /// Returns one line of text without secrets, queries of URLs, user names and passwords.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut text = one_line(text);
        for secret in &self.0 {
            text = text.replace(secret.as_str(), "[redacted]");
        }
        let words: Vec<String> = text.split(' ').map(redact_word).collect();
        let text = words.join(" ");
        match text.char_indices().nth(MAX_TEXT_CHARS) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Removes the query of a URL, what is before an `@` in its host, and parameters of signatures.
fn redact_word(word: &str) -> String {
    let mut word = word.to_owned();
    let lower = word.to_ascii_lowercase();
    if let Some(query) = word.find('?')
        && word[query..].contains('=')
    {
        word.truncate(query);
        word.push_str("?[redacted]");
    } else if ["sig=", "signature=", "x-amz-", "credential=", "token=", "key=", "keyid=", "sharedkey"]
        .iter()
        .any(|s| lower.contains(s))
    {
        word = "[redacted]".to_owned();
    }
    if let Some(start) = word.find("://").map(|at| at + 3) {
        let end = word[start..].find('/').map_or(word.len(), |at| start + at);
        if let Some(at) = word[start..end].rfind('@') {
            word.replace_range(start..start + at, "[redacted]");
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_queries_and_passwords_are_removed() {
        let variables = [
            ("AWS_SECRET_ACCESS_KEY", "canary/secret+1"),
            ("AWS_REGION", "us-east-1"),
            ("AZURE_STORAGE_SAS_TOKEN", "sv=2020&sig=canary2"),
            ("AWS_SESSION_TOKEN", "x"),
        ];
        let secrets = Secrets::of(&variables.map(|(k, v)| (k.to_owned(), v.to_owned())));
        let text = "PUT https://u:canary4@h/a?X-Amz-Signature=canary3 \n with canary/secret+1 in us-east-1 (x) \
                    and sv=2020&sig=canary2 and Signature=canary5";
        let redacted = secrets.redact(text);
        assert!(!redacted.contains("canary"), "{redacted}");
        assert!(redacted.contains("us-east-1 (x)"), "{redacted}");
        assert!(redacted.contains("h/a"), "{redacted}");
        assert!(!format!("{secrets:?}").contains("canary"));
        assert!(secrets.redact(&"é".repeat(1000)).len() < 1000);
    }
}
