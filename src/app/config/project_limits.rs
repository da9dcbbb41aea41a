//! Options for the resources of projects.

use clap::Args;
use gantry_node::{clusters::ResourceLimits, proc_files::MachineMemory};

use super::sections;
use crate::control::projects::sizes::{OfferedSize, SizeTable};

/// Limits of projects. Those of memory and processes are of the smallest compute size.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::PROJECTS.heading)]
pub struct ProjectLimitFlags {
    /// Address space limit of one process of a project's server, in MB.
    #[arg(long, env = "GANTRY_PROJECT_MEMORY", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(256..=1_048_576), value_name = "MB")]
    pub project_memory: u64,

    /// Memory limit of all processes of a project's server together, in MB. Default: the value of
    /// --project-memory.
    #[arg(long, env = "GANTRY_PROJECT_MEMORY_MAX", value_parser = clap::value_parser!(u64).range(64..=1_048_576), value_name = "MB")]
    pub project_memory_max: Option<u64>,

    /// Limit of processes and threads of a project's server. Each connection is one, and a server
    /// has up to twenty more.
    #[arg(long, env = "GANTRY_PROJECT_PROCESSES_MAX", default_value_t = 256, value_parser = clap::value_parser!(u64).range(64..=100_000), value_name = "COUNT")]
    pub project_processes_max: u64,

    /// Disk quota of a project, in MB. From 95 % of it a project is read-only, and it is paused at
    /// 10 % over it. A new project uses about 30.
    #[arg(long, env = "GANTRY_PROJECT_DISK_MAX", default_value_t = 8192, value_parser = clap::value_parser!(u64).range(64..=1_073_741_824), value_name = "MB")]
    pub project_disk_max: u64,

    /// Quota of files of a project, with the same consequences. A table has three or more files, a
    /// new project about a thousand.
    #[arg(long, env = "GANTRY_PROJECT_FILES_MAX", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(2000..=1_000_000_000), value_name = "COUNT")]
    pub project_files_max: u64,

    /// Largest disk quota that the owner of a project can choose, in MB. Default: the value of
    /// --project-disk-max, so that owners cannot raise it.
    #[arg(long, env = "GANTRY_PROJECT_DISK_CHOICE_MAX", value_parser = clap::value_parser!(u64).range(64..=1_073_741_824), value_name = "MB")]
    pub project_disk_choice_max: Option<u64>,

    /// Compute sizes that owners of projects can choose, with an optional price for an hour in
    /// dollars, which clients show: `micro,small=0.02,medium=0.04`. The limits above are those of
    /// `micro`; `small` has twice the memory, `medium` four times, and so on. Default: all with at
    /// most half of the machine's memory.
    #[arg(
        long,
        env = "GANTRY_COMPUTE_SIZES",
        value_delimiter = ',',
        value_name = "SIZE[=PRICE]"
    )]
    pub compute_sizes: Vec<OfferedSize>,
}

impl ProjectLimitFlags {
    /// Resource limits of one project.
    pub fn resource_limits(&self) -> ResourceLimits {
        let process_memory_bytes = self.project_memory << 20;
        let limits = ResourceLimits {
            memory_bytes: self
                .project_memory_max
                .map_or(process_memory_bytes, |megabytes| megabytes << 20),
            process_memory_bytes,
            processes: self.project_processes_max,
            ..ResourceLimits::default()
        };
        limits.with_disk(self.project_disk_max << 20, self.project_files_max)
    }

    /// Compute sizes that projects can have.
    pub fn size_table(&self) -> SizeTable {
        let bytes = MachineMemory::read().map(|memory| memory.total_bytes);
        SizeTable::new(&self.compute_sizes, &self.resource_limits(), bytes)
    }

    /// Largest disk space that the owner of a project can choose, in bytes.
    pub fn project_disk_choice_max(&self) -> u64 {
        let megabytes = self.project_disk_choice_max.unwrap_or(0);
        megabytes.max(self.project_disk_max) << 20
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        limits: ProjectLimitFlags,
    }

    #[test]
    fn project_memory_max_defaults_to_project_memory() {
        let limits = |line: &[&str]| {
            Line::parse_from([&["x"], line].concat())
                .limits
                .resource_limits()
        };
        assert_eq!(limits(&[]), ResourceLimits::default());
        assert_eq!(
            limits(&["--project-memory", "4096"]).memory_bytes,
            4096 << 20
        );
        assert_eq!(
            limits(&["--project-memory-max", "256"]).memory_bytes,
            256 << 20
        );
        assert_eq!(
            limits(&["--project-disk-max", "1000"]).disk_soft_bytes >> 20,
            800
        );
    }
}
