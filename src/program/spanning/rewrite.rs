//! Rewriting a partitioned program so that each slice can run its devices' part of it alone.
//!
//! Input is the module after SPMD partitioning: one device's program, whose collectives and partition number refer to
//! all devices of the program. Output is the same program for any number of independent replicas: every collective is
//! a custom call into the worker's exchange ([`super::spec`]), and so is every question where a device is. Nothing in
//! it depends on which slice runs it, so that one compilation serves all slices that run equally many devices, and
//! their replacements.
//!
//! *Every* collective is replaced, those within one slice too: XLA's in-process rendezvous aborts the process when one
//! of its participants fails, and only some may.

use std::collections::{HashMap, HashSet};

use protobuf::MessageField;

use crate::abi::Status;
use crate::program::proto::hlo::{HloComputationProto, HloInstructionProto, HloModuleProto};
use crate::program::proto::shape::{LayoutProto, ShapeProto};

use super::flatten;
use super::groups::{self, Extents};
use super::spec::{
    COLLECTIVE_TARGET, COORDINATE_TARGET, Coordinate, KEY_ATTRIBUTE, Kind, Reduction, SPEC_ATTRIBUTE, Spec,
};
use super::types::{self, TUPLE, carrier};

/// `CustomCallApiVersion` of the typed FFI.
const API_VERSION_TYPED_FFI: i32 = 4;

/// The collectives that the rewriter knows, without the suffix of their asynchronous forms.
const COLLECTIVES: [&str; 7] = [
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
];

/// Whether an instruction with this opcode is a collective, in its synchronous form.
pub(super) fn is_collective(opcode: &str) -> bool {
    COLLECTIVES.contains(&opcode)
}

/// Rewrites a partitioned module for the slices that run it; see the module's documentation.
///
/// An error names the instruction that can't be rewritten.
pub fn rewrite(mut module: HloModuleProto, extents: Extents) -> Result<HloModuleProto, Status> {
    flatten::make_synchronous(&mut module);
    flatten::one_caller_each(&mut module)?;
    let reductions = module.computations.iter().filter_map(|c| Some((c.id, reduction_of(c)?))).collect();
    let mut rewriter = Rewriter { extents, reductions, next_key: 0, ids: NewIds::of(&module) };
    for computation in &mut module.computations {
        rewriter.computation(computation)?;
    }
    flatten::drop_unreachable(&mut module);
    module.device_assignment = MessageField::none();
    module.schedule.clear();
    module.spmd_output_sharding = None;
    module.spmd_parameters_shardings.clear();
    Ok(module)
}

/// The reduction that a computation is, if it is `op(parameter, parameter)`.
fn reduction_of(computation: &HloComputationProto) -> Option<Reduction> {
    let instruction = |id: i64| computation.instructions.iter().find(|instruction| instruction.id == id);
    // XLA leaves copies in between. No chain of them is longer than the computation.
    let by_id = |id: i64| {
        computation.instructions.iter().try_fold(instruction(id)?, |found, _| {
            match (found.opcode.as_str(), &found.operand_ids[..]) {
                ("copy", [source]) => instruction(*source),
                _ => Some(found),
            }
        })
    };
    let root = by_id(computation.root_id)?;
    let [left, right] = root.operand_ids[..] else { return None };
    let (left, right) = (by_id(left)?, by_id(right)?);
    let both =
        left.opcode == "parameter" && right.opcode == "parameter" && left.parameter_number != right.parameter_number;
    if both { Reduction::from_opcode(&root.opcode) } else { None }
}

/// Gives ids to new instructions. XLA either numbers all of a module's instructions, or keeps the computation's id in
/// the upper half and numbers within the computation.
struct NewIds {
    by_computation: bool,
    largest: i64,
}

impl NewIds {
    fn of(module: &HloModuleProto) -> Self {
        let mut ids = Self { by_computation: true, largest: 0 };
        for computation in &module.computations {
            for instruction in &computation.instructions {
                ids.by_computation &= instruction.id >> 32 == computation.id;
                ids.largest = ids.largest.max(instruction.id);
            }
        }
        ids
    }

    /// The first free id for a computation; those after it are free too until the next call.
    fn first(&self, computation: &HloComputationProto) -> i64 {
        if self.by_computation {
            computation.instructions.iter().map(|instruction| instruction.id).max().unwrap_or(computation.id << 32) + 1
        } else {
            self.largest + 1
        }
    }
}

