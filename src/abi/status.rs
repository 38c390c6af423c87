//! Status codes and errors as PJRT knows them: what crosses the C boundary and the wire.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A PJRT error code. The numbers are those of `PJRT_Error_Code` (the canonical status codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the interface's own")]
pub enum Code {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// The code with this number; unknown numbers become [`Code::Unknown`].
    pub fn from_raw(raw: u32) -> Self {
        use Code::*;
        [
            Cancelled,
            Unknown,
            InvalidArgument,
            DeadlineExceeded,
            NotFound,
            AlreadyExists,
            PermissionDenied,
            ResourceExhausted,
            FailedPrecondition,
            Aborted,
            OutOfRange,
            Unimplemented,
            Internal,
            Unavailable,
            DataLoss,
            Unauthenticated,
        ]
        .into_iter()
        .find(|code| *code as u32 == raw)
        .unwrap_or(Unknown)
    }
}

/// An error with its code, its words and its payloads. Cheap to clone: poison hands the same one to many.
///
/// Errors of the inner plugin pass through as they are. Our own words never contain the names that elastic
/// libraries take for a lost slice (`DATA_LOSS`, `INTERNAL`, `NOT_FOUND`, `DEADLINE_EXCEEDED`), unless the
/// status is the loss of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The code the caller sees.
    pub code: Code,
    /// What happened, in words that a person can act on.
    pub message: Arc<str>,
    /// Payloads by type URL, passed on untouched.
    pub payloads: Arc<[(String, Vec<u8>)]>,
}

impl Status {
    /// A status without payloads.
    pub fn new(code: Code, message: impl Into<Arc<str>>) -> Self {
        Self { code, message: message.into(), payloads: Arc::from([]) }
    }

    /// The caller's argument is at fault.
    pub fn invalid(message: impl Into<Arc<str>>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// Mainstay does not do this, in words.
    pub fn unimplemented(message: impl Into<Arc<str>>) -> Self {
        Self::new(Code::Unimplemented, message)
    }

    /// The object is not in a state that allows the call.
    pub fn failed_precondition(message: impl Into<Arc<str>>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    /// Memory, descriptors or processes ran out.
    pub fn exhausted(message: impl Into<Arc<str>>) -> Self {
        Self::new(Code::ResourceExhausted, message)
    }

    /// Whether this is the loss of a slice: data that was there is gone for good.
    pub fn is_slice_loss(&self) -> bool {
        self.code == Code::DataLoss
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Status {}

/// Foreign words in our errors must not contain the names that elastic libraries take for a lost slice.
pub fn harmless(words: &str) -> String {
    ["DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED"]
        .iter()
        .fold(words.to_owned(), |words, name| words.replace(name, &name.to_lowercase().replace('_', " ")))
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn quoted_words_do_not_look_like_a_lost_slice() {
        let words = harmless("INTERNAL: Check failed; NOT_FOUND: x");
        assert!(!words.contains("INTERNAL") && !words.contains("NOT_FOUND"), "{words}");
    }
}
