//! Messages as bytes: postcard, written into a buffer that each thread keeps.

use std::cell::RefCell;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ConnectionError;
use crate::wire::ring::MAX_MESSAGE;

/// A thread's buffer above this size is not kept for its next message.
const KEPT: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Hands the bytes of `message` to `then`.
///
/// # Errors
/// `then`'s, or [`ConnectionError::Unsendable`] if the message has no encoding or too long a one.
pub fn encoded<T>(
    message: &impl Serialize,
    then: impl FnOnce(&mut Vec<u8>) -> Result<T, ConnectionError>,
) -> Result<T, ConnectionError> {
    let mut scratch = SCRATCH.take();
    scratch.clear();
    let unsendable = |error: postcard::Error| ConnectionError::Unsendable(error.to_string());
    let mut bytes = postcard::serialize_with_flavor(message, Buffer(scratch)).map_err(unsendable)?;
    if bytes.len() > MAX_MESSAGE {
        return Err(ConnectionError::Unsendable(format!("{} bytes, over the limit of {MAX_MESSAGE}", bytes.len())));
    }
    let result = then(&mut bytes);
    if bytes.capacity() <= KEPT {
        SCRATCH.replace(bytes);
    }
    result
}

/// The message that is `bytes`, all of them.
///
/// # Errors
/// [`ConnectionError::Corrupt`]. A length that lies makes no allocation beyond what the bytes could hold.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ConnectionError> {
    let corrupt = |what: &dyn std::fmt::Display| {
        let head: Vec<_> = bytes.iter().take(16).collect();
        ConnectionError::Corrupt(format!("message of {} bytes beginning with {head:02x?}: {what}", bytes.len()))
    };
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(corrupt(&format_args!("{} bytes too many", rest.len()))),
        Err(error) => Err(corrupt(&error)),
    }
}

/// Collects what postcard writes.
struct Buffer(Vec<u8>);

impl Flavor for Buffer {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::message::{Command, Report};

    #[test]
    fn bytes_left_over_are_corrupt() {
        let mut bytes = encoded(&Command::Shutdown, |bytes| Ok(bytes.clone())).unwrap();
        assert_eq!(decode::<Command>(&bytes), Ok(Command::Shutdown));
        bytes.push(0);
        assert!(matches!(decode::<Command>(&bytes), Err(ConnectionError::Corrupt(_))));
        assert!(matches!(decode::<Command>(&[]), Err(ConnectionError::Corrupt(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Command>(&bytes);
            let _ = decode::<Report>(&bytes);
        }
    }
}
