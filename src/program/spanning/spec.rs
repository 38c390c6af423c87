//! What a collective of a spanning program is, as the rewriter writes it into the program and the worker reads it.
//!
//! A collective of the partitioned program becomes a typed-FFI custom call with two attributes: `key`, a number unique
//! within the program, and `spec`, a [`Spec`] as JSON. Operands and results reach the worker as flat memory: the
//! rewriter constrains their layouts so that the dimension a collective works along is the slowest varying one.

use serde::{Deserialize, Serialize};

/// The custom-call target of a collective.
pub const COLLECTIVE_TARGET: &str = "mainstay.collective";
/// The custom-call target that gives a device its partition or replica number.
pub const COORDINATE_TARGET: &str = "mainstay.coordinate";
/// The platform that both targets are registered for.
pub const PLATFORM: &str = "Host";
/// Attribute with the number of the collective within its program.
pub const KEY_ATTRIBUTE: &str = "key";
/// Attribute with the [`Spec`] as JSON, or with the name of the coordinate (`partition`, `replica`).
pub const SPEC_ATTRIBUTE: &str = "spec";

/// A device of a program by its place in it: `replica * partitions + partition`.
pub type Logical = u32;

/// What a collective does, over which devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    /// What it does.
    pub kind: Kind,
    /// The groups it works in, in logical devices; the place in its group is a device's rank. A device in no group
    /// takes part in nothing and gets zeros.
    pub groups: Vec<Vec<Logical>>,
    /// Source and target pairs of [`Kind::Permute`], whose one group holds all devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<(Logical, Logical)>,
}

/// The kinds of collectives. All act on flat arrays; several operands are several arrays treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Every rank gets the reduction of all ranks' operands.
    AllReduce(Reduction),
    /// Rank r gets the r-th of as many equal parts of the reduction.
    ReduceScatter(Reduction),
    /// Every rank gets all operands, one after the other by rank.
    AllGather,
    /// Rank r gets the r-th part of every rank's operand, one after the other by rank.
    AllToAll,
    /// The same with the parts as operands of their own: operand i goes to rank i and becomes its result r.
    AllToAllTuple,
    /// A target gets its source's operand, a device that is nobody's target gets zeros.
    Permute,
    /// Every rank gets rank 0's operand.
    Broadcast,
    /// Operands: input, output, input offsets, send sizes, output offsets, receive sizes; all counted in rows of
    /// `row` elements. Rank r's result is its `output` operand with the rows that the others sent put over it.
    RaggedAllToAll {
        /// Elements in a row.
        row: u64,
    },
}

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are HLO's")]
pub enum Reduction {
    Add,
    Multiply,
    Minimum,
    Maximum,
    And,
    Or,
    Xor,
}

impl Reduction {
    /// The reduction whose HLO opcode this is.
    pub fn from_opcode(opcode: &str) -> Option<Self> {
        Some(match opcode {
            "add" => Self::Add,
            "multiply" => Self::Multiply,
            "minimum" => Self::Minimum,
            "maximum" => Self::Maximum,
            "and" => Self::And,
            "or" => Self::Or,
            "xor" => Self::Xor,
            _ => return None,
        })
    }
}

/// A number that tells a device where it is in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordinate {
    /// `logical % partitions`.
    Partition,
    /// `logical / partitions`.
    Replica,
}

impl Coordinate {
    /// Its name in [`SPEC_ATTRIBUTE`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Partition => "partition",
            Self::Replica => "replica",
        }
    }

    /// The coordinate of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Partition, Self::Replica].into_iter().find(|coordinate| coordinate.name() == name)
    }
}