struct Rewriter {
    extents: Extents,
    /// By computation id.
    reductions: HashMap<i64, Reduction>,
    next_key: i64,
    ids: NewIds,
}

impl Rewriter {
    fn computation(&mut self, computation: &mut HloComputationProto) -> Result<(), Status> {
        let first = self.ids.first(computation);
        let old = std::mem::take(&mut computation.instructions);
        let shapes = old.iter().map(|i| (i.id, i.shape.get_or_default().clone())).collect();
        let mut body = Body { shapes, instructions: Vec::with_capacity(old.len()), next_id: first };
        for mut instruction in old {
            instruction.sharding.clear();
            match instruction.opcode.as_str() {
                "partition-id" => body.push(coordinate(instruction, Coordinate::Partition)),
                "replica-id" => body.push(coordinate(instruction, Coordinate::Replica)),
                opcode if is_collective(opcode) => self.collective(instruction, &mut body)?,
                _ => body.push(instruction),
            }
        }
        self.ids.largest = self.ids.largest.max(body.next_id);
        computation.instructions = body.instructions;
        Ok(())
    }

    /// Puts a custom call, and what must be before and after it, in the place of a collective.
    fn collective(&mut self, instruction: HloInstructionProto, body: &mut Body) -> Result<(), Status> {
        let spec = self.spec(&instruction, body)?;
        let reduces = matches!(spec.kind, Kind::AllReduce(_) | Kind::ReduceScatter(_));
        let major = match spec.kind {
            Kind::AllGather | Kind::ReduceScatter(_) | Kind::AllToAll => instruction.dimensions.first().copied(),
            _ => None,
        };
        let results = leaves(instruction.shape.get_or_default());

        let mut operands = Vec::with_capacity(instruction.operand_ids.len());
        let mut operand_shapes = Vec::with_capacity(operands.capacity());
        for &operand in &instruction.operand_ids {
            let shape = body.shape(operand)?;
            let wanted = carrier(shape.element_type, reduces);
            operand_shapes.push(laid_out(&with_type(&shape, wanted), major));
            operands.push(if wanted == shape.element_type { operand } else { body.convert(operand, &shape, wanted) });
        }

        let carried: Vec<ShapeProto> = results
            .iter()
            .map(|shape| laid_out(&with_type(shape, carrier(shape.element_type, reduces)), major))
            .collect();
        let is_tuple = instruction.shape.element_type == TUPLE;
        let converted =
            results.iter().zip(&carried).any(|(result, carried)| result.element_type != carried.element_type);
        let mut call = custom_call(&instruction, COLLECTIVE_TARGET);
        call.shape = MessageField::some(if is_tuple { tuple_of(&carried) } else { carried[0].clone() });
        call.operand_ids = operands;
        call.operand_shapes_with_layout = operand_shapes;
        call.control_predecessor_ids = instruction.control_predecessor_ids.clone();
        call.custom_call_has_side_effect = true;
        call.backend_config = attributes(Some(self.next_key), &json(&spec)?);
        self.next_key += 1;
        if converted {
            call.id = body.take_id();
            call.name = format!("{}.carried", call.name);
        }
        let call_id = call.id;
        body.push(call);
        if converted {
            body.convert_back(&instruction, call_id, &results, &carried);
        }
        Ok(())
    }

