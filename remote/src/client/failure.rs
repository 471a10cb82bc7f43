//! What went wrong with a request, and whether it is worth another attempt.

use std::error::Error as StdError;
use std::io;
use std::path::Path;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use stridemap::{Error, ErrorKind};

use super::redact::Secrets;

/// A failed attempt.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) trouble: Trouble,
    /// One line without secrets.
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no such object.
    Absent,
    /// There is no such bucket, container or directory.
    NoBucket,
    /// The condition of a put does not hold: the object exists, or has another version.
    Unmet,
    /// The condition of a get does not hold: the object still has the version.
    Unchanged,
    /// The object ends before the requested range does.
    BeyondEnd,
    /// The object is longer than the caller allows.
    TooLong,
    Denied,
    NoCredentials,
    Full,
    /// The server asks for fewer requests, or another request for the same object is under way.
    Busy,
    Server,
    Unreachable,
    TimedOut,
    /// The connection ended in the middle of a request.
    Cut,
    Other,
}

impl Trouble {
    /// Returns whether the same request may succeed later.
    pub(super) fn is_transient(self) -> bool {
        use Trouble::{Busy, Cut, Server, TimedOut, Unreachable};
        matches!(self, Busy | Cut | Server | TimedOut | Unreachable)
    }

    /// Returns whether a server has answered.
    pub(super) fn is_answer(self) -> bool {
        !matches!(self, Trouble::Unreachable | Trouble::TimedOut | Trouble::NoCredentials)
    }

    fn io_kind(self) -> io::ErrorKind {
        match self {
            Trouble::Absent | Trouble::NoBucket => io::ErrorKind::NotFound,
            Trouble::Denied | Trouble::NoCredentials => io::ErrorKind::PermissionDenied,
            Trouble::Full => io::ErrorKind::StorageFull,
            Trouble::Busy => io::ErrorKind::ResourceBusy,
            Trouble::Unreachable => io::ErrorKind::HostUnreachable,
            Trouble::TimedOut => io::ErrorKind::TimedOut,
            Trouble::Cut => io::ErrorKind::ConnectionReset,
            _ => io::ErrorKind::Other,
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Trouble::Denied => {
                "; the credentials in the environment lack the permission, have expired, or are for another account"
            }
            Trouble::NoCredentials => {
                "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_SKIP_SIGNATURE=true \
                 for a public bucket), GOOGLE_SERVICE_ACCOUNT, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
            }
            Trouble::NoBucket => "; create it, or correct the URL",
            Trouble::Full => "; free space there",
            Trouble::Busy => "; try again later, or with fewer jobs",
            Trouble::Server => "; try again later",
            Trouble::Unreachable => "; check the network, the URL and the endpoint in the environment",
            Trouble::TimedOut | Trouble::Cut => "; check the network, or allow more time",
            _ => "",
        }
    }
}

impl Failure {
    pub(super) fn new(trouble: Trouble, text: impl Into<String>) -> Self {
        Failure { trouble, text: text.into() }
    }

    pub(super) fn timed_out(limit: Duration) -> Self {
        Failure::new(Trouble::TimedOut, format!("no answer within {} ms", limit.as_millis()))
    }

