//! XML responses of the store: pages of a listing, and errors.

use serde::Deserialize;

/// One page of a listing.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Page {
    pub(super) is_truncated: bool,
    pub(super) next_continuation_token: Option<String>,
    pub(super) contents: Vec<Object>,
    pub(super) common_prefixes: Vec<Prefix>,
}

/// One object of a listing.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Object {
    pub(super) key: String,
    pub(super) size: u64,
    pub(super) last_modified: String,
    #[serde(rename = "ETag")]
    pub(super) e_tag: Option<String>,
}

/// A common prefix of keys, up to the next slash.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Prefix {
    pub(super) prefix: String,
}

/// An error response.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Fault {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) region: Option<String>,
}

/// Parses a page. The root element is checked, so that another document is not taken for an empty
/// page.
pub(super) fn page(body: &[u8]) -> Result<Page, Box<dyn std::error::Error + Send + Sync>> {
    #[derive(Deserialize)]
    enum Document {
        ListBucketResult(Page),
    }
    let text = std::str::from_utf8(body)?;
    let Document::ListBucketResult(page) = quick_xml::de::from_str(text)?;
    Ok(page)
}

/// Parses an error response. Returns `None` for any other document.
pub(super) fn fault(body: &[u8]) -> Fault {
    #[derive(Deserialize)]
    enum Document {
        Error(Fault),
    }
    let read = std::str::from_utf8(body)
        .ok()
        .and_then(|text| quick_xml::de::from_str(text).ok());
    read.map(|Document::Error(fault)| fault).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_page_is_parsed() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix/><KeyCount>2</KeyCount>
            <MaxKeys>2</MaxKeys><IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b==</NextContinuationToken>
            <Contents><Key>x/a&lt;b</Key><LastModified>2026-11-21T09:15:03.000Z</LastModified><ETag>&quot;1&quot;</ETag><Size>7</Size>
            <StorageClass>STANDARD</StorageClass></Contents><CommonPrefixes><Prefix>x/y/</Prefix></CommonPrefixes>
            <Contents><Key>x/b</Key><Size>0</Size><Owner><ID>1</ID></Owner></Contents></ListBucketResult>"#;
        let page = page(text.as_bytes()).unwrap();
        assert_eq!(
            (page.is_truncated, page.next_continuation_token.as_deref()),
            (true, Some("a&b=="))
        );
        let first = Object {
            key: "x/a<b".into(),
            size: 7,
            last_modified: "2026-11-21T09:15:03.000Z".into(),
            e_tag: Some("\"1\"".into()),
        };
        assert_eq!(
            page.contents,
            [
                first,
                Object {
                    key: "x/b".into(),
                    ..Object::default()
                }
            ]
        );
        assert_eq!(
            page.common_prefixes,
            [Prefix {
                prefix: "x/y/".into()
            }]
        );
    }

    #[test]
    fn other_document_is_not_an_empty_page() {
        for text in [
            "",
            "ok",
            "<html></html>",
            "<Error><Code>A</Code></Error>",
            "<ListBucketResult><Contents>",
            "\u{1}",
            "{}",
        ] {
            assert!(page(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(page(b"\xff<ListBucketResult/>").is_err());
        assert_eq!(page(b"<ListBucketResult/>").unwrap(), Page::default());
    }

    #[test]
    fn error_document_is_parsed() {
        let text = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>m</Message><Region>eu-west-1</Region><HostId>x</HostId></Error>";
        let expected = Fault {
            code: "AuthorizationHeaderMalformed".into(),
            message: "m".into(),
            region: Some("eu-west-1".into()),
        };
        assert_eq!(fault(text.as_bytes()), expected);
        assert_eq!(
            (fault(b"Bad Gateway"), fault(b"\xff")),
            (Fault::default(), Fault::default())
        );
    }
}
