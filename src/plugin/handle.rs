//! What a C handle is on our side. Each kind of handle is a box of one type, owned by the caller until its destroy function;
//! devices, descriptions and memories are the exception: they are lent out and live as long as anything of their client.

use crate::abi::Status;

/// A type of ours that a C handle points to.
pub trait Handle: Sized {
    /// The interface's type.
    type Raw;
    /// What it is, for errors.
    const WHAT: &'static str;

    /// Hands it to the caller.
    fn into_raw(self) -> *mut Self::Raw {
        Box::into_raw(Box::new(self)).cast()
    }

    /// The pointer that callers know it by, while it stays where it is.
    fn as_raw(&self) -> *mut Self::Raw {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Looks at what a caller's handle points to.
    ///
    /// # Safety
    /// `raw` is null or a live handle of this kind that this library gave out; it stays alive during the call.
    unsafe fn borrow<'a>(raw: *const Self::Raw) -> Result<&'a Self, Status> {
        // SAFETY: the caller's promise.
        unsafe { raw.cast::<Self>().as_ref() }
            .ok_or_else(|| Status::invalid(format!("a null pointer was given for a {}", Self::WHAT)))
    }

    /// Takes a handle back from its caller; null is nothing.
    ///
    /// # Safety
    /// `raw` is null or a handle from [`Handle::into_raw`] that the caller gives up.
    unsafe fn take(raw: *mut Self::Raw) -> Option<Box<Self>> {
        // SAFETY: the caller's promise.
        (!raw.is_null()).then(|| unsafe { Box::from_raw(raw.cast::<Self>()) })
    }
}
