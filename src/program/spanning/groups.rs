//! Replica groups: from any of XLA's encodings to lists of logical devices.
//!
//! Four encodings exist side by side: a list of lists (in a field of its own, or in the instruction's oldest one), a
//! reshaped and transposed sequence ("iota"), and axes of a mesh. What the numbers in them mean depends on the
//! instruction's mode, which follows from its `channel_id` and `use_global_device_ids`.

use crate::abi::Status;
use crate::program::proto::hlo::{
    HloInstructionProto, IotaReplicaGroupListProto, MeshAxesReplicaGroupListProto, ReplicaGroup,
};

use super::spec::Logical;

/// More devices than this in one program is taken for a damaged module.
const MAX_DEVICES: i64 = 1 << 20;

/// How many replicas and partitions a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Replicas.
    pub replicas: u32,
    /// Partitions.
    pub partitions: u32,
}

impl Extents {
    /// All logical devices.
    pub fn devices(self) -> u32 {
        self.replicas * self.partitions
    }
}

/// What the numbers in an instruction's groups stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Replicas; one group for each partition.
    CrossReplica,
    /// Partitions; one group for each replica.
    CrossPartition,
    /// Replicas, each with all its partitions.
    CrossReplicaAndPartition,
    /// Logical devices.
    Flattened,
}

impl Mode {
    /// The mode of a collective.
    pub fn of(instruction: &HloInstructionProto) -> Self {
        // Only these three kinds have the notion of global ids.
        let knows_global_ids = ["all-reduce", "all-gather", "reduce-scatter"]
            .iter()
            .any(|opcode| instruction.opcode.trim_end_matches("-start") == *opcode);
        match (instruction.channel_id > 0, knows_global_ids, instruction.use_global_device_ids) {
            (false, ..) => Self::CrossReplica,
            (true, false, _) => Self::CrossPartition,
            (true, true, false) => Self::CrossReplicaAndPartition,
            (true, true, true) => Self::Flattened,
        }
    }
}

/// The groups of a collective, in logical devices.
pub fn groups(instruction: &HloInstructionProto, extents: Extents) -> Result<Vec<Vec<Logical>>, Status> {
    let mode = Mode::of(instruction);
    let mut raw = encoded_groups(instruction)?;
    if raw.is_empty() {
        let count = match mode {
            Mode::CrossPartition => extents.partitions,
            Mode::Flattened => extents.devices(),
            Mode::CrossReplica | Mode::CrossReplicaAndPartition => extents.replicas,
        };
        raw = vec![(0..i64::from(count)).collect()];
    }
    let mut flattened = Vec::new();
    for group in &raw {
        flatten(group, mode, extents, &mut flattened);
    }
    check(instruction, &flattened, extents)?;
    Ok(flattened.into_iter().map(|group| group.into_iter().map(|id| id as Logical).collect()).collect())
}

/// The source and target pairs of a collective-permute, in logical devices.
pub fn pairs(instruction: &HloInstructionProto, extents: Extents) -> Result<Vec<(Logical, Logical)>, Status> {
    let mode = Mode::of(instruction);
    let mut flattened = Vec::new();
    for pair in &instruction.source_target_pairs {
        flatten(&[pair.source, pair.target], mode, extents, &mut flattened);
    }
    let devices = i64::from(extents.devices());
    if let Some(bad) = flattened.iter().flatten().find(|id| !(0..devices).contains(*id)) {
        return Err(out_of_range(instruction, *bad, devices));
    }
    Ok(flattened.into_iter().map(|pair| (pair[0] as Logical, pair[1] as Logical)).collect())
}

/// Appends the groups of logical devices that one encoded group stands for.
fn flatten(group: &[i64], mode: Mode, extents: Extents, into: &mut Vec<Vec<i64>>) {
    let (replicas, partitions) = (i64::from(extents.replicas), i64::from(extents.partitions));
    match mode {
        Mode::Flattened => into.push(group.to_vec()),
        Mode::CrossReplica => into.extend(
            (0..partitions).map(|partition| group.iter().map(|replica| replica * partitions + partition).collect()),
        ),
        Mode::CrossPartition => into.extend(
            (0..replicas).map(|replica| group.iter().map(|partition| replica * partitions + partition).collect()),
        ),
        Mode::CrossReplicaAndPartition => into.push(
            group
                .iter()
                .flat_map(|replica| (0..partitions).map(move |partition| replica * partitions + partition))
                .collect(),
        ),
    }
}

