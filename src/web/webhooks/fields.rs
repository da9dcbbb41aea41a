//! The forms of an endpoint.

use serde_json::{Map, Value, json};

use super::place::{EndpointEntry, WebhookHome};
use crate::platform::events;

/// The fields of an endpoint.
pub(super) struct EndpointForm {
    pub(super) url: String,
    pub(super) description: String,
    pub(super) types: Vec<String>,
    /// `name: value`, one per line.
    pub(super) headers: String,
    pub(super) enabled: bool,
    secret: String,
}

/// An event type to choose.
pub(super) struct TypeOption {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) checked: bool,
}

impl Default for EndpointForm {
    /// Returns the form of a new endpoint.
    fn default() -> Self {
        Self {
            url: String::new(),
            description: String::new(),
            types: vec!["*".to_owned()],
            headers: String::new(),
            enabled: true,
            secret: String::new(),
        }
    }
}

impl EndpointForm {
    pub(super) fn parse(fields: Vec<(String, String)>) -> Self {
        let mut form = Self {
            types: Vec::new(),
            enabled: false,
            ..Self::default()
        };
        for (name, value) in fields {
            match name.as_str() {
                "url" => value.trim().clone_into(&mut form.url),
                "description" => value.trim().clone_into(&mut form.description),
                "type" => form.types.push(value),
                "headers" => form.headers = value,
                "enabled" => form.enabled = true,
                "secret" => value.trim().clone_into(&mut form.secret),
                _ => {}
            }
        }
        form
    }

    /// Returns the form of an existing endpoint.
    pub(super) fn of(endpoint: &EndpointEntry) -> Self {
        let attributes = &endpoint.attributes;
        let types = attributes.event_types.iter();
        let headers = attributes.custom_headers.iter();
        let headers: Vec<_> = headers
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        Self {
            url: attributes.url.clone(),
            description: attributes.description.clone().unwrap_or_default(),
            types: types.map(|it| it.r#type.clone()).collect(),
            headers: headers.join("\n"),
            enabled: attributes.enabled,
            secret: String::new(),
        }
    }

    /// Returns whether all events are chosen.
    pub(super) fn is_for_all(&self) -> bool {
        self.types.iter().any(|it| it == "*")
    }

    /// Returns the event types that endpoints of a place may receive.
    pub(super) fn options(&self, place: &WebhookHome) -> Vec<TypeOption> {
        events::catalog()
            .iter()
            .filter(|it| it.is_emitted && place.scope.is_none_or(|scope| scope == it.scope))
            .map(|it| TypeOption {
                name: it.name,
                summary: it.summary,
                checked: self.types.iter().any(|chosen| chosen == it.name),
            })
            .collect()
    }

    /// Returns the body of the operation that creates or changes an endpoint. A line of header
    /// fields without a colon becomes a name that the operation rejects.
    pub(super) fn body(&self) -> Value {
        let types: Vec<_> = self
            .types
            .iter()
            .map(|name| json!({"type": name}))
            .collect();
        let mut headers = Map::new();
        for line in self.headers.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            headers.insert(name.trim().to_owned(), value.trim().into());
        }
        let mut attributes = json!({
            "url": self.url,
            "description": Some(&self.description).filter(|text| !text.is_empty()),
            "event_types": types,
            "custom_headers": headers,
            "enabled": self.enabled,
        });
        if !self.secret.is_empty() {
            attributes["signing_secret"] = self.secret.as_str().into();
        }
        body(&attributes)
    }
}

/// Returns the body of an operation on an endpoint.
pub(super) fn body(attributes: &Value) -> Value {
    json!({"data": {"type": "endpoint", "attributes": attributes}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_becomes_the_body_of_the_operation() {
        let fields = [
            ("url", " https://a.example/ "),
            ("type", "v1.project.paused"),
            ("headers", "X-A: b:c\r\n\r\nbroken\n"),
            ("secret", "whsec_MDEyMzQ1Njc="),
            ("enabled", "yes"),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let form = EndpointForm::parse(fields.into());
        let expected = json!({"data": {"type": "endpoint", "attributes": {
            "url": "https://a.example/", "description": null,
            "event_types": [{"type": "v1.project.paused"}],
            "custom_headers": {"X-A": "b:c", "broken": ""}, "enabled": true,
            "signing_secret": "whsec_MDEyMzQ1Njc=",
        }}});
        assert_eq!(form.body(), expected);
        assert!(!form.is_for_all() && EndpointForm::default().is_for_all());
    }
}
