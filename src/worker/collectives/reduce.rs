//! Reductions, with the bits of XLA's own CPU collectives.
//!
//! XLA begins with the reduction's identity and takes in one rank after the other, in the order of ranks, rounding to
//! the element type each time. Its minimum is `x < acc ? x : acc` from infinity on (so a NaN never wins), its maximum
//! `acc < x ? x : acc`. Sums of predicates are "or", products "and". The rewriter has widened the types that XLA
//! widens ([`carrier`](crate::program::spanning)), so those never come here.

use std::ptr::NonNull;

use crate::abi::{Status, sys};
use crate::program::spanning::spec::Reduction;

/// Element types that can be reduced, by XLA's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are XLA's")]
pub enum Element {
    Pred,
    S8,
    S16,
    S32,
    S64,
    U8,
    U16,
    U32,
    U64,
    F16,
    F32,
    F64,
    C64,
    C128,
}

impl Element {
    /// The type with XLA's number `raw`, if it can be reduced.
    pub fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            sys::XLA_FFI_DataType_PRED => Self::Pred,
            sys::XLA_FFI_DataType_S8 => Self::S8,
            sys::XLA_FFI_DataType_S16 => Self::S16,
            sys::XLA_FFI_DataType_S32 => Self::S32,
            sys::XLA_FFI_DataType_S64 => Self::S64,
            sys::XLA_FFI_DataType_U8 => Self::U8,
            sys::XLA_FFI_DataType_U16 => Self::U16,
            sys::XLA_FFI_DataType_U32 => Self::U32,
            sys::XLA_FFI_DataType_U64 => Self::U64,
            sys::XLA_FFI_DataType_F16 => Self::F16,
            sys::XLA_FFI_DataType_F32 => Self::F32,
            sys::XLA_FFI_DataType_F64 => Self::F64,
            sys::XLA_FFI_DataType_C64 => Self::C64,
            sys::XLA_FFI_DataType_C128 => Self::C128,
            _ => return None,
        })
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Pred | Self::S8 | Self::U8 => 1,
            Self::S16 | Self::U16 | Self::F16 => 2,
            Self::S32 | Self::U32 | Self::F32 => 4,
            Self::S64 | Self::U64 | Self::F64 | Self::C64 => 8,
            Self::C128 => 16,
        }
    }
}

/// A reduction of a type, known to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reducer {
    reduction: Reduction,
    element: Element,
}

impl Reducer {
    /// The reducer for elements of XLA's type `raw`; an error where the type has no such reduction.
    pub fn new(reduction: Reduction, raw: u32) -> Result<Self, Status> {
        use Reduction::{And, Maximum, Minimum, Or, Xor};
        let refuse = || {
            let name = format!("{reduction:?}").to_lowercase();
            Status::unimplemented(format!("{name} of elements of XLA's type {raw} can't span slices"))
        };
        let element = Element::from_raw(raw).ok_or_else(refuse)?;
        let refused = match element {
            Element::F16 | Element::F32 | Element::F64 => matches!(reduction, And | Or | Xor),
            Element::C64 | Element::C128 => matches!(reduction, And | Or | Xor | Minimum | Maximum),
            _ => false,
        };
        if refused { Err(refuse()) } else { Ok(Self { reduction, element }) }
    }

    /// Bytes of an element.
    pub fn element_bytes(self) -> usize {
        self.element.bytes()
    }

    /// Fills `bytes` bytes with the identity.
    ///
    /// # Safety
    /// `to` is aligned for the element and good for writing `bytes` bytes, a multiple of the element's size.
    pub unsafe fn start(self, to: NonNull<u8>, bytes: usize) {
        // SAFETY: passed on as promised.
        unsafe { self.run(to, None, bytes) }
    }

