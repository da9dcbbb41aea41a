//! Parts of URLs. A text that is no URL has empty parts.

use datafusion::{
    arrow::array::{Array as _, ArrayRef},
    common::Result,
    logical_expr::ColumnarValue,
};

use super::{build_texts, literal, texts};

/// `url_part(url, part[, name])`: a part of a URL.
pub(super) fn url_part(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let urls = texts(args, 0, rows)?;
    let part = literal(args, 1)?;
    let names = match args.get(2) {
        Some(_) => Some(texts(args, 2, rows)?),
        None => None,
    };
    build_texts(rows, |row| {
        if urls.is_null(row) {
            return Ok(None);
        }
        let url = urls.value(row);
        let found = match part {
            "protocol" => scheme(url).unwrap_or_default().to_owned(),
            "domain" => domain(url).to_owned(),
            "domain_without_www" => {
                let domain = domain(url);
                domain.strip_prefix("www.").unwrap_or(domain).to_owned()
            }
            "path" => path(url).to_owned(),
            "path_full" => path_full(url).to_owned(),
            "query" => query(url).unwrap_or_default().to_owned(),
            "without_query" => without_query(url),
            "without_query_and_fragment" => {
                let end = url.find('?').or(url.find('#')).unwrap_or(url.len());
                url[..end].to_owned()
            }
            "parameter" => {
                let name = names.as_ref().filter(|names| !names.is_null(row));
                let name = name.map_or("", |names| names.value(row));
                parameter(url, name).unwrap_or_default().to_owned()
            }
            _ => decoded(url),
        };
        Ok(Some(found))
    })
}

fn scheme(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once(':')?;
    let valid = scheme.starts_with(|it: char| it.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|it| it.is_ascii_alphanumeric() || "+-.".contains(it));
    (valid && rest.starts_with("//")).then_some(scheme)
}

/// Returns the host of a URL with or without a scheme. A host has a dot that is not its last
/// character.
fn domain(url: &str) -> &str {
    let rest = match scheme(url) {
        Some(scheme) => &url[scheme.len() + "://".len()..],
        None => url.strip_prefix("//").unwrap_or(url),
    };
    // A colon ends the host also before the user of a URL with a password.
    let authority = &rest[..rest.find([':', '/', '?', '#']).unwrap_or(rest.len())];
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let valid = host
        .chars()
        .all(|it| it.is_alphanumeric() || "-._~".contains(it));
    let dot = host.rfind('.').is_some_and(|dot| dot + 1 < host.len());
    if valid && dot { host } else { "" }
}

/// Returns the path with the query and the fragment.
fn path_full(url: &str) -> &str {
    let rest = match url.find("//") {
        Some(at) if at == 0 || url[..at].ends_with(':') => &url[at + "//".len()..],
        _ => url,
    };
    rest.find('/').map_or("", |at| &rest[at..])
}

fn path(url: &str) -> &str {
    let full = path_full(url);
    &full[..full.find(['?', '#']).unwrap_or(full.len())]
}

fn query(url: &str) -> Option<&str> {
    let (_, query) = url.split_once('?')?;
    Some(&query[..query.find('#').unwrap_or(query.len())])
}

fn without_query(url: &str) -> String {
    let Some((before, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let fragment = query.find('#').map_or("", |at| &query[at..]);
    format!("{before}{fragment}")
}

fn parameter<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = url.split_once('?')?;
    for pair in query.split(['&', '#', ';']) {
        if let Some((key, value)) = pair.split_once('=')
            && key == name
        {
            return Some(value);
        }
    }
    None
}

/// Decodes percent-encoded bytes. Other text, also an incomplete code, stays.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) if byte == b'%' => {
                bytes.push(code);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_urls() {
        let url = "https://u@www.a.b:80/c/d?x=1&y=2#f";
        assert_eq!(domain(url), "www.a.b");
        assert_eq!(path(url), "/c/d");
        assert_eq!(path_full(url), "/c/d?x=1&y=2#f");
        assert_eq!(query(url), Some("x=1&y=2"));
        assert_eq!(parameter(url, "y"), Some("2"));
        assert_eq!(without_query(url), "https://u@www.a.b:80/c/d#f");
        assert_eq!(
            [domain("a.b/c"), domain("/c"), domain("foo")],
            ["a.b", "", ""]
        );
        assert_eq!(domain("https://u:p@a.b/c"), "");
        assert_eq!([path("a.b/c"), path("/c?x"), path("abc")], ["/c", "/c", ""]);
        assert_eq!(parameter("/c?ax=1&x", "x"), None);
        assert_eq!(decoded("a%20b%2"), "a b%2");
    }
}
