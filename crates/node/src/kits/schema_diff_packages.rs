//! The packages of the kit that compares schemas: an engine and its dependencies.

/// An npm package that this version of Gantry installs.
pub(super) struct PinnedPackage {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// SHA-512 of the archive, in Base64.
    pub(super) archive: &'static str,
}

const fn package(
    name: &'static str,
    version: &'static str,
    archive: &'static str,
) -> PinnedPackage {
    PinnedPackage {
        name,
        version,
        archive,
    }
}

/// Version of the kit: that of its engine.
pub const VERSION: &str = "1.0.0-alpha.34";
/// SHA-256 of all installed files with their paths, in hex.
pub(super) const FILES: &str = "c38d57133dd54f1060227ef2d97f8ccff2e136c8447e52fac502d4a4d71f0448";

/// The packages, the engine first. Optional dependencies are left out.
pub(super) const PACKAGES: &[PinnedPackage] = &[
    package(
        "@supabase/pg-delta",
        VERSION,
        "xjNBdFl4/DXIxZufUK6t52wTywMS4sl1rcXvxTgh3mv1Q50tDeMPkjp8QM5YRjYo/mrdxZJ94kmbf6XAQn0jRg==",
    ),
    package(
        "debug",
        "4.4.3",
        "RGwwWnwQvkVfavKVt22FGLw+xYSdzARwm0ru6DhTVA3umU5hZc28V3kO4stgYryrTlLpuvgI9GiijltAjNbcqA==",
    ),
    package(
        "ms",
        "2.1.3",
        "6FlzubTLZG3J2a/NVCAleEhjzq5oxgHyaCU9yYXvcLsvoVaHJq/s5xXI6/XXP6tz7R9xAOtHnSO/tXtF3WRTlA==",
    ),
    package(
        "pg",
        "8.23.1",
        "aL96AHANtWjPLDOLqnhx+ngp9+UK7ETEU8VJrDCGvsSSi/mGLcWYsS6Herg7lmaBJe4uwrfqsa7gTEFaSizDoQ==",
    ),
    package(
        "pg-connection-string",
        "2.14.1",
        "qR3kGNPBLpCNtz0evbKA0Y/MRFXwSSdT+pTJvYp/bXTcReZbvX1kzF0IyTc1QnxqF7AZbOeBhNL8R5mYQZV/MA==",
    ),
    package(
        "pg-int8",
        "1.0.1",
        "WCtabS6t3c8SkpDBUlb1kjOs7l66xsGdKpIPZsg4wR+B3+u9UAum2odSsF9tnvxg80h4ZxLWMy4pRjOsFIqQpw==",
    ),
    package(
        "pg-pool",
        "3.14.0",
        "gKtPkFdQPU3DksooVLi9LsjZxrsBUZIpa+7aVx+LV5pNh0KzP4Zleud2po+ConrxbuXGBJ6Hfer6hdgpIBpBaw==",
    ),
    package(
        "pg-protocol",
        "1.16.1",
        "p9VOFMiHB/ZbJATetbg+99PxssTVSQRnyuPSQ67mN1+1KBOjZaZ83ZQzltnxPhJwSsC3nwVjJ10DVJlerbFzLg==",
    ),
    package(
        "pg-types",
        "2.2.0",
        "qTAAlrEsl8s4OiEQY69wDvcMIdQN6wdz5ojQiOy6YRMuynxenON0O5oCpJI6lshc6scgAY8qvJ2On/p+CXY0GA==",
    ),
    package(
        "pgpass",
        "1.0.5",
        "FdW9r/jQZhSeohs1Z3sI1yxFQNFvMcnmfuj4WBMUTxOrAyLMaTcE1aAMBiTlbMNaXvBCQuVi0R7hd8udDSP7ug==",
    ),
    package(
        "postgres-array",
        "2.0.0",
        "VpZrUqU5A69eQyW2c5CA1jtLecCsN2U/bD6VilrFDWq5+5UIEVO7nazS3TEcHf1zuPYO/sqGvUvW62g86RXZuA==",
    ),
    package(
        "postgres-bytea",
        "1.0.1",
        "5+5HqXnsZPE65IJZSMkZtURARZelel2oXUEO8rH83VS/hxH5vv1uHquPg5wZs8yMAfdv971IU+kcPUczi7NVBQ==",
    ),
    package(
        "postgres-date",
        "1.0.7",
        "suDmjLVQg78nMK2UZ454hAG+OAW+HQPZ6n++TNDUX+L0+uUlLywnoxJKDou51Zm+zTCjrCl0Nq6J9C5hP9vK/Q==",
    ),
    package(
        "postgres-interval",
        "1.2.0",
        "9ZhXKM/rw350N1ovuWHbGxnGh/SNJ4cnxHiM0rxE4VN41wsg8P8zWn9hv/buK00RP4WvlOyr/RBDiptyxVbkZQ==",
    ),
    package(
        "split2",
        "4.2.0",
        "UcjcJOWknrNkF6PLX83qcHM6KHgVKNkV62Y8a5uYDVv9ydGQVwAHMKqHdJje1VTWpljG0WYpCDhrCdAOYH4TWg==",
    ),
    package(
        "xtend",
        "4.0.2",
        "LKYU1iAXJXUgAXn9URjiu+MWhyUXHsvfp7mcuYm9dSUKK0/CjtrUwFAxD82/mCWbtLsGjFIad0wIsod4zrTAEQ==",
    ),
];