    /// Classifies an error of object_store.
    pub(super) fn of(error: &object_store::Error, secrets: &Secrets) -> Self {
        let chain = chain(error);
        let all = error.to_string();
        // Where the libraries look for credentials when the environment has none.
        if ["169.254.169.254", "169.254.170.2", "metadata.google.internal"]
            .iter()
            .any(|host| all.contains(host))
        {
            return Failure::new(Trouble::NoCredentials, "no credentials were found");
        }
        if let Some(answer) = chain.iter().find_map(|e| Answer::of(&e.to_string())) {
            return answer.failure(secrets);
        }
        let text = chain.last().map(ToString::to_string).unwrap_or_default();
        let http = chain.iter().find_map(|e| e.downcast_ref::<HttpError>());
        let file = chain.iter().find_map(|e| e.downcast_ref::<io::Error>());
        let trouble = match error {
            object_store::Error::NotFound { .. } => Trouble::Absent,
            object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
                Trouble::Unmet
            }
            object_store::Error::NotModified { .. } => Trouble::Unchanged,
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                Trouble::Denied
            }
            object_store::Error::NotSupported { .. } if all.contains("Range") || all.contains("range") => {
                let text = "the server does not serve ranges of bytes; use one that does";
                return Failure::new(Trouble::Other, text);
            }
            _ => match (http.map(HttpError::kind), file.map(io::Error::kind)) {
                (Some(_), _) if text.contains("scheme is not allowed") => {
                    let text = "http:// without TLS is not allowed by default; set AWS_ALLOW_HTTP=true or \
                                AZURE_ALLOW_HTTP=true if that is meant";
                    return Failure::new(Trouble::Other, text);
                }
                (Some(HttpErrorKind::Connect), _) => Trouble::Unreachable,
                (Some(HttpErrorKind::Timeout), _) => Trouble::TimedOut,
                (Some(_), _) => Trouble::Cut,
                (None, Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)) => {
                    Trouble::Denied
                }
                (None, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) => Trouble::Full,
                (None, Some(io::ErrorKind::Interrupted)) => Trouble::Cut,
                _ => Trouble::Other,
            },
        };
        Failure::new(trouble, secrets.redact(&text))
    }

    /// Makes the error that a caller gets. `action` is a verb and its object; `tried` says how often, if not once.
    pub(super) fn into_error(self, action: &str, location: &str, tried: &str) -> Error {
        let Failure { trouble, text } = self;
        let advice = trouble.advice();
        let kind = match trouble {
            Trouble::NoBucket => ErrorKind::NotFound,
            Trouble::TooLong => ErrorKind::LimitExceeded,
            _ => {
                let cause = io::Error::new(trouble.io_kind(), format!("{text}{tried}{advice}"));
                return Error::io(action, Path::new(location), cause);
            }
        };
        Error::new(kind, format!("{action}: {location}: {text}{tried}{advice}"))
    }
}

/// Returns the error and its causes, from the outermost.
fn chain(error: &object_store::Error) -> Vec<&(dyn StdError + 'static)> {
    let mut last: &(dyn StdError + 'static) = error;
    let mut chain = vec![last];
    while chain.len() < 32
        && let Some(cause) = last.source()
    {
        last = cause;
        chain.push(last);
    }
    chain
}

/// A response with an error.
struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    /// Finds it in the text of an error, because object_store exports no type that has it.
    fn of(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix("Server returned non-2xx status code: ") {
            let status = rest.get(..3)?.parse().ok()?;
            let body = rest.split_once(": ").map_or("", |(_, body)| body).to_owned();
            return Some(Answer { status, body });
        }
        let body = text.strip_prefix("Server returned error response: ")?.to_owned();
        // S3 may say so after it has begun to answer.
        Some(Answer { status: 500, body })
    }

    fn failure(&self, secrets: &Secrets) -> Failure {
        let code = self.element("Code");
        let trouble = match (self.status, code) {
            (_, "NoSuchBucket" | "ContainerNotFound") => Trouble::NoBucket,
            (_, "RequestTimeout") => Trouble::TimedOut,
            (_, "ConditionalRequestConflict" | "OperationAborted") => Trouble::Busy,
            (401 | 403, _) => Trouble::Denied,
            (404 | 405, _) if self.body.contains("bucket does not exist") => Trouble::NoBucket,
            (404 | 405 | 410, _) => Trouble::Absent,
            (304, _) => Trouble::Unchanged,
            (409, "") => Trouble::Unmet,
            (409, code) if code.contains("AlreadyExists") || code.contains("ConditionNotMet") => {
                Trouble::Unmet
            }
            (412, _) => Trouble::Unmet,
            (416, _) => Trouble::BeyondEnd,
            (408, _) => Trouble::TimedOut,
            (429 | 503, _) => Trouble::Busy,
            (501 | 505, _) => Trouble::Other,
            (500.., _) => Trouble::Server,
            _ => Trouble::Other,
        };
        let message = self.element("Message");
        let detail = match (code, message) {
            ("", "") if self.body.trim_start().starts_with('<') => String::new(),
            ("", "") => self.body.clone(),
            ("", message) => message.to_owned(),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {message}"),
        };
        let separator = if detail.trim().is_empty() { "" } else { " " };
        let text = secrets.redact(&format!("the server answered {}{separator}{detail}", self.status));
        Failure::new(trouble, text)
    }

    /// Returns the text of an element of XML, as S3, Google and Azure send it.
    fn element(&self, name: &str) -> &str {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let inner = self.body.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
        inner.map_or("", |(text, _)| text.trim())
    }
}