    /// Takes one rank's elements into what is accumulated so far.
    ///
    /// # Safety
    /// Both are aligned for the element and good for `bytes` bytes, a multiple of the element's size, `to` for writing;
    /// they don't overlap, and nobody else writes to either.
    pub unsafe fn take_in(self, to: NonNull<u8>, from: NonNull<u8>, bytes: usize) {
        // SAFETY: passed on as promised.
        unsafe { self.run(to, Some(from), bytes) }
    }

    /// # Safety
    /// As [`Self::start`] and [`Self::take_in`].
    unsafe fn run(self, to: NonNull<u8>, from: Option<NonNull<u8>>, bytes: usize) {
        // SAFETY: passed on as promised.
        unsafe {
            match self.element {
                Element::Pred => fold::<Pred>(self.reduction, to, from, bytes),
                Element::S8 => fold::<i8>(self.reduction, to, from, bytes),
                Element::S16 => fold::<i16>(self.reduction, to, from, bytes),
                Element::S32 => fold::<i32>(self.reduction, to, from, bytes),
                Element::S64 => fold::<i64>(self.reduction, to, from, bytes),
                Element::U8 => fold::<u8>(self.reduction, to, from, bytes),
                Element::U16 => fold::<u16>(self.reduction, to, from, bytes),
                Element::U32 => fold::<u32>(self.reduction, to, from, bytes),
                Element::U64 => fold::<u64>(self.reduction, to, from, bytes),
                Element::F16 => fold::<Half>(self.reduction, to, from, bytes),
                Element::F32 => fold::<f32>(self.reduction, to, from, bytes),
                Element::F64 => fold::<f64>(self.reduction, to, from, bytes),
                Element::C64 => fold::<Complex<f32>>(self.reduction, to, from, bytes),
                Element::C128 => fold::<Complex<f64>>(self.reduction, to, from, bytes),
            }
        }
    }
}

/// An element that XLA can reduce. What a type doesn't have ([`Reducer::new`] refuses it) leaves it unchanged.
trait Reduce: Copy {
    fn identity(reduction: Reduction) -> Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn minimum(self, other: Self) -> Self;
    fn maximum(self, other: Self) -> Self;
    fn and(self, _: Self) -> Self {
        self
    }
    fn or(self, _: Self) -> Self {
        self
    }
    fn xor(self, _: Self) -> Self {
        self
    }
}

/// # Safety
/// As [`Reducer::start`] (`from` absent) and [`Reducer::take_in`].
unsafe fn fold<T: Reduce>(reduction: Reduction, to: NonNull<u8>, from: Option<NonNull<u8>>, bytes: usize) {
    let count = bytes / size_of::<T>();
    // SAFETY: aligned and valid for so many bytes, as the caller promises; every bit pattern is a `T`.
    let to = unsafe { std::slice::from_raw_parts_mut(to.as_ptr().cast::<T>(), count) };
    let Some(from) = from else { return to.fill(T::identity(reduction)) };
    // SAFETY: as above, and not overlapping `to`.
    let from = unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<T>(), count) };
    // One loop for each reduction, so that each can be vectorized.
    match reduction {
        Reduction::Add => each(to, from, T::add),
        Reduction::Multiply => each(to, from, T::multiply),
        Reduction::Minimum => each(to, from, T::minimum),
        Reduction::Maximum => each(to, from, T::maximum),
        Reduction::And => each(to, from, T::and),
        Reduction::Or => each(to, from, T::or),
        Reduction::Xor => each(to, from, T::xor),
    }
}

