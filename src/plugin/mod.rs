//! The PJRT entry points, by PJRT object. Thin: check arguments, call below, translate errors.