/// Every device in range and in one group at most.
fn check(instruction: &HloInstructionProto, groups: &[Vec<i64>], extents: Extents) -> Result<(), Status> {
    let devices = i64::from(extents.devices());
    let mut seen = vec![false; extents.devices() as usize];
    for &id in groups.iter().flatten() {
        if !(0..devices).contains(&id) {
            return Err(out_of_range(instruction, id, devices));
        }
        if std::mem::replace(&mut seen[id as usize], true) {
            return Err(Status::invalid(format!(
                "device {id} is twice in the replica groups of {} {}",
                instruction.opcode, instruction.name
            )));
        }
    }
    Ok(())
}

fn out_of_range(instruction: &HloInstructionProto, id: i64, devices: i64) -> Status {
    Status::invalid(format!(
        "device {id} in the replica groups of {} {} is not among the program's {devices} devices",
        instruction.opcode, instruction.name
    ))
}

/// The groups as they are encoded; empty where the instruction has none, which means everyone.
fn encoded_groups(instruction: &HloInstructionProto) -> Result<Vec<Vec<i64>>, Status> {
    let listed = |groups: &[ReplicaGroup]| groups.iter().map(|group| group.replica_ids.clone()).collect::<Vec<_>>();
    let malformed = |what: &str| {
        Status::invalid(format!("malformed {what} replica groups in {} {}", instruction.opcode, instruction.name))
    };
    if let Some(mesh) = instruction.mesh_axes_replica_group_list.as_ref() {
        return mesh_groups(mesh).ok_or_else(|| malformed("mesh"));
    }
    if let Some(iota) = instruction.iota_collective_device_list.as_ref() {
        return iota_groups(iota).ok_or_else(|| malformed("iota"));
    }
    if let Some(list) = instruction.collective_device_list.as_ref() {
        if let Some(iota) = list.iota_replica_group_list.as_ref() {
            return iota_groups(iota).ok_or_else(|| malformed("iota"));
        }
        return Ok(listed(&list.replica_groups));
    }
    Ok(listed(&instruction.replica_groups))
}

/// `0, 1, 2, …` reshaped, transposed and cut into rows.
fn iota_groups(iota: &IotaReplicaGroupListProto) -> Option<Vec<Vec<i64>>> {
    let permutation: Vec<i64> = iota.iota_transpose_perm.iter().map(|&axis| i64::from(axis)).collect();
    let order = transposed_iota(&iota.iota_reshape_dims, &permutation)?;
    let (groups, size) = (iota.num_replica_groups, iota.num_devices_per_group);
    if size < 1 || groups.checked_mul(size)? != order.len() as i64 {
        return None;
    }
    Some(order.chunks(size as usize).map(<[i64]>::to_vec).collect())
}

/// The rows along the named axes of a mesh, one for each place on the other axes.
fn mesh_groups(list: &MeshAxesReplicaGroupListProto) -> Option<Vec<Vec<i64>>> {
    let mesh = list.mesh.as_ref()?;
    let sizes: Vec<i64> = mesh.axes.iter().map(|axis| axis.size).collect();
    let devices = mesh_devices(list, &sizes)?;

    // Cut every axis at the borders of the sub-axes that are named, into (axis, stride on the axis from its major end,
    // size) pieces, major first. A sub-axis of pre-size p and size s covers the pieces from p to p * s.
    let named: Vec<(usize, i64, i64)> = list
        .axes
        .iter()
        .map(|reference| {
            let axis = usize::try_from(reference.mesh_axis_index).ok()?;
            let whole = *sizes.get(axis)?;
            match reference.sub_axis_info.as_ref() {
                Some(sub) => Some((axis, sub.pre_size, sub.pre_size.checked_mul(sub.size)?)),
                None => Some((axis, 1, whole)),
            }
        })
        .collect::<Option<_>>()?;
    let mut pieces: Vec<(usize, i64, i64)> = Vec::new();
    for (axis, &size) in sizes.iter().enumerate() {
        let mut cuts = vec![1, size];
        cuts.extend(named.iter().filter(|(of, ..)| *of == axis).flat_map(|&(_, low, high)| [low, high]));
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            if pair[0] < 1 || pair[1] % pair[0] != 0 || pair[1] > size {
                return None;
            }
            pieces.push((axis, pair[0], pair[1] / pair[0]));
        }
    }
    let mut inner = Vec::new();
    for &(axis, low, high) in &named {
        inner.extend((0..pieces.len()).filter(|&piece| {
            let (of, at, size) = pieces[piece];
            of == axis && low <= at && at * size <= high
        }));
    }
    let outer = (0..pieces.len()).filter(|piece| !inner.contains(piece));
    let permutation: Vec<i64> = outer.chain(inner.iter().copied()).map(|piece| piece as i64).collect();
    let group_size: i64 = inner.iter().map(|&piece| pieces[piece].2).product();
    let shape: Vec<i64> = pieces.iter().map(|piece| piece.2).collect();
    let order = transposed_iota(&shape, &permutation)?;
    let ids: Vec<i64> = order.iter().map(|&place| devices.get(place as usize).copied()).collect::<Option<_>>()?;
    Some(ids.chunks(group_size.max(1) as usize).map(<[i64]>::to_vec).collect())
}

