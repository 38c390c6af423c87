//! Layouts: the C structure of one, and the plugin's text of one, both ways.

use std::fmt::Write as _;

use smallvec::SmallVec;

use super::call::{bytes, call, destroy, list};
use super::{Client, Executable, Plugin, Topology};
use crate::abi::{Status, new_args, sys};
use crate::wire::message::Layout;

/// `Tile::kCombineDimension` of XLA.
const COMBINE_DIMENSION: i64 = i64::MIN;

/// The layout of dense data in which the last dimension varies fastest.
pub fn major_to_minor(rank: usize) -> Layout {
    let minor_to_major = (0..rank as i64).rev().collect();
    Layout::Tiled { minor_to_major, tile_dims: SmallVec::new(), tile_dim_sizes: SmallVec::new() }
}

/// The C form of `layout`, which it points into.
pub(super) fn to_c(layout: &Layout) -> sys::PJRT_Buffer_MemoryLayout {
    use sys::PJRT_Buffer_MemoryLayout__bindgen_ty_1 as Union;
    let (type_, union) = match layout {
        Layout::Tiled { minor_to_major, tile_dims, tile_dim_sizes } => {
            let mut tiled = new_args::<sys::PJRT_Buffer_MemoryLayout_Tiled>();
            tiled.minor_to_major = minor_to_major.as_ptr();
            tiled.minor_to_major_size = minor_to_major.len();
            tiled.tile_dims = tile_dims.as_ptr();
            tiled.tile_dim_sizes = tile_dim_sizes.as_ptr().cast();
            tiled.num_tiles = tile_dim_sizes.len();
            (sys::PJRT_Buffer_MemoryLayout_Type_Tiled, Union { tiled })
        }
        Layout::Strides(byte_strides) => {
            let mut strides = new_args::<sys::PJRT_Buffer_MemoryLayout_Strides>();
            strides.byte_strides = byte_strides.as_ptr();
            strides.num_byte_strides = byte_strides.len();
            (sys::PJRT_Buffer_MemoryLayout_Type_Strides, Union { strides })
        }
    };
    let mut c_layout = new_args::<sys::PJRT_Buffer_MemoryLayout>();
    c_layout.__bindgen_anon_1 = union;
    c_layout.type_ = type_;
    c_layout
}

/// A layout as a plugin writes it: `{1,0}`, `{1,0:T(8,128)(2,1)S(5)}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutText(pub String);

impl LayoutText {
    /// What the text of a layout without tiles is; `element_bits` counts for types smaller than a byte, else 0.
    pub fn untiled(minor_to_major: &[i64], element_bits: i64, memory_space: i64) -> Self {
        let mut text = String::from("{");
        for (at, dimension) in minor_to_major.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            let _ = write!(text, "{separator}{dimension}");
        }
        let mut separator = ":";
        for (letter, number) in [("E", element_bits), ("S", memory_space)] {
            if number != 0 {
                let _ = write!(text, "{separator}{letter}({number})");
                separator = "";
            }
        }
        text.push('}');
        Self(text)
    }

    /// The C interface's structure of the layout: order and tiles; what else the text says has no place there.
    ///
    /// # Errors
    /// If this is not the text of a layout.
    pub fn parse(&self) -> Result<Layout, Status> {
        parse(&self.0).ok_or_else(|| {
            Status::failed_precondition(format!("the plugin gives {:?} for a layout, which can't be read", self.0))
        })
    }
}

fn parse(text: &str) -> Option<Layout> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let (order, properties) = inner.split_once(':').unwrap_or((inner, ""));
    let mut tile_dims = SmallVec::new();
    let mut tile_dim_sizes = SmallVec::new();
    for tile in tiles(properties)? {
        let dimensions = numbers(tile)?;
        tile_dim_sizes.push(dimensions.len() as u64);
        tile_dims.extend(dimensions);
    }
    Some(Layout::Tiled { minor_to_major: numbers(order)?.into(), tile_dims, tile_dim_sizes })
}

/// The contents of the parentheses that follow a `T`: `8,128` and `2,1` in `T(8,128)(2,1)S(5)`.
fn tiles(properties: &str) -> Option<Vec<&str>> {
    let Some(mut rest) = properties.strip_prefix('T') else { return Some(Vec::new()) };
    let mut tiles = Vec::new();
    while let Some(opened) = rest.strip_prefix('(') {
        let (tile, after) = opened.split_once(')')?;
        tiles.push(tile);
        rest = after;
    }
    Some(tiles)
}

/// `*` stands for a dimension that a tile takes together with the next: XLA has a number for it.
fn numbers(list: &str) -> Option<Vec<i64>> {
    let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| if item == "*" { Some(COMBINE_DIMENSION) } else { item.parse().ok() }).collect()
}