    fn spec(&self, instruction: &HloInstructionProto, body: &Body) -> Result<Spec, Status> {
        let unsupported = |what: &str| {
            Status::unimplemented(format!("{} {} can't span slices: {what}", instruction.opcode, instruction.name))
        };
        let is_tuple = instruction.shape.element_type == TUPLE;
        let results = leaves(instruction.shape.get_or_default()).len();
        let operands = instruction.operand_ids.len();
        let reduction = || {
            let computation = instruction.called_computation_ids.first();
            computation
                .and_then(|id| self.reductions.get(id).copied())
                .ok_or_else(|| unsupported("its reduction is not one of add, multiply, minimum, maximum, and, or, xor"))
        };
        let kind = match instruction.opcode.as_str() {
            "all-reduce" => Kind::AllReduce(reduction()?),
            "reduce-scatter" => Kind::ReduceScatter(reduction()?),
            "all-gather" => Kind::AllGather,
            "all-to-all" if is_tuple => Kind::AllToAllTuple,
            "all-to-all" => Kind::AllToAll,
            "collective-permute" => Kind::Permute,
            "collective-broadcast" => Kind::Broadcast,
            "ragged-all-to-all" => {
                let shape = body.shape(*instruction.operand_ids.first().ok_or_else(|| unsupported("no operands"))?)?;
                Kind::RaggedAllToAll { row: shape.dimensions.iter().skip(1).product::<i64>().max(0) as u64 }
            }
            _ => return Err(unsupported("the kind is not known")),
        };
        let expected = if matches!(kind, Kind::RaggedAllToAll { .. }) { 6 } else { results };
        if operands != expected || results == 0 {
            return Err(unsupported(&format!("it has {operands} operands and {results} results")));
        }
        if kind == Kind::Permute {
            let everyone = (0..self.extents.devices()).collect();
            return Ok(Spec { kind, groups: vec![everyone], pairs: groups::pairs(instruction, self.extents)? });
        }
        let groups = groups::groups(instruction, self.extents)?;
        if kind == Kind::AllToAllTuple && groups.iter().any(|group| group.len() != operands) {
            return Err(unsupported(&format!("its groups don't have {operands} devices each, one for each operand")));
        }
        Ok(Spec { kind, groups, pairs: Vec::new() })
    }
}

/// A computation in the making.
struct Body {
    /// Shapes of all instructions, by id.
    shapes: HashMap<i64, ShapeProto>,
    instructions: Vec<HloInstructionProto>,
    next_id: i64,
}

impl Body {
    fn push(&mut self, instruction: HloInstructionProto) {
        self.instructions.push(instruction);
    }

    fn take_id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn shape(&self, id: i64) -> Result<ShapeProto, Status> {
        self.shapes
            .get(&id)
            .cloned()
            .ok_or_else(|| Status::invalid(format!("the partitioned module has no instruction {id}, an operand")))
    }

    /// Adds a new instruction and returns its id.
    fn add(&mut self, opcode: &str, shape: ShapeProto, operand_ids: Vec<i64>) -> i64 {
        let id = self.take_id();
        self.push(HloInstructionProto {
            name: format!("{opcode}.mainstay.{}", id & 0xffff_ffff),
            opcode: opcode.into(),
            shape: MessageField::some(shape),
            id,
            operand_ids,
            ..Default::default()
        });
        id
    }

    fn convert(&mut self, operand: i64, shape: &ShapeProto, to: i32) -> i64 {
        self.add("convert", with_type(shape, to), vec![operand])
    }

    /// Gives a collective's results their own types again, and its place to the outcome.
    fn convert_back(&mut self, old: &HloInstructionProto, call: i64, results: &[ShapeProto], carried: &[ShapeProto]) {
        let mut outcome = HloInstructionProto {
            name: old.name.clone(),
            id: old.id,
            metadata: old.metadata.clone(),
            shape: old.shape.clone(),
            ..Default::default()
        };
        if old.shape.element_type != TUPLE {
            outcome.opcode = "convert".into();
            outcome.operand_ids = vec![call];
            return self.push(outcome);
        }
        outcome.opcode = "tuple".into();
        for (index, (result, carried)) in results.iter().zip(carried).enumerate() {
            let mut part = self.add("get-tuple-element", carried.clone(), vec![call]);
            if let Some(added) = self.instructions.last_mut() {
                added.tuple_index = index as i64;
            }
            if result.element_type != carried.element_type {
                part = self.add("convert", result.clone(), vec![part]);
            }
            outcome.operand_ids.push(part);
        }
        self.push(outcome);
    }
}

/// The question where the device is, in the place of the instruction that asked for it.
fn coordinate(instruction: HloInstructionProto, coordinate: Coordinate) -> HloInstructionProto {
    let mut call = custom_call(&instruction, COORDINATE_TARGET);
    call.shape = MessageField::some(laid_out(instruction.shape.get_or_default(), None));
    call.control_predecessor_ids = instruction.control_predecessor_ids;
    call.backend_config = attributes(None, coordinate.name());
    call
}

