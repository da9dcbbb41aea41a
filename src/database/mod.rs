//! Operations inside a project's PostgreSQL.
