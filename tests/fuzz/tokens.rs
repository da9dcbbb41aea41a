//! Values of the `Authorization` header.

use gantry::platform::access::credential::parse_authorization;

use super::Target;

pub(super) const TARGET: Target = Target {
    name: "tokens",
    check,
    cases: 5_000,
    tokens: &[
        "Bearer ",
        "bearer ",
        "Basic ",
        "sbp_",
        "sbp_oauth_",
        "sbp_v0_",
        "sbp_fc",
        " ",
        ".",
        "eyJ",
        "\n",
        "\0",
        "0123456789abcdef0123456789abcdef01234567",
    ],
};

/// Checks that a header is accepted exactly if it has the documented form: scheme, one space,
/// prefix, 40 lowercase hexadecimal digits.
fn check(header: &[u8]) {
    let accepted = parse_authorization(Some(header)).is_ok();
    assert_eq!(accepted, has_documented_form(header));
}

fn has_documented_form(header: &[u8]) -> bool {
    let Some(digits) = header.len().checked_sub(40) else {
        return false;
    };
    let (prefix, digits) = header.split_at(digits);
    let documented: [&[u8]; 3] = [b"bearer sbp_", b"bearer sbp_oauth_", b"bearer sbp_v0_"];
    let is_documented = documented.iter().any(|documented| {
        // Only the scheme is in any case (RFC 9110, 11.1).
        prefix.eq_ignore_ascii_case(documented) && prefix[7..] == documented[7..]
    });
    is_documented && digits.iter().all(|byte| b"0123456789abcdef".contains(byte))
}
