//! What an optimized program says of its parameters: shapes, layouts, and which of them an execution donates.

use protobuf::Message as _;

use super::proto::hlo::{HloModuleProto, HloModuleProtoWithConfig};
use super::proto::shape::ShapeProto;
use crate::wire::message::Dims;

/// The parameters of a program, as its caller passes them: the elements of a tuple where that is the only one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// The parameters, in order.
    pub parameters: Vec<Parameter>,
    /// Indices of the parameters that an execution uses up, ascending.
    pub donated: Vec<u32>,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// `PJRT_Buffer_Type`; 0 where the program has one that the interface does not know.
    pub element_type: u32,
    /// Dimensions.
    pub dims: Dims,
    /// The device layout, where the program says it.
    pub layout: Option<ParameterLayout>,
}

/// The layout of a parameter, as far as it has no tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterLayout {
    /// Dimension numbers, fastest varying first.
    pub minor_to_major: Vec<i64>,
    /// Bits of an element smaller than a byte, else 0.
    pub element_bits: i64,
    /// XLA's number of the memory space.
    pub memory_space: i64,
}

impl Signature {
    /// Reads it from an optimized program of this format; `None` where the format or the bytes are not understood.
    pub fn read(format: &str, code: &[u8]) -> Option<Self> {
        let module = match format {
            "hlo" => HloModuleProto::parse_from_bytes(code).ok()?,
            "hlo_with_config" => HloModuleProtoWithConfig::parse_from_bytes(code).ok()?.hlo_module.into_option()?,
            _ => return None,
        };
        Some(Self::of(&module))
    }

    /// Reads it from a module.
    pub fn of(module: &HloModuleProto) -> Self {
        let shapes = &module.host_program_shape.parameters;
        let tuple = match shapes.as_slice() {
            [only] if only.element_type == TUPLE => Some(&only.tuple_shapes),
            _ => None,
        };
        let parameters = tuple.unwrap_or(shapes).iter().map(parameter).collect();
        Self { parameters, donated: donated(module, tuple.is_some()) }
    }
}

/// What XLA's runtimes donate: every parameter that an output aliases, in whole or in part. Buffer donors that the
/// compiler gave no output stay as they are.
fn donated(module: &HloModuleProto, is_tuple: bool) -> Vec<u32> {
    let aliases = module.input_output_alias.entries.iter();
    let mut donated: Vec<u32> = aliases
        .filter_map(|entry| {
            let number = if is_tuple { *entry.parameter_shape_index.first()? } else { entry.parameter_number };
            u32::try_from(number).ok()
        })
        .collect();
    donated.sort_unstable();
    donated.dedup();
    donated
}

fn parameter(shape: &ShapeProto) -> Parameter {
    let layout = shape.layout.as_ref().filter(|layout| layout.tiles.is_empty()).map(|layout| ParameterLayout {
        minor_to_major: layout.minor_to_major.clone(),
        element_bits: layout.element_size_in_bits,
        memory_space: layout.memory_space,
    });
    Parameter { element_type: buffer_type(shape.element_type), dims: shape.dimensions.as_slice().into(), layout }
}

/// XLA's number of a tuple.
const TUPLE: i32 = 13;

/// `PJRT_Buffer_Type` of XLA's `PrimitiveType`; 0 where there is none.
fn buffer_type(primitive: i32) -> u32 {
    use crate::abi::sys::*;
    match primitive {
        1 => PJRT_Buffer_Type_PRED,
        2 => PJRT_Buffer_Type_S8,
        3 => PJRT_Buffer_Type_S16,
        4 => PJRT_Buffer_Type_S32,
        5 => PJRT_Buffer_Type_S64,
        6 => PJRT_Buffer_Type_U8,
        7 => PJRT_Buffer_Type_U16,
        8 => PJRT_Buffer_Type_U32,
        9 => PJRT_Buffer_Type_U64,
        10 => PJRT_Buffer_Type_F16,
        11 => PJRT_Buffer_Type_F32,
        12 => PJRT_Buffer_Type_F64,
        15 => PJRT_Buffer_Type_C64,
        16 => PJRT_Buffer_Type_BF16,
        17 => PJRT_Buffer_Type_TOKEN,
        18 => PJRT_Buffer_Type_C128,
        19 => PJRT_Buffer_Type_F8E5M2,
        20 => PJRT_Buffer_Type_F8E4M3FN,
        21 => PJRT_Buffer_Type_S4,
        22 => PJRT_Buffer_Type_U4,
        23 => PJRT_Buffer_Type_F8E4M3B11FNUZ,
        24 => PJRT_Buffer_Type_F8E5M2FNUZ,
        25 => PJRT_Buffer_Type_F8E4M3FNUZ,
        26 => PJRT_Buffer_Type_S2,
        27 => PJRT_Buffer_Type_U2,
        28 => PJRT_Buffer_Type_F8E4M3,
        29 => PJRT_Buffer_Type_F8E3M4,
        30 => PJRT_Buffer_Type_S1,
        31 => PJRT_Buffer_Type_U1,
        32 => PJRT_Buffer_Type_F4E2M1FN,
        33 => PJRT_Buffer_Type_F8E8M0FNU,
        _ => PJRT_Buffer_Type_INVALID,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::proto::hlo::hlo_input_output_alias_proto::AliasEntryProto;

    fn shape(element_type: i32, dimensions: &[i64]) -> ShapeProto {
        ShapeProto { element_type, dimensions: dimensions.to_vec(), ..Default::default() }
    }

    fn alias(parameter_number: i64, index: &[i64]) -> AliasEntryProto {
        AliasEntryProto { parameter_number, parameter_shape_index: index.to_vec(), ..Default::default() }
    }

    fn module(parameters: Vec<ShapeProto>, aliases: Vec<AliasEntryProto>) -> HloModuleProto {
        let mut module = HloModuleProto::new();
        module.host_program_shape.mut_or_insert_default().parameters = parameters;
        module.input_output_alias.mut_or_insert_default().entries = aliases;
        module
    }

    #[test]
    fn parameters_and_aliases_are_read() {
        let module = module(vec![shape(11, &[2, 3]), shape(4, &[])], vec![alias(1, &[]), alias(0, &[]), alias(1, &[])]);
        let signature = Signature::read("hlo", &module.write_to_bytes().unwrap()).unwrap();
        let types: Vec<_> = signature.parameters.iter().map(|parameter| parameter.element_type).collect();
        assert_eq!(types, [crate::abi::sys::PJRT_Buffer_Type_F32, crate::abi::sys::PJRT_Buffer_Type_S32]);
        assert_eq!(signature.parameters[0].dims.as_slice(), [2, 3]);
        assert_eq!(signature.donated, [0, 1]);
    }

    #[test]
    fn a_tuple_is_its_elements() {
        let mut tuple = shape(TUPLE, &[]);
        tuple.tuple_shapes = vec![shape(11, &[1]), shape(11, &[2])];
        let signature = Signature::of(&module(vec![tuple], vec![alias(0, &[1])]));
        assert_eq!(signature.parameters.len(), 2);
        assert_eq!(signature.donated, [1]);
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert_eq!(Signature::read("mlir", b""), None);
        assert_eq!(Signature::read("hlo", b"\xff\xff\xff"), None);
    }
}
