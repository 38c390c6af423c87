//! Configuration: read once, from create options and `MAINSTAY_…` variables, into one typed value.
