//! Which version of PJRT brought which function: one table, which says what a plugin of a given version knows.

use std::fmt;

use super::{StructSize, sys};

/// The oldest minor version served. The table of functions was reordered before it, and only grew at its end since.
pub const OLDEST_MINOR: u32 = 57;

/// How many functions the table has had, from which minor version on.
const HISTORY: [(u32, usize); 26] = [
    (OLDEST_MINOR, 101),
    (60, 104),  // asynchronous transfers
    (62, 110),  // the rest of the transfer manager
    (67, 112),  // DMA
    (69, 113),  // uninitialized buffers
    (73, 114),  // process info
    (75, 115),  // topology from bytes
    (77, 117),  // alias buffers
    (79, 118),  // device assignment
    (82, 119),  // error buffers
    (83, 120),  // literals
    (84, 121),  // raw copies with a late destination
    (85, 122),  // poisoned executions
    (86, 124),  // tracking events
    (87, 125),  // compile options of an executable
    (88, 126),  // donation with a dependency
    (89, 128),  // events of the caller's
    (92, 129),  // device attributes
    (95, 130),  // loading as a step of its own
    (96, 131),  // logical device ids
    (98, 132),  // bitcast
    (99, 133),  // payloads of errors
    (101, 134), // topology fingerprint
    (102, 135), // memory kinds of parameters
    (106, 136), // clearing memory statistics
    (114, 138), // shapes and kinds of memory spaces; some version after 0.106
];

/// The arguments of a function of `PJRT_Api` that returns an error.
///
/// # Safety
/// `function` gives the function that takes these arguments.
pub unsafe trait Call: StructSize {
    /// The function's place in the table.
    const SLOT: Slot;

    /// The function, if the plugin has it.
    fn function(table: &sys::PJRT_Api) -> Option<unsafe extern "C" fn(*mut Self) -> *mut sys::PJRT_Error>;
}

macro_rules! slots {
    ($($function:ident($args:ident) -> $returns:ident,)*) => {
        /// A function of `PJRT_Api`: its number is its place in the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        #[allow(missing_docs, non_camel_case_types, reason = "the names are the interface's own; see `sys`")]
        pub enum Slot {
            $($function,)*
        }

        impl Slot {
            /// All functions, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$function,)*];

            /// The function's name.
            pub fn name(self) -> &'static str {
                const NAMES: &[&str] = &[$(stringify!($function),)*];
                NAMES[self as usize]
            }
        }

        $(call!($function($args) -> $returns);)*
    };
}

macro_rules! call {
    ($function:ident($args:ident) -> error) => {
        // SAFETY: the interface names the arguments of a function after it, and the types agree.
        unsafe impl Call for sys::$args {
            const SLOT: Slot = Slot::$function;

            fn function(table: &sys::PJRT_Api) -> Option<unsafe extern "C" fn(*mut Self) -> *mut sys::PJRT_Error> {
                table.$function
            }
        }
    };
    ($function:ident($args:ident) -> nothing) => {};
}

include!(concat!(env!("OUT_DIR"), "/abi_slots.rs"));

impl Slot {
    /// The minor version that brought the function ([`OLDEST_MINOR`] for older ones).
    pub fn since(self) -> u32 {
        let place = self as usize;
        HISTORY.iter().find(|(_, functions)| place < *functions).map_or(sys::PJRT_API_MINOR, |(minor, _)| *minor)
    }

    /// Bytes from the start of `PJRT_Api` to the end of the function's pointer.
    pub fn end(self) -> usize {
        std::mem::offset_of!(sys::PJRT_Api, PJRT_Error_Destroy) + (self as usize + 1) * size_of::<usize>()
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_grows_and_ends_with_our_table() {
        assert!(HISTORY.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
        assert_eq!(HISTORY[HISTORY.len() - 1], (sys::PJRT_API_MINOR, Slot::ALL.len()));
        assert_eq!(Slot::ALL.last().unwrap().end(), sys::PJRT_Api_STRUCT_SIZE as usize);
    }

    #[test]
    fn functions_come_with_their_versions() {
        assert_eq!(Slot::PJRT_Error_Destroy.since(), OLDEST_MINOR);
        assert_eq!(Slot::PJRT_Buffer_CopyRawToHost.since(), OLDEST_MINOR);
        assert_eq!(Slot::PJRT_Buffer_CopyRawToHost.end(), sys::PJRT_Api_FIRST_SIZE as usize);
        assert_eq!(Slot::PJRT_Client_DmaUnmap.since(), 67);
        assert_eq!(Slot::PJRT_Client_CreateErrorBuffer.since(), 82);
        assert_eq!(Slot::PJRT_Event_Set.since(), 89);
        assert_eq!(Slot::PJRT_Device_GetAttributes.since(), 92);
        assert_eq!(Slot::PJRT_Error_ForEachPayload.since(), 99);
        assert_eq!(Slot::PJRT_Client_Compile.name(), "PJRT_Client_Compile");
    }
}
