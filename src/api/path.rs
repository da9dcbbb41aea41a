//! Parameters of paths.

/// Defines inputs of handlers, each of which parses one parameter of the path. A malformed value is
/// rejected with the given error; whether the resource exists is decided by the handler.
macro_rules! path_parameters {
    ($(
        $(#[$doc:meta])*
        $vis:vis struct $input:ident($value:ty) from $name:literal, else $error:expr;
    )*) => {$(
        $(#[$doc])*
        $vis struct $input($vis $value);

        impl $crate::platform::http::Input for $input {
            fn describe(_: &mut $crate::platform::http::operation_doc::OperationDoc) {}

            async fn take(
                call: &mut $crate::platform::http::Call<'_>,
            ) -> Result<Self, $crate::platform::error::Error> {
                let value = call.placeholder($name).unwrap_or_default();
                value.parse().map(Self).map_err(|_| $error)
            }
        }
    )*};
}

pub(crate) use path_parameters;
