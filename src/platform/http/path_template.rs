//! Templates of paths: segments, of which some are `{placeholders}`.

/// Returns the names of the `{placeholders}` of a path.
pub fn placeholders(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/')
        .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
}

/// Returns the segment of `path` at the placeholder `{name}` of its template. All paths of an
/// operation have the placeholder at the same index, which a test checks.
pub(super) fn placeholder<'a>(template: &str, path: &'a str, name: &str) -> Option<&'a str> {
    segment(path, place(template, name)?)
}

/// Returns the index of the path segment `{name}`.
pub(super) fn place(template: &str, name: &str) -> Option<usize> {
    template.split('/').position(|segment: &str| {
        segment
            .strip_prefix('{')
            .and_then(|inner| inner.strip_suffix('}'))
            == Some(name)
    })
}

/// Returns the segment at an index. Searches bytes: `split` is slower on short texts.
pub(super) fn segment(path: &str, place: usize) -> Option<&str> {
    let mut slashes = path
        .bytes()
        .enumerate()
        .filter(|(_, byte)| *byte == b'/')
        .map(|(at, _)| at);
    let start = if place == 0 {
        0
    } else {
        slashes.nth(place - 1)? + 1
    };
    path.get(start..slashes.next().unwrap_or(path.len()))
}