#[inline(always)]
fn each<T: Copy>(to: &mut [T], from: &[T], combine: impl Fn(T, T) -> T) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = combine(*to, *from);
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Reduce for $type {
            fn identity(reduction: Reduction) -> Self {
                match reduction {
                    Reduction::Add | Reduction::Or | Reduction::Xor => 0,
                    Reduction::Multiply => 1,
                    Reduction::Minimum => <$type>::MAX,
                    Reduction::Maximum => <$type>::MIN,
                    Reduction::And => !0,
                }
            }
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn minimum(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            fn maximum(self, other: Self) -> Self {
                if self < other { other } else { self }
            }
            fn and(self, other: Self) -> Self {
                self & other
            }
            fn or(self, other: Self) -> Self {
                self | other
            }
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Reduce for $type {
            fn identity(reduction: Reduction) -> Self {
                match reduction {
                    Reduction::Multiply => 1.0,
                    Reduction::Minimum => <$type>::INFINITY,
                    Reduction::Maximum => <$type>::NEG_INFINITY,
                    _ => 0.0,
                }
            }
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            fn minimum(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            fn maximum(self, other: Self) -> Self {
                if self < other { other } else { self }
            }
        }
    )*};
}

floats!(f32, f64);

/// A predicate: a byte, 0 or 1.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Pred(u8);

impl Reduce for Pred {
    fn identity(reduction: Reduction) -> Self {
        Self(matches!(reduction, Reduction::Multiply | Reduction::Minimum | Reduction::And).into())
    }
    fn add(self, other: Self) -> Self {
        Self(u8::from(self.0 | other.0 != 0))
    }
    fn multiply(self, other: Self) -> Self {
        Self(u8::from(self.0 != 0 && other.0 != 0))
    }
    fn minimum(self, other: Self) -> Self {
        self.multiply(other)
    }
    fn maximum(self, other: Self) -> Self {
        self.add(other)
    }
    fn and(self, other: Self) -> Self {
        self.multiply(other)
    }
    fn or(self, other: Self) -> Self {
        self.add(other)
    }
    fn xor(self, other: Self) -> Self {
        Self(u8::from((self.0 != 0) != (other.0 != 0)))
    }
}

/// A half-precision number, calculated with in single precision and rounded each time.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Half(u16);

impl Half {
    fn wide(self) -> f32 {
        let (sign, exponent, fraction) =
            (u32::from(self.0 >> 15) << 31, self.0 >> 10 & 0x1f, u32::from(self.0 & 0x3ff));
        match exponent {
            // Zero and subnormals: the fraction in units of 2^-24.
            0 => f32::from_bits((fraction as f32 * f32::from_bits(0x3380_0000)).to_bits() | sign),
            0x1f => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
            _ => f32::from_bits(sign | (u32::from(exponent) + 112) << 23 | fraction << 13),
        }
    }

    /// Rounded to nearest, ties to even.
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = (bits >> 16 & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        let rounded = if magnitude > 0x7f80_0000 {
            // NaN, quiet, with what fits of its payload.
            0x7e00 | (magnitude >> 13 & 0x3ff) as u16
        } else if magnitude >= 0x4780_0000 {
            // 65536 and more.
            0x7c00
        } else if magnitude < 0x3880_0000 {
            // Below 2^-14: adding 0.5 makes the hardware round to units of 2^-24.
            (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits()) as u16
        } else {
            let odd = magnitude >> 13 & 1;
            // Rebias the exponent, round, and carry into it where that is due; 65520 and more become infinity.
            ((magnitude - (112 << 23) + 0xfff + odd) >> 13) as u16
        };
        Self(sign | rounded)
    }
}

impl Reduce for Half {
    fn identity(reduction: Reduction) -> Self {
        Self::narrow(f32::identity(reduction))
    }
    fn add(self, other: Self) -> Self {
        Self::narrow(self.wide() + other.wide())
    }
    fn multiply(self, other: Self) -> Self {
        Self::narrow(self.wide() * other.wide())
    }
    fn minimum(self, other: Self) -> Self {
        if other.wide() < self.wide() { other } else { self }
    }
    fn maximum(self, other: Self) -> Self {
        if self.wide() < other.wide() { other } else { self }
    }
}

/// A complex number, real part first.
#[derive(Clone, Copy)]
#[repr(C)]
struct Complex<T> {
    real: T,
    imaginary: T,
}