/// The devices of a mesh in the order of its places.
fn mesh_devices(list: &MeshAxesReplicaGroupListProto, sizes: &[i64]) -> Option<Vec<i64>> {
    let mesh = list.mesh.as_ref()?;
    let count = sizes.iter().try_fold(1_i64, |product, &size| product.checked_mul(size))?;
    if !(1..=MAX_DEVICES).contains(&count) {
        return None;
    }
    match mesh.iota_transform.as_ref() {
        Some(transform) if !transform.reshape_dims.is_empty() => {
            transposed_iota(&transform.reshape_dims, &transform.transpose_perm)
        }
        _ if !mesh.device_ids.is_empty() => Some(mesh.device_ids.clone()),
        _ => Some((0..count).collect()),
    }
    .filter(|devices| devices.len() as i64 == count)
}

/// `0, 1, 2, …` in the shape `dims`, transposed by `permutation`, flat again.
fn transposed_iota(dims: &[i64], permutation: &[i64]) -> Option<Vec<i64>> {
    let count = dims.iter().try_fold(1_i64, |product, &size| product.checked_mul(size).filter(|_| size > 0))?;
    let mut sorted = permutation.to_vec();
    sorted.sort_unstable();
    if count > MAX_DEVICES || sorted != (0..dims.len() as i64).collect::<Vec<_>>() {
        return None;
    }
    let mut strides = vec![1_i64; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    let axes: Vec<(i64, i64)> = permutation.iter().map(|&axis| (dims[axis as usize], strides[axis as usize])).collect();
    let mut order = Vec::with_capacity(count as usize);
    let mut place = vec![0_i64; axes.len()];
    for _ in 0..count {
        order.push(place.iter().zip(&axes).map(|(at, (_, stride))| at * stride).sum());
        for (at, (size, _)) in place.iter_mut().zip(&axes).rev() {
            *at += 1;
            if *at < *size {
                break;
            }
            *at = 0;
        }
    }
    Some(order)
}

#[cfg(test)]
mod tests {
    use protobuf::MessageField;

    use super::*;
    use crate::program::proto::hlo::axis_ref_proto::SubAxis;
    use crate::program::proto::hlo::mesh_proto::{IotaTransform, MeshAxis};
    use crate::program::proto::hlo::{AxisRefProto, CollectiveDeviceListProto, MeshProto, SourceTarget};

    const EIGHT: Extents = Extents { replicas: 1, partitions: 8 };

    fn all_reduce() -> HloInstructionProto {
        HloInstructionProto {
            opcode: "all-reduce".into(),
            name: "x".into(),
            channel_id: 1,
            use_global_device_ids: true,
            ..Default::default()
        }
    }

    fn mesh(axes: &[i64], refs: &[(i64, Option<(i64, i64)>)]) -> HloInstructionProto {
        let axes = axes.iter().map(|&size| MeshAxis { size, ..Default::default() }).collect();
        let refs = refs
            .iter()
            .map(|&(mesh_axis_index, sub)| AxisRefProto {
                mesh_axis_index,
                sub_axis_info: MessageField::from_option(sub.map(|(pre_size, size)| SubAxis {
                    pre_size,
                    size,
                    ..Default::default()
                })),
                ..Default::default()
            })
            .collect();
        HloInstructionProto {
            mesh_axes_replica_group_list: MessageField::some(MeshAxesReplicaGroupListProto {
                mesh: MessageField::some(MeshProto { axes, ..Default::default() }),
                axes: refs,
                ..Default::default()
            }),
            ..all_reduce()
        }
    }

    #[test]
    fn iota_is_reshaped_and_transposed() {
        let instruction = HloInstructionProto {
            iota_collective_device_list: MessageField::some(IotaReplicaGroupListProto {
                num_replica_groups: 4,
                num_devices_per_group: 2,
                iota_reshape_dims: vec![2, 4],
                iota_transpose_perm: vec![1, 0],
                ..Default::default()
            }),
            ..all_reduce()
        };
        let expected = vec![vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]];
        assert_eq!(groups(&instruction, EIGHT).unwrap(), expected);
        // Where older versions put it.
        let mut older = all_reduce();
        older.collective_device_list = MessageField::some(CollectiveDeviceListProto {
            iota_replica_group_list: instruction.iota_collective_device_list.clone(),
            ..Default::default()
        });
        assert_eq!(groups(&older, EIGHT).unwrap(), expected);
    }

    #[test]
    fn mesh_axes_and_sub_axes() {
        assert_eq!(
            groups(&mesh(&[2, 4], &[(0, None)]), EIGHT).unwrap(),
            vec![vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]]
        );
        assert_eq!(groups(&mesh(&[2, 4], &[(1, None), (0, None)]), EIGHT).unwrap(), vec![vec![0, 4, 1, 5, 2, 6, 3, 7]]);
        // The minor half of the axis of four.
        assert_eq!(
            groups(&mesh(&[2, 4], &[(1, Some((2, 2)))]), EIGHT).unwrap(),
            vec![vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]]
        );
        // Its major half.
        assert_eq!(
            groups(&mesh(&[2, 4], &[(1, Some((1, 2)))]), EIGHT).unwrap(),
            vec![vec![0, 2], vec![1, 3], vec![4, 6], vec![5, 7]]
        );
        let mut ordered = mesh(&[2, 4], &[(1, None)]);
        ordered.mesh_axes_replica_group_list.as_mut().unwrap().mesh.as_mut().unwrap().iota_transform =
            MessageField::some(IotaTransform {
                reshape_dims: vec![4, 2],
                transpose_perm: vec![1, 0],
                ..Default::default()
            });
        assert_eq!(groups(&ordered, EIGHT).unwrap(), vec![vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
    }

    #[test]
    fn lists_and_everyone() {
        let list = |ids: &[&[i64]]| {
            ids.iter().map(|ids| ReplicaGroup { replica_ids: ids.to_vec(), ..Default::default() }).collect::<Vec<_>>()
        };
        let mut instruction = all_reduce();
        assert_eq!(groups(&instruction, EIGHT).unwrap(), vec![(0..8).collect::<Vec<_>>()]);
        instruction.replica_groups = list(&[&[3, 1], &[0, 2]]);
        assert_eq!(groups(&instruction, EIGHT).unwrap(), vec![vec![3, 1], vec![0, 2]]);
        instruction.replica_groups = list(&[&[3, 1], &[1]]);
        assert!(groups(&instruction, EIGHT).is_err());
        instruction.replica_groups = list(&[&[8]]);
        assert!(groups(&instruction, EIGHT).is_err());
    }

    #[test]
    fn modes() {
        let extents = Extents { replicas: 2, partitions: 3 };
        let mut instruction = all_reduce();
        instruction.use_global_device_ids = false;
        assert_eq!(groups(&instruction, extents).unwrap(), vec![vec![0, 1, 2, 3, 4, 5]]);
        instruction.channel_id = 0;
        assert_eq!(groups(&instruction, extents).unwrap(), vec![vec![0, 3], vec![1, 4], vec![2, 5]]);
        instruction.channel_id = 1;
        instruction.opcode = "all-to-all".into();
        assert_eq!(groups(&instruction, extents).unwrap(), vec![vec![0, 1, 2], vec![3, 4, 5]]);
        instruction.opcode = "collective-permute".into();
        instruction.source_target_pairs = vec![SourceTarget { source: 0, target: 2, ..Default::default() }];
        assert_eq!(pairs(&instruction, extents).unwrap(), vec![(0, 2), (3, 5)]);
        instruction.channel_id = 0;
        instruction.source_target_pairs = vec![SourceTarget { source: 1, target: 0, ..Default::default() }];
        assert_eq!(pairs(&instruction, extents).unwrap(), vec![(3, 0), (4, 1), (5, 2)]);
    }

    #[test]
    fn damaged_groups_are_errors() {
        let broken = |dims: Vec<i64>, perm: Vec<i32>, groups: i64, size: i64| HloInstructionProto {
            iota_collective_device_list: MessageField::some(IotaReplicaGroupListProto {
                num_replica_groups: groups,
                num_devices_per_group: size,
                iota_reshape_dims: dims,
                iota_transpose_perm: perm,
                ..Default::default()
            }),
            ..all_reduce()
        };
        for instruction in [
            broken(vec![8], vec![1], 1, 8),
            broken(vec![8], vec![0], 3, 8),
            broken(vec![i64::MAX, 4], vec![0, 1], 1, 8),
            broken(vec![-1, -8], vec![0, 1], 1, 8),
            broken(vec![8], vec![0], i64::MAX, 2),
            mesh(&[2, 4], &[(5, None)]),
            mesh(&[2, 4], &[(1, Some((3, 2)))]),
            mesh(&[2, 4], &[(1, Some((0, 0)))]),
        ] {
            assert!(groups(&instruction, EIGHT).is_err(), "{instruction:?}");
        }
    }
}
