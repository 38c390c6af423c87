//! The client side: slices and their workers, buffers, events, launches.
