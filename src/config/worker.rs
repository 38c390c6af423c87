//! Where this library lies, and beside it the executable that hosts workers, `mainstay`.

use std::path::{Path, PathBuf};

const NAME: &str = "mainstay";

/// The `mainstay` executable beside this library, or where builds and packages put it from there.
///
/// # Errors
/// Says where it was looked for and what to do.
pub fn beside_the_library() -> Result<PathBuf, String> {
    let library = this_library().ok_or("where this library lies can't be found out; set MAINSTAY_WORKER")?;
    let folder = library.parent().unwrap_or(Path::new("/"));
    // In a folder of its own, in Cargo's `deps`, in `lib`.
    let places = [folder.join(NAME), folder.join("..").join(NAME), folder.join("../bin").join(NAME)];
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        format!(
            "the executable {NAME}, which hosts workers, is not beside the library (looked for {}); put it there or \
             set MAINSTAY_WORKER",
            looked.join(", ")
        )
    })
}

/// The file that this function was loaded from: the library, or an executable that it is linked into.
pub fn this_library() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    file_at(&maps, this_library as fn() -> Option<PathBuf> as usize)
}

/// The file mapped at an address, from the text of `/proc/self/maps`.
fn file_at(maps: &str, address: usize) -> Option<PathBuf> {
    maps.lines().find_map(|line| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let path = fields.nth(4)?.trim_start();
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        (range.contains(&address) && path.starts_with('/')).then(|| PathBuf::from(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_code_is_in_the_test_executable() {
        assert_eq!(this_library().unwrap(), std::env::current_exe().unwrap());
    }

    #[test]
    fn maps_are_read_with_spaces_in_paths() {
        let maps = "1000-2000 r--p 00000000 fe:01 12                         /a\n\
                    2000-3000 r-xp 00000000 fe:01 34                         /with space/b.so (deleted)\n\
                    3000-4000 rw-p 00000000 00:00 0 \n";
        assert_eq!(file_at(maps, 0x1fff), Some(PathBuf::from("/a")));
        assert_eq!(file_at(maps, 0x2000), Some(PathBuf::from("/with space/b.so")));
        assert_eq!(file_at(maps, 0x3000), None);
    }
}
