//! Element types of arrays: names, sizes, and how many bytes a dense array takes.

use super::{Status, sys};

/// One row of the table of types.
struct Element {
    /// `PJRT_Buffer_Type`.
    number: u32,
    /// As XLA writes it in shapes.
    name: &'static str,
    /// Bits that an element has; 0 for tokens.
    bits: u32,
}

const fn row(number: u32, name: &'static str, bits: u32) -> Element {
    Element { number, name, bits }
}

/// All types, in the order of their numbers.
const ELEMENTS: [Element; 33] = [
    row(sys::PJRT_Buffer_Type_PRED, "pred", 8),
    row(sys::PJRT_Buffer_Type_S8, "s8", 8),
    row(sys::PJRT_Buffer_Type_S16, "s16", 16),
    row(sys::PJRT_Buffer_Type_S32, "s32", 32),
    row(sys::PJRT_Buffer_Type_S64, "s64", 64),
    row(sys::PJRT_Buffer_Type_U8, "u8", 8),
    row(sys::PJRT_Buffer_Type_U16, "u16", 16),
    row(sys::PJRT_Buffer_Type_U32, "u32", 32),
    row(sys::PJRT_Buffer_Type_U64, "u64", 64),
    row(sys::PJRT_Buffer_Type_F16, "f16", 16),
    row(sys::PJRT_Buffer_Type_F32, "f32", 32),
    row(sys::PJRT_Buffer_Type_F64, "f64", 64),
    row(sys::PJRT_Buffer_Type_BF16, "bf16", 16),
    row(sys::PJRT_Buffer_Type_C64, "c64", 64),
    row(sys::PJRT_Buffer_Type_C128, "c128", 128),
    row(sys::PJRT_Buffer_Type_F8E5M2, "f8e5m2", 8),
    row(sys::PJRT_Buffer_Type_F8E4M3FN, "f8e4m3fn", 8),
    row(sys::PJRT_Buffer_Type_F8E4M3B11FNUZ, "f8e4m3b11fnuz", 8),
    row(sys::PJRT_Buffer_Type_F8E5M2FNUZ, "f8e5m2fnuz", 8),
    row(sys::PJRT_Buffer_Type_F8E4M3FNUZ, "f8e4m3fnuz", 8),
    row(sys::PJRT_Buffer_Type_S4, "s4", 4),
    row(sys::PJRT_Buffer_Type_U4, "u4", 4),
    row(sys::PJRT_Buffer_Type_TOKEN, "token", 0),
    row(sys::PJRT_Buffer_Type_S2, "s2", 2),
    row(sys::PJRT_Buffer_Type_U2, "u2", 2),
    row(sys::PJRT_Buffer_Type_F8E4M3, "f8e4m3", 8),
    row(sys::PJRT_Buffer_Type_F8E3M4, "f8e3m4", 8),
    row(sys::PJRT_Buffer_Type_F8E8M0FNU, "f8e8m0fnu", 8),
    row(sys::PJRT_Buffer_Type_F4E2M1FN, "f4e2m1fn", 4),
    row(sys::PJRT_Buffer_Type_S1, "s1", 1),
    row(sys::PJRT_Buffer_Type_U1, "u1", 1),
    row(sys::PJRT_Buffer_Type_F6E2M3FN, "f6e2m3fn", 6),
    row(sys::PJRT_Buffer_Type_F6E3M2FN, "f6e3m2fn", 6),
];

fn find(element_type: u32) -> Result<&'static Element, Status> {
    // INVALID is 0 and in no row.
    let row = (element_type as usize).checked_sub(1).and_then(|place| ELEMENTS.get(place));
    row.ok_or_else(|| {
        Status::invalid(format!("element type {element_type} is none that Mainstay knows (1 to {})", ELEMENTS.len()))
    })
}

/// The type's name as XLA writes it in shapes, such as `f32`.
///
/// # Errors
/// INVALID_ARGUMENT for an unknown type.
pub fn name(element_type: u32) -> Result<&'static str, Status> {
    Ok(find(element_type)?.name)
}

