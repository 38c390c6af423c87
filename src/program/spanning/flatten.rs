//! Making a module's structure simple before it is rewritten: no asynchronous collectives, and one caller for every
//! computation with collectives in it.

use std::collections::{HashMap, HashSet};

use protobuf::MessageField;

use crate::abi::Status;
use crate::program::proto::hlo::{HloComputationProto, HloInstructionProto, HloModuleProto};

use super::rewrite::{callees, is_collective};

/// Copying computations stops with an error at this many in one module.
const MAX_COMPUTATIONS: usize = 100_000;

/// Turns asynchronous pairs into what they stand for: a `-start` becomes the instruction itself (or the call of a
/// computation), and whoever used its `-done` uses that.
pub(super) fn make_synchronous(module: &mut HloModuleProto) {
    for computation in &mut module.computations {
        let mut stands_for: HashMap<i64, i64> = HashMap::new();
        computation.instructions.retain_mut(|instruction| {
            let opcode = instruction.opcode.clone();
            let ends = opcode == "async-update"
                || opcode.strip_suffix("-done").is_some_and(|what| what == "async" || is_collective(what));
            if ends {
                if let Some(&start) = instruction.operand_ids.first() {
                    stands_for.insert(instruction.id, *stands_for.get(&start).unwrap_or(&start));
                }
                return false;
            }
            if opcode == "async-start" {
                instruction.opcode = "call".into();
                take_result(instruction);
            } else if let Some(what) = opcode.strip_suffix("-start").filter(|what| is_collective(what)) {
                instruction.opcode = what.into();
                // An all-reduce-start has its result's shape, the others a tuple of operand, result and more.
                if what != "all-reduce" {
                    take_result(instruction);
                }
            }
            true
        });
        if stands_for.is_empty() {
            continue;
        }
        let resolve = |id: &mut i64| *id = *stands_for.get(id).unwrap_or(id);
        resolve(&mut computation.root_id);
        for instruction in &mut computation.instructions {
            instruction.operand_ids.iter_mut().for_each(resolve);
            instruction.control_predecessor_ids.iter_mut().for_each(resolve);
        }
    }
}

/// The second part of an asynchronous start's shape is its result.
fn take_result(instruction: &mut HloInstructionProto) {
    if let Some(result) = instruction.shape.tuple_shapes.get(1).cloned() {
        instruction.shape = MessageField::some(result);
    }
}

/// Copies computations that have collectives in them and several callers, so that each call has its own.
///
/// A collective is identified by its place in the program. Two calls of one computation may run at the same time, in
/// either order on each device; with a computation of their own they can't be mistaken for one another.
pub(super) fn one_caller_each(module: &mut HloModuleProto) -> Result<(), Status> {
    let communicating = communicating(module);
    let ids = || module.computations.iter().flat_map(|c| c.instructions.iter().map(|instruction| instruction.id));
    let mut copier = Copier {
        communicating,
        claimed: HashSet::new(),
        done: Vec::with_capacity(module.computations.len()),
        next_computation: module.computations.iter().map(|computation| computation.id).max().unwrap_or(0) + 1,
        next_instruction: ids().max().unwrap_or(0) + 1,
        by_id: module.computations.iter().map(|computation| (computation.id, computation.clone())).collect(),
    };
    copier.emit(module.entry_computation_id)?;
    module.computations = copier.done;
    Ok(())
}

/// Computations that have a collective in them or in what they call.
fn communicating(module: &HloModuleProto) -> HashSet<i64> {
    let mut found = HashSet::new();
    // Callees come before their callers.
    for computation in &module.computations {
        let communicates = computation.instructions.iter().any(|instruction| {
            is_collective(&instruction.opcode) || callees(instruction).iter().any(|callee| found.contains(callee))
        });
        if communicates {
            found.insert(computation.id);
        }
    }
    found
}

struct Copier {
    by_id: HashMap<i64, HloComputationProto>,
    communicating: HashSet<i64>,
    /// Computations that have been emitted under their own id.
    claimed: HashSet<i64>,
    /// In an order with callees first.
    done: Vec<HloComputationProto>,
    next_computation: i64,
    next_instruction: i64,
}

impl Copier {
    /// Emits a computation and all it calls; returns the id to call it by.
    fn emit(&mut self, id: i64) -> Result<i64, Status> {
        let again = !self.claimed.insert(id);
        if again && !self.communicating.contains(&id) {
            return Ok(id);
        }
        let Some(original) = self.by_id.get(&id) else {
            return Err(Status::invalid(format!(
                "the partitioned module has no computation {id}, though it is called"
            )));
        };
        if self.done.len() > MAX_COMPUTATIONS {
            return Err(Status::exhausted(format!(
                "more than {MAX_COMPUTATIONS} computations after giving each call with collectives its own"
            )));
        }
        let mut computation = original.clone();
        if again {
            self.renumber(&mut computation);
        }
        for instruction in &mut computation.instructions {
            for callee in &mut instruction.called_computation_ids {
                *callee = self.emit(*callee)?;
            }
        }
        let id = computation.id;
        self.done.push(computation);
        Ok(id)
    }

    /// Gives a copy an id, a name and instruction ids of its own.
    fn renumber(&mut self, computation: &mut HloComputationProto) {
        let old = computation.id;
        computation.id = self.next_computation;
        self.next_computation += 1;
        computation.name = format!("{}.copy.{}", computation.name, computation.id);
        let by_computation = computation.instructions.iter().all(|instruction| instruction.id >> 32 == old);
        let mut renumbered: HashMap<i64, i64> = HashMap::new();
        for instruction in &mut computation.instructions {
            let id = if by_computation {
                (computation.id << 32) | (instruction.id & 0xffff_ffff)
            } else {
                self.next_instruction += 1;
                self.next_instruction - 1
            };
            renumbered.insert(instruction.id, id);
            instruction.id = id;
            instruction.name = format!("{}.copy.{}", instruction.name, computation.id);
        }
        let resolve = |id: &mut i64| *id = *renumbered.get(id).unwrap_or(id);
        resolve(&mut computation.root_id);
        for instruction in &mut computation.instructions {
            instruction.operand_ids.iter_mut().for_each(resolve);
            instruction.control_predecessor_ids.iter_mut().for_each(resolve);
        }
    }
}

/// Drops computations that nothing reachable from the entry calls.
pub(super) fn drop_unreachable(module: &mut HloModuleProto) {
    let calls: HashMap<i64, HashSet<i64>> =
        module.computations.iter().map(|c| (c.id, c.instructions.iter().flat_map(callees).collect())).collect();
    let mut reachable = HashSet::new();
    let mut left = vec![module.entry_computation_id];
    while let Some(id) = left.pop() {
        if reachable.insert(id) {
            left.extend(calls.get(&id).into_iter().flatten());
        }
    }
    module.computations.retain(|computation| reachable.contains(&computation.id));
}
