//! Create options and attributes: names and values as the C interface has them, both ways.

use super::call::{list, text};
use crate::abi::{new_args, sys};
use crate::wire::message::{NamedValue, Value};

/// The C form of `values`, which it points into.
pub(super) fn to_c(values: &[NamedValue]) -> Vec<sys::PJRT_NamedValue> {
    values.iter().map(one_to_c).collect()
}

fn one_to_c(named: &NamedValue) -> sys::PJRT_NamedValue {
    use sys::PJRT_NamedValue__bindgen_ty_1 as Union;
    let (type_, value, value_size) = match &named.value {
        Value::String(text) => (sys::PJRT_NamedValue_kString, Union { string_value: text.as_ptr().cast() }, text.len()),
        Value::Int64(number) => (sys::PJRT_NamedValue_kInt64, Union { int64_value: *number }, 1),
        Value::Int64List(numbers) => {
            (sys::PJRT_NamedValue_kInt64List, Union { int64_array_value: numbers.as_ptr() }, numbers.len())
        }
        Value::Float(number) => (sys::PJRT_NamedValue_kFloat, Union { float_value: *number }, 1),
        Value::Bool(truth) => (sys::PJRT_NamedValue_kBool, Union { bool_value: *truth }, 1),
    };
    let mut c_value = new_args::<sys::PJRT_NamedValue>();
    c_value.name = named.name.as_ptr().cast();
    c_value.name_size = named.name.len();
    c_value.type_ = type_;
    c_value.__bindgen_anon_1 = value;
    c_value.value_size = value_size;
    c_value
}

/// Reads what a plugin gave; a kind of value that this version does not know is left out.
///
/// # Safety
/// `values` must point to `len` named values of a plugin, alive during the call.
pub(super) unsafe fn read(values: *const sys::PJRT_NamedValue, len: usize) -> Vec<NamedValue> {
    // SAFETY: as the caller promises.
    unsafe { list(values, len).iter().filter_map(|value| read_one(value)).collect() }
}

/// # Safety
/// `named` must be a named value of a plugin, with all that it points to alive.
unsafe fn read_one(named: &sys::PJRT_NamedValue) -> Option<NamedValue> {
    let union = &named.__bindgen_anon_1;
    // SAFETY: the type says which member is set and, for strings and lists, `value_size` its length.
    let value = unsafe {
        match named.type_ {
            sys::PJRT_NamedValue_kString => Value::String(text(union.string_value, named.value_size)),
            sys::PJRT_NamedValue_kInt64 => Value::Int64(union.int64_value),
            sys::PJRT_NamedValue_kInt64List => {
                Value::Int64List(list(union.int64_array_value, named.value_size).to_vec())
            }
            sys::PJRT_NamedValue_kFloat => Value::Float(union.float_value),
            sys::PJRT_NamedValue_kBool => Value::Bool(union.bool_value),
            _ => return None,
        }
    };
    // SAFETY: as the caller promises.
    Some(NamedValue { name: unsafe { text(named.name, named.name_size) }, value })
}