impl Client {
    /// The layout that the client gives to buffers of this type and shape (Layouts extension).
    pub fn default_layout(&self, element_type: u32, dims: &[i64]) -> Result<LayoutText, Status> {
        let args = call!(
            self.plugin(),
            layouts.PJRT_Layouts_PJRT_Client_GetDefaultLayout,
            PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args {
                client: self.raw(),
                type_: element_type,
                dims: dims.as_ptr(),
                num_dims: dims.len(),
            }
        )?;
        take_layout(self.plugin(), args.layout)
    }
}

impl Topology<'_> {
    /// The layout that devices of this topology give to this type and shape (Layouts extension).
    pub fn default_layout(&self, element_type: u32, dims: &[i64]) -> Result<LayoutText, Status> {
        let args = call!(
            self.plugin(),
            layouts.PJRT_Layouts_PJRT_Topology_GetDefaultLayout,
            PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args {
                topology_description: self.raw(),
                type_: element_type,
                dims: dims.as_ptr(),
                num_dims: dims.len(),
            }
        )?;
        take_layout(self.plugin(), args.layout)
    }
}

impl Executable {
    /// The layout of each output (Layouts extension).
    pub fn output_layouts(&self) -> Result<Vec<LayoutText>, Status> {
        let args = call!(
            self.plugin(),
            layouts.PJRT_Layouts_PJRT_Executable_GetOutputLayouts,
            PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args { executable: self.raw() }
        )?;
        // SAFETY: the plugin's array, alive as long as the executable.
        let layouts = unsafe { list(args.layouts, args.num_outputs) };
        layouts.iter().map(|layout| serialize(self.plugin(), *layout)).collect()
    }

    /// The layout of each parameter (Layouts extension, since 0.8x).
    pub fn parameter_layouts(&self) -> Result<Vec<LayoutText>, Status> {
        let args = call!(
            self.plugin(),
            layouts.PJRT_Layouts_PJRT_Executable_GetParameterLayouts,
            PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args { executable: self.raw() }
        )?;
        // SAFETY: the plugin's array, alive as long as the executable.
        let layouts = unsafe { list(args.layouts, args.num_parameters) };
        layouts.iter().map(|layout| serialize(self.plugin(), *layout)).collect()
    }
}

/// Serializes a layout that is ours, and destroys it.
fn take_layout(plugin: &Plugin, layout: *mut sys::PJRT_Layouts_MemoryLayout) -> Result<LayoutText, Status> {
    let text = serialize(plugin, layout);
    destroy!(
        plugin,
        layouts.PJRT_Layouts_MemoryLayout_Destroy,
        PJRT_Layouts_MemoryLayout_Destroy_Args { layout: layout }
    );
    text
}

fn serialize(plugin: &Plugin, layout: *mut sys::PJRT_Layouts_MemoryLayout) -> Result<LayoutText, Status> {
    let args = call!(
        plugin,
        layouts.PJRT_Layouts_MemoryLayout_Serialize,
        PJRT_Layouts_MemoryLayout_Serialize_Args { layout: layout }
    )?;
    // SAFETY: the bytes live until the deleter, which the plugin gave for them, is called.
    let bytes = unsafe { bytes(args.serialized_bytes, args.serialized_bytes_size) };
    if let Some(delete) = args.serialized_layout_deleter {
        // SAFETY: once, with what the plugin gave along with it.
        unsafe { delete(args.serialized_layout) };
    }
    Ok(LayoutText(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiled(minor_to_major: &[i64], tile_dims: &[i64], tile_dim_sizes: &[u64]) -> Layout {
        Layout::Tiled {
            minor_to_major: minor_to_major.into(),
            tile_dims: tile_dims.into(),
            tile_dim_sizes: tile_dim_sizes.into(),
        }
    }

    #[test]
    fn texts_are_read() {
        for (text, layout) in [
            ("{}", tiled(&[], &[], &[])),
            ("{1,0}", tiled(&[1, 0], &[], &[])),
            ("{2,1,0:E(4)}", tiled(&[2, 1, 0], &[], &[])),
            ("{1,0:T(8,128)}", tiled(&[1, 0], &[8, 128], &[2])),
            ("{1,0:T(8,128)(2,1)S(5)}", tiled(&[1, 0], &[8, 128, 2, 1], &[2, 2])),
            ("{0:T(*,4)}", tiled(&[0], &[COMBINE_DIMENSION, 4], &[2])),
        ] {
            assert_eq!(LayoutText(text.into()).parse(), Ok(layout), "{text}");
        }
        for text in ["", "{", "1,0", "{a}", "{0:T(8}"] {
            assert!(LayoutText(text.into()).parse().is_err(), "{text}");
        }
    }

    #[test]
    fn untiled_texts_are_written() {
        assert_eq!(LayoutText::untiled(&[], 0, 0).0, "{}");
        assert_eq!(LayoutText::untiled(&[1, 0], 0, 0).0, "{1,0}");
        assert_eq!(LayoutText::untiled(&[0], 4, 5).0, "{0:E(4)S(5)}");
    }
}
