//! Names and values, strings and lists as C sees them: storage of ours with an array that points into it.

use std::ffi::c_char;

use super::entry::{bytes, list, text};
use crate::abi::{Status, sys};
use crate::wire::message::{Layout, NamedValue, Value};

/// Named values with the C array over them. The array is good for as long as this lives.
pub struct NamedValues {
    array: Vec<sys::PJRT_NamedValue>,
    // What `array` points into; boxed contents, so that it may move with this.
    _values: Box<[NamedValue]>,
}

// SAFETY: the pointers in `array` go into `_values`, which nobody changes.
unsafe impl Send for NamedValues {}
// SAFETY: as above.
unsafe impl Sync for NamedValues {}

impl NamedValues {
    /// Takes the values over.
    pub fn new(values: Vec<NamedValue>) -> Self {
        let values = values.into_boxed_slice();
        Self { array: values.iter().map(to_c).collect(), _values: values }
    }

    /// The C array.
    pub fn array(&self) -> &[sys::PJRT_NamedValue] {
        &self.array
    }
}

fn to_c(value: &NamedValue) -> sys::PJRT_NamedValue {
    type Union = sys::PJRT_NamedValue__bindgen_ty_1;
    let (kind, size, union) = match &value.value {
        Value::String(text) => (sys::PJRT_NamedValue_kString, text.len(), Union { string_value: text.as_ptr().cast() }),
        Value::Int64(number) => (sys::PJRT_NamedValue_kInt64, 1, Union { int64_value: *number }),
        Value::Int64List(numbers) => {
            (sys::PJRT_NamedValue_kInt64List, numbers.len(), Union { int64_array_value: numbers.as_ptr() })
        }
        Value::Float(number) => (sys::PJRT_NamedValue_kFloat, 1, Union { float_value: *number }),
        Value::Bool(flag) => (sys::PJRT_NamedValue_kBool, 1, Union { bool_value: *flag }),
    };
    sys::PJRT_NamedValue {
        struct_size: size_of::<sys::PJRT_NamedValue>(),
        extension_start: std::ptr::null_mut(),
        name: value.name.as_ptr().cast(),
        name_size: value.name.len(),
        type_: kind,
        __bindgen_anon_1: union,
        value_size: size,
    }
}

/// The named values of a caller.
///
/// # Safety
/// `count` values at `values`, as the interface lays them out.
pub unsafe fn from_c(values: *const sys::PJRT_NamedValue, count: usize) -> Result<Vec<NamedValue>, Status> {
    // SAFETY: the caller's promise, here and for what each value points to.
    unsafe { list(values, count) }.iter().map(|value| unsafe { one_from_c(value) }).collect()
}

unsafe fn one_from_c(value: &sys::PJRT_NamedValue) -> Result<NamedValue, Status> {
    // SAFETY: the type says which member of the union is set, and the size how long it is.
    unsafe {
        let name = text(value.name, value.name_size);
        let union = &value.__bindgen_anon_1;
        let value = match value.type_ {
            sys::PJRT_NamedValue_kString => Value::String(text(union.string_value, value.value_size)),
            sys::PJRT_NamedValue_kInt64 => Value::Int64(union.int64_value),
            sys::PJRT_NamedValue_kInt64List => {
                Value::Int64List(list(union.int64_array_value, value.value_size).to_vec())
            }
            sys::PJRT_NamedValue_kFloat => Value::Float(union.float_value),
            sys::PJRT_NamedValue_kBool => Value::Bool(union.bool_value),
            other => {
                return Err(Status::invalid(format!(
                    "the value of {name} has type {other}, which is none of the interface's"
                )));
            }
        };
        Ok(NamedValue { name, value })
    }
}

/// Byte strings with the C arrays of pointers and sizes over them.
pub struct Strings {
    pointers: Vec<*const c_char>,
    sizes: Vec<usize>,
    _strings: Box<[Vec<u8>]>,
}

// SAFETY: the pointers go into `_strings`, which nobody changes.
unsafe impl Send for Strings {}
// SAFETY: as above.
unsafe impl Sync for Strings {}

impl Strings {
    /// Takes the strings over.
    pub fn new(strings: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Self {
        let strings: Box<[Vec<u8>]> = strings.into_iter().map(Into::into).collect();
        Self {
            pointers: strings.iter().map(|string| string.as_ptr().cast()).collect(),
            sizes: strings.iter().map(Vec::len).collect(),
            _strings: strings,
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// The C array of pointers.
    pub fn pointers(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }

    /// The C array of sizes in bytes.
    pub fn sizes(&self) -> *const usize {
        self.sizes.as_ptr()
    }
}

/// The layout that a caller gives; none for a null pointer.
///
/// # Safety
/// `layout` is null or points to a layout as the interface has it.
pub unsafe fn layout_from_c(layout: *const sys::PJRT_Buffer_MemoryLayout) -> Result<Option<Layout>, Status> {
    // SAFETY: the caller's promise.
    let Some(layout) = (unsafe { layout.as_ref() }) else { return Ok(None) };
    // SAFETY: the type says which member of the union is set.
    unsafe {
        match layout.type_ {
            sys::PJRT_Buffer_MemoryLayout_Type_Tiled => {
                let tiled = &layout.__bindgen_anon_1.tiled;
                let sizes: Vec<u64> =
                    list(tiled.tile_dim_sizes, tiled.num_tiles).iter().map(|&size| size as u64).collect();
                let dims = list(tiled.tile_dims, sizes.iter().sum::<u64>() as usize);
                Ok(Some(Layout::Tiled {
                    minor_to_major: list(tiled.minor_to_major, tiled.minor_to_major_size).iter().copied().collect(),
                    tile_dims: dims.iter().copied().collect(),
                    tile_dim_sizes: sizes.into_iter().collect(),
                }))
            }
            sys::PJRT_Buffer_MemoryLayout_Type_Strides => {
                let strides = &layout.__bindgen_anon_1.strides;
                Ok(Some(Layout::Strides(
                    list(strides.byte_strides, strides.num_byte_strides).iter().copied().collect(),
                )))
            }
            other => Err(Status::invalid(format!("a layout has type {other}, which is none of the interface's"))),
        }
    }
}

/// The program that a caller gives: format and code.
///
/// # Safety
/// `program` is null or points to a program as the interface has it.
pub unsafe fn program_from_c(program: *const sys::PJRT_Program) -> Result<(String, Vec<u8>), Status> {
    // SAFETY: the caller's promise.
    let program =
        unsafe { program.as_ref() }.ok_or_else(|| Status::invalid("a null pointer was given for a program"))?;
    // SAFETY: as above.
    Ok(unsafe { (text(program.format, program.format_size), bytes(program.code, program.code_size).to_vec()) })
}

/// Bytes that a caller frees through a deleter.
pub struct OwnedBytes(pub Vec<u8>);

/// Defines deleters: functions that take back [`OwnedBytes`] under the interface's name for them.
macro_rules! owned_bytes {
    ($($deleter:ident $raw:ident)*) => {$(
        unsafe extern "C" fn $deleter(bytes: *mut $crate::abi::sys::$raw) {
            if !bytes.is_null() {
                $crate::plugin::entry::quietly((), || {
                    // SAFETY: given out by its entry point as a box of this type; the caller gives it up.
                    drop(unsafe { Box::from_raw(bytes.cast::<$crate::plugin::values::OwnedBytes>()) });
                });
            }
        }
    )*};
}
pub(super) use owned_bytes;
