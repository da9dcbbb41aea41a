//! Metadata of SAML identity providers (SAML 2.0 Metadata §2.3.2, §2.4.3): reading and checking.

use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};

use crate::platform::outbound::{
    OutboundClient, UrlOwner,
    document::{self, DocumentProblem, parse_url},
    uses::SAML_METADATA,
};

/// Maximum size of the metadata of a provider, in bytes.
const METADATA_BYTES_MAX: usize = 256 * 1024;
/// Longest entity id, in bytes (SAML 2.0 Metadata §2.2.1).
const ENTITY_ID_BYTES_MAX: usize = 1024;
/// Media types of metadata, for the request.
const ACCEPT: &str = "application/samlmetadata+xml, application/xml, text/xml";

/// The metadata of an identity provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SamlMetadata {
    /// The URL that it was read from.
    pub(super) url: Option<String>,
    pub(super) xml: String,
    /// The identity of the provider.
    pub(super) entity_id: String,
}

impl SamlMetadata {
    /// Reads the metadata at a URL.
    pub(super) async fn of_url(
        client: &OutboundClient,
        owner: UrlOwner,
        text: &str,
    ) -> Result<Self, DocumentProblem> {
        let url = parse_url(client.policy(), text)?;
        let body = document::get(client, &SAML_METADATA, owner, (&url, ACCEPT)).await?;
        let xml = String::from_utf8(body.into()).map_err(|_| "the response is not UTF-8")?;
        Ok(Self {
            url: Some(text.to_owned()),
            ..Self::of_xml(xml)?
        })
    }

    /// Checks metadata that a client sent.
    pub(super) fn of_xml(xml: String) -> Result<Self, DocumentProblem> {
        if xml.len() > METADATA_BYTES_MAX {
            return Err("SAML metadata has at most 256 KiB".into());
        }
        let entity_id = entity_id(&xml)?;
        Ok(Self {
            url: None,
            xml,
            entity_id,
        })
    }
}

/// Returns the entity id of an identity provider that users can sign in to: it names the place of
/// its sign-in service. Documents with a DTD are refused, because they can contain entities.
fn entity_id(xml: &str) -> Result<String, DocumentProblem> {
    let mut reader = Reader::from_str(xml);
    let (mut id, mut is_provider, mut has_sign_in) = (None, false, false);
    loop {
        let event = reader.read_event();
        match event.map_err(|_| "is not well-formed XML")? {
            Event::DocType(_) => return Err("SAML metadata must not have a DTD".into()),
            Event::Start(element) | Event::Empty(element) if id.is_none() => {
                id = Some(read_root(&element)?);
            }
            Event::Start(element) | Event::Empty(element) => match element.local_name().as_ref() {
                "IDPSSODescriptor" => is_provider = true,
                "SingleSignOnService" => has_sign_in |= is_provider,
                _ => {}
            },
            Event::Eof => break,
            _ => {}
        }
    }
    let id = id.ok_or("is not XML")?;
    if !has_sign_in {
        return Err(
            "SAML metadata must have an IDPSSODescriptor with a SingleSignOnService".into(),
        );
    }
    Ok(id)
}

/// Returns the entity id of the root element.
fn read_root(element: &BytesStart<'_>) -> Result<String, DocumentProblem> {
    if element.local_name().as_ref() != "EntityDescriptor" {
        return Err("SAML metadata must have the root element EntityDescriptor".into());
    }
    let attribute = element.try_get_attribute("entityID").ok().flatten();
    let attribute = attribute.ok_or("SAML metadata must have an entityID")?;
    let id = attribute
        .normalized_value(XmlVersion::Implicit1_0)
        .map_err(|_| "SAML metadata has an entityID that is not valid")?;
    if id.is_empty() || id.len() > ENTITY_ID_BYTES_MAX {
        return Err("SAML metadata must have an entityID of 1 to 1024 bytes".into());
    }
    Ok(id.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"<?xml version="1.0"?>
        <md:EntityDescriptor xmlns:md="urn:oasis:names:tc:SAML:2.0:metadata" entityID="https://idp.example.com/a&amp;b">
          <md:IDPSSODescriptor protocolSupportEnumeration="urn:oasis:names:tc:SAML:2.0:protocol">
            <md:SingleSignOnService Binding="urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect" Location="https://idp.example.com/sso"/>
          </md:IDPSSODescriptor>
        </md:EntityDescriptor>"#;

    #[test]
    fn entity_id_of_an_identity_provider_is_read() {
        let read = SamlMetadata::of_xml(METADATA.to_owned()).unwrap();
        assert_eq!(read.entity_id, "https://idp.example.com/a&b");
        assert_eq!(read.url, None);
    }

    #[test]
    fn other_documents_are_refused() {
        let doctype = METADATA.replacen(
            "<md:Entity",
            r#"<!DOCTYPE x [<!ENTITY a "b">]><md:Entity"#,
            1,
        );
        for (xml, expected) in [
            (String::new(), "is not XML"),
            ("plain text".into(), "is not XML"),
            ("<a><b></a>".into(), "EntityDescriptor"),
            (doctype, "DTD"),
            (METADATA.replace("entityID", "entityId"), "entityID"),
            (
                METADATA.replace("https://idp.example.com/a&amp;b", ""),
                "1 to 1024",
            ),
            (
                METADATA.replace("https://idp.example.com/a&amp;b", &"a".repeat(1025)),
                "1 to 1024",
            ),
            (METADATA.replace("IDPSSO", "SPSSO"), "IDPSSODescriptor"),
            (
                METADATA.replace("SingleSignOn", "Artifact"),
                "IDPSSODescriptor",
            ),
            (
                METADATA.replace("</md:IDPSSODescriptor>", ""),
                "well-formed",
            ),
            (" ".repeat(METADATA_BYTES_MAX + 1), "256 KiB"),
        ] {
            let refused = SamlMetadata::of_xml(xml).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