fn custom_call(old: &HloInstructionProto, target: &str) -> HloInstructionProto {
    HloInstructionProto {
        name: old.name.clone(),
        opcode: "custom-call".into(),
        metadata: old.metadata.clone(),
        id: old.id,
        custom_call_target: target.into(),
        custom_call_api_version: API_VERSION_TYPED_FFI,
        constrain_layout: true,
        ..Default::default()
    }
}

/// The attributes as the typed FFI wants them: an MLIR dictionary.
fn attributes(key: Option<i64>, spec: &str) -> Vec<u8> {
    let escaped = spec.replace('\\', "\\\\").replace('"', "\\\"");
    match key {
        Some(key) => format!("{{{KEY_ATTRIBUTE} = {key} : i64, {SPEC_ATTRIBUTE} = \"{escaped}\"}}"),
        None => format!("{{{SPEC_ATTRIBUTE} = \"{escaped}\"}}"),
    }
    .into_bytes()
}

fn json(spec: &Spec) -> Result<String, Status> {
    serde_json::to_string(spec).map_err(|error| Status::invalid(format!("a collective can't be described: {error}")))
}

/// The arrays of a shape, itself if it is one.
fn leaves(shape: &ShapeProto) -> Vec<ShapeProto> {
    if shape.element_type == TUPLE { shape.tuple_shapes.iter().flat_map(leaves).collect() } else { vec![shape.clone()] }
}

fn tuple_of(shapes: &[ShapeProto]) -> ShapeProto {
    ShapeProto { element_type: TUPLE, tuple_shapes: shapes.to_vec(), ..Default::default() }
}

fn with_type(shape: &ShapeProto, element_type: i32) -> ShapeProto {
    let mut shape = shape.clone();
    if element_type != shape.element_type {
        shape.element_type = element_type;
        if let Some(layout) = shape.layout.as_mut() {
            layout.element_size_in_bits = 0;
        }
    }
    shape
}

/// The shape with a dense layout whose slowest varying dimension is `major` and whose others are in order.
fn laid_out(shape: &ShapeProto, major: Option<i64>) -> ShapeProto {
    let rank = shape.dimensions.len() as i64;
    let mut minor_to_major: Vec<i64> = (0..rank).rev().filter(|dimension| Some(*dimension) != major).collect();
    minor_to_major.extend(major.filter(|dimension| (0..rank).contains(dimension)));
    let bits = if types::bits(shape.element_type) < 8 { types::bits(shape.element_type).into() } else { 0 };
    let mut shape = shape.clone();
    shape.layout = MessageField::some(LayoutProto {
        minor_to_major,
        tail_padding_alignment_in_elements: 1,
        element_size_in_bits: bits,
        memory_space: shape.layout.memory_space,
        ..Default::default()
    });
    shape
}

/// Ids of all computations that an instruction calls.
pub(super) fn callees(instruction: &HloInstructionProto) -> HashSet<i64> {
    instruction.called_computation_ids.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(id: i64, opcode: &str, operands: &[i64], parameter: i64) -> HloInstructionProto {
        HloInstructionProto {
            id,
            opcode: opcode.to_owned(),
            operand_ids: operands.to_vec(),
            parameter_number: parameter,
            ..Default::default()
        }
    }

    fn computation(root: i64, rest: &[HloInstructionProto]) -> HloComputationProto {
        let parameters = [instruction(1, "parameter", &[], 0), instruction(2, "parameter", &[], 1)];
        let instructions = parameters.into_iter().chain(rest.iter().cloned()).collect();
        HloComputationProto { root_id: root, instructions, ..Default::default() }
    }

    #[test]
    fn a_reduction_is_seen_through_copies() {
        let add = instruction(3, "add", &[4, 2], 0);
        let copies =
            [instruction(4, "copy", &[1], 0), instruction(5, "copy", &[3], 0), instruction(6, "copy", &[5], 0)];
        let all = [&copies[..], &[add]].concat();
        assert_eq!(reduction_of(&computation(6, &all)), Reduction::from_opcode("add"));
        assert_eq!(reduction_of(&computation(4, &all)), None);
        assert_eq!(reduction_of(&computation(7, &[instruction(7, "copy", &[7], 0)])), None);
        assert_eq!(reduction_of(&computation(3, &[instruction(3, "add", &[1, 1], 0)])), None);
    }
}