/// The number of the type with this name.
pub fn from_name(name: &str) -> Option<u32> {
    ELEMENTS.iter().find(|row| row.name == name).map(|row| row.number)
}

/// Bits that an element has: 0 for tokens, which have no value.
///
/// # Errors
/// INVALID_ARGUMENT for an unknown type.
pub fn bits(element_type: u32) -> Result<u32, Status> {
    Ok(find(element_type)?.bits)
}

/// Bytes that an element takes in host memory: at least one, also below 8 bits. None for tokens.
///
/// # Errors
/// INVALID_ARGUMENT for an unknown type.
pub fn host_bytes(element_type: u32) -> Result<usize, Status> {
    Ok(find(element_type)?.bits.div_ceil(8) as usize)
}

/// Whether every plugin takes such elements from the host as they are: numbers of whole bytes that are as old as XLA.
pub fn is_plain(element_type: u32) -> bool {
    (sys::PJRT_Buffer_Type_PRED..=sys::PJRT_Buffer_Type_C128).contains(&element_type)
}

/// Elements of an array of these dimensions.
///
/// # Errors
/// INVALID_ARGUMENT for a negative dimension or a product that does not fit.
pub fn count(dims: &[i64]) -> Result<u64, Status> {
    if dims.iter().any(|dim| *dim < 0) {
        return Err(Status::invalid(format!("dimensions {dims:?} have a negative one")));
    }
    if dims.contains(&0) {
        return Ok(0);
    }
    let product = dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(dim.unsigned_abs()));
    product.ok_or_else(|| too_large(dims))
}

/// Bytes of a dense array in host memory, where every element takes at least one.
///
/// # Errors
/// INVALID_ARGUMENT for an unknown type, a negative dimension, or a size that no address space holds.
pub fn dense_bytes(element_type: u32, dims: &[i64]) -> Result<u64, Status> {
    let bytes = count(dims)?.checked_mul(host_bytes(element_type)? as u64);
    bytes.filter(|bytes| *bytes <= i64::MAX as u64).ok_or_else(|| too_large(dims))
}

fn too_large(dims: &[i64]) -> Status {
    Status::invalid(format!("an array of dimensions {dims:?} is larger than an address space"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_their_numbers() {
        for (place, row) in ELEMENTS.iter().enumerate() {
            assert_eq!(row.number as usize, place + 1, "{}", row.name);
            assert_eq!(from_name(row.name), Some(row.number));
            assert_eq!(name(row.number).unwrap(), row.name);
        }
    }

    #[test]
    fn types_that_do_not_exist_are_refused() {
        for unknown in [0, 34, u32::MAX] {
            assert!(host_bytes(unknown).unwrap_err().message.contains(&unknown.to_string()));
        }
    }

    #[test]
    fn small_types_take_a_byte_each_on_the_host() {
        for small in ["s1", "u2", "s4", "f4e2m1fn", "f6e3m2fn", "f8e3m4", "pred"] {
            assert_eq!(host_bytes(from_name(small).unwrap()).unwrap(), 1, "{small}");
        }
        assert_eq!(host_bytes(sys::PJRT_Buffer_Type_C128).unwrap(), 16);
        assert_eq!(host_bytes(sys::PJRT_Buffer_Type_TOKEN).unwrap(), 0);
    }

    #[test]
    fn sizes_of_arrays() {
        let f32 = sys::PJRT_Buffer_Type_F32;
        assert_eq!(dense_bytes(f32, &[]).unwrap(), 4);
        assert_eq!(dense_bytes(f32, &[3, 5]).unwrap(), 60);
        assert_eq!(dense_bytes(f32, &[3, 0, i64::MAX]).unwrap(), 0);
        assert!(dense_bytes(f32, &[-1]).is_err());
        assert!(dense_bytes(f32, &[i64::MAX]).is_err());
        assert!(dense_bytes(f32, &[i64::MAX, i64::MAX]).is_err());
        assert!(dense_bytes(f32, &[0, -1]).is_err());
    }
}