macro_rules! complexes {
    ($($type:ty),*) => {$(
        impl Reduce for Complex<$type> {
            fn identity(reduction: Reduction) -> Self {
                Self { real: <$type>::identity(reduction), imaginary: 0.0 }
            }
            fn add(self, other: Self) -> Self {
                Self { real: self.real + other.real, imaginary: self.imaginary + other.imaginary }
            }
            fn multiply(self, other: Self) -> Self {
                let real = self.real * other.real - self.imaginary * other.imaginary;
                let imaginary = self.real * other.imaginary + self.imaginary * other.real;
                if real.is_nan() && imaginary.is_nan() { self.multiply_recovering(other) } else { Self { real, imaginary } }
            }
            fn minimum(self, _: Self) -> Self {
                self
            }
            fn maximum(self, _: Self) -> Self {
                self
            }
        }

        impl Complex<$type> {
            /// The product where the plain formula gives NaN twice: C's rules (annex G) find infinities in it.
            #[cold]
            fn multiply_recovering(self, other: Self) -> Self {
                let unit = |x: $type| (if x.is_infinite() { 1.0 as $type } else { 0.0 }).copysign(x);
                let zero_if_nan = |x: $type| if x.is_nan() { (0.0 as $type).copysign(x) } else { x };
                let (mut a, mut b, mut c, mut d) = (self.real, self.imaginary, other.real, other.imaginary);
                let products = [a * c, b * d, a * d, b * c];
                let mut recovered = false;
                if a.is_infinite() || b.is_infinite() {
                    (a, b, c, d) = (unit(a), unit(b), zero_if_nan(c), zero_if_nan(d));
                    recovered = true;
                }
                if c.is_infinite() || d.is_infinite() {
                    (a, b, c, d) = (zero_if_nan(a), zero_if_nan(b), unit(c), unit(d));
                    recovered = true;
                }
                if !recovered && products.iter().any(|product| product.is_infinite()) {
                    (a, b, c, d) = (zero_if_nan(a), zero_if_nan(b), zero_if_nan(c), zero_if_nan(d));
                    recovered = true;
                }
                let far: $type = if recovered { <$type>::INFINITY } else { 1.0 };
                Self { real: far * (a * c - b * d), imaginary: far * (a * d + b * c) }
            }
        }
    )*};
}

complexes!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_survive_widening_and_round_to_even() {
        for bits in 0..=u16::MAX {
            let half = Half(bits);
            let back = Half::narrow(half.wide());
            if half.wide().is_nan() {
                assert!(back.wide().is_nan());
            } else {
                assert_eq!(back.0, bits, "{bits:#x}");
            }
        }
        for (value, expected) in [
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (1e9, 0x7c00),
            (2049.0, 0x6800),
            (2051.0, 0x6802),
            (f32::from_bits(0x3300_0000), 0),
            (f32::from_bits(0x3300_0001), 1),
            (-1e-9, 0x8000),
            (0.000_061_035_156, 0x0400),
            (0.000_061_02, 0x0400),
        ] {
            assert_eq!(Half::narrow(value).0, expected, "{value}");
        }
    }

    #[test]
    fn nan_never_wins_and_zeros_are_positive() {
        assert_eq!(Reduce::minimum(f32::identity(Reduction::Minimum), f32::NAN), f32::INFINITY);
        assert_eq!(Reduce::maximum(1.0_f32, f32::NAN), 1.0);
        assert!(Reduce::add(f32::identity(Reduction::Add), -0.0).is_sign_positive());
    }

    #[test]
    fn types_without_a_reduction_are_refused() {
        assert!(Reducer::new(Reduction::Minimum, sys::XLA_FFI_DataType_C64).is_err());
        assert!(Reducer::new(Reduction::Xor, sys::XLA_FFI_DataType_F32).is_err());
        assert!(Reducer::new(Reduction::Add, sys::XLA_FFI_DataType_BF16).is_err());
        assert!(Reducer::new(Reduction::Or, sys::XLA_FFI_DataType_PRED).is_ok());
    }
}
