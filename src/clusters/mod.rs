//! The real PostgreSQL cluster behind a project.
