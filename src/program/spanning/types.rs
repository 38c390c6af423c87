//! XLA's element types, as far as rewriting needs to know them.

/// `PrimitiveType` of a tuple.
pub const TUPLE: i32 = 13;
/// `PrimitiveType` of opaque values.
const OPAQUE: i32 = 14;
/// `PrimitiveType` of a token.
pub const TOKEN: i32 = 17;

const S8: i32 = 2;
const U8: i32 = 6;
const F16: i32 = 10;
const F32: i32 = 11;
const BF16: i32 = 16;

/// Bits of an element, 0 for what is no array.
pub fn bits(element_type: i32) -> u32 {
    match element_type {
        // S1, U1; S2, U2; S4, U4, F4E2M1FN; F6E3M2FN, F6E2M3FN.
        30 | 31 => 1,
        26 | 27 => 2,
        21 | 22 | 32 => 4,
        35 | 36 => 6,
        TUPLE | OPAQUE | TOKEN => 0,
        3 | 7 | F16 | BF16 => 16,
        4 | 8 | F32 => 32,
        5 | 9 | 12 | 15 => 64,
        18 => 128,
        // PRED, S8, U8 and the 8-bit floats.
        _ => 8,
    }
}

/// The type in which a collective moves or reduces elements of a type.
///
/// XLA's CPU compiler widens types that its collectives lack, with conversions around the collective: what it does
/// decides the bits of the result, so the same conversions are made here, and XLA makes of both programs the same.
/// Types of less than a byte are packed in memory and are widened to be moved, too.
pub fn carrier(element_type: i32, reduces: bool) -> i32 {
    match element_type {
        // S1, S2, S4 and U1, U2, U4.
        30 | 26 | 21 => S8,
        31 | 27 | 22 => U8,
        // F4E2M1FN, F6E3M2FN, F6E2M3FN.
        32 | 35 | 36 => F16,
        BF16 if reduces => F32,
        // F8E8M0FNU has exponents that F16 lacks.
        33 if reduces => F32,
        // F8E5M2, F8E4M3FN, F8E4M3B11FNUZ, F8E5M2FNUZ, F8E4M3FNUZ, F8E4M3, F8E3M4.
        19 | 20 | 23 | 24 | 25 | 28 | 29 if reduces => F16,
        other => other,
    }
}
