//! Allow-lists of system calls, enforced with seccomp filters.
//!
//! A call that is not listed fails with `EPERM`. A confined program cannot execute another program:
//! `execve` is referred to the tracing process, which exists only during the `execve` that starts
//! the server (see [`super::trace`]). A rule on paths or descriptors could not express this,
//! because the kernel itself must be able to execute the dynamic loader.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Op,
    SeccompCondition as Condition, SeccompFilter, SeccompRule,
};

/// The system calls that a program may make.
#[derive(Debug)]
pub struct SystemCalls {
    /// Name of the program, for messages.
    pub name: &'static str,
    /// A list with further calls that are permitted.
    pub extends: Option<&'static SystemCalls>,
    /// Calls that are permitted with any arguments.
    pub any: &'static [&'static [c_long]],
    /// Calls that are permitted with certain arguments. If a call is listed more than once, one
    /// matching entry is sufficient.
    pub conditional: &'static [ConditionalCall],
}

/// A system call and the conditions on its arguments.
#[derive(Debug)]
pub struct ConditionalCall {
    /// Number of the call.
    pub call: c_long,
    /// Conditions, all of which must hold.
    pub arguments: &'static [ArgumentRule],
}

/// A condition on one argument of a system call. `at` is the position, counted from 0.
#[derive(Debug)]
pub enum ArgumentRule {
    /// The bits in `mask`, of the lower 32, must equal `are`.
    Bits {
        /// Position of the argument.
        at: u8,
        /// Bits that are compared.
        mask: u64,
        /// Required value of these bits.
        are: u64,
    },
    /// The argument, with all its bits, must not exceed `value`.
    AtMost {
        /// Position of the argument.
        at: u8,
        /// Largest value.
        value: u64,
    },
    /// The argument must be a null pointer.
    Null {
        /// Position of the argument.
        at: u8,
    },
}

impl ArgumentRule {
    /// Requires the lower 32 bits of an argument to equal `value`.
    pub const fn exactly(at: u8, value: u64) -> Self {
        Self::Bits {
            at,
            mask: 0xffff_ffff,
            are: value,
        }
    }

    fn condition(&self) -> Result<Condition, seccompiler::BackendError> {
        match *self {
            Self::Bits { at, mask, are } => {
                Condition::new(at, Width::Dword, Op::MaskedEq(mask), are)
            }
            Self::AtMost { at, value } => Condition::new(at, Width::Qword, Op::Le, value),
            Self::Null { at } => Condition::new(at, Width::Qword, Op::Eq, 0),
        }
    }
}

/// A seccomp filter could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The kernel or the filter compiler rejected the filter.
    #[error("{0}")]
    Refused(#[from] seccompiler::Error),
    /// The list of system calls is invalid.
    #[error("{0}")]
    List(#[from] seccompiler::BackendError),
}

/// Returns whether the kernel supports the filter actions used here.
pub(super) fn available() -> bool {
    let answers =
        std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    ["errno", "trace", "allow"]
        .iter()
        .all(|answer| answers.split_whitespace().any(|known| known == *answer))
}

impl SystemCalls {
    /// This list and those that it extends, the most general one first.
    fn chain(&self) -> Vec<&Self> {
        let mut chain = self.extends.map(Self::chain).unwrap_or_default();
        chain.push(self);
        chain
    }

    /// Returns the calls that are permitted with any arguments.
    pub(crate) fn unconditional_calls(&self) -> impl Iterator<Item = &c_long> {
        let lists = self.chain().into_iter().flat_map(|calls| calls.any);
        lists.copied().flatten()
    }

    /// Returns the calls that are permitted with certain arguments.
    pub(crate) fn conditional_calls(&self) -> impl Iterator<Item = &ConditionalCall> {
        self.chain().into_iter().flat_map(|calls| calls.conditional)
    }

    /// Returns whether a call is permitted with any or certain arguments.
    #[cfg(test)]
    pub(crate) fn permits(&self, call: c_long) -> bool {
        self.unconditional_calls().any(|any| *any == call)
            || self.conditional_calls().any(|rule| rule.call == call)
    }

    /// Returns the filters in the order in which they must be applied. The kernel takes the
    /// strictest action of all filters, and the last filter permits no further filter.
    ///
    /// `executes`: the program may execute others. There is no tracing process then.
    fn filters(&self, executes: bool) -> Result<Vec<BpfProgram>, SeccompError> {
        let any = self.unconditional_calls().map(|call| (*call, Vec::new()));
        let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = any.collect();
        for ConditionalCall { call, arguments } in self.conditional_calls() {
            let conditions: Result<_, _> = arguments.iter().map(ArgumentRule::condition).collect();
            allowed
                .entry(*call)
                .or_default()
                .push(SeccompRule::new(conditions?)?);
        }
        let only = |call: c_long| BTreeMap::from([(call, Vec::new())]);
        let fail_with = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
        let trace = filter(
            only(libc::SYS_execve),
            SeccompAction::Allow,
            SeccompAction::Trace(0),
        )?;
        let absent = filter(
            only(libc::SYS_clone3),
            SeccompAction::Allow,
            fail_with(libc::ENOSYS),
        )?;
        let list = filter(allowed, fail_with(libc::EPERM), SeccompAction::Allow)?;
        let first = if executes { vec![] } else { vec![trace] };
        Ok([first, vec![absent, list]].concat())
    }

    /// Applies the list to this process and its descendants. Requires `no_new_privs`.
    pub(super) fn apply(&self, executes: bool) -> Result<(), SeccompError> {
        self.filters(executes)?
            .iter()
            .try_for_each(|filter| Ok(seccompiler::apply_filter(filter)?))
    }
}

/// Compiles a filter with one action for the listed calls and another for all other calls. Calls of
/// another architecture end the process; x32 calls have numbers that are on no list.
fn filter(
    calls: BTreeMap<i64, Vec<SeccompRule>>,
    other: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, SeccompError> {
    let architecture = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(calls, other, listed, architecture)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_call_list_compiles_to_three_filters() {
        static CALLS: SystemCalls = SystemCalls {
            name: "test",
            extends: None,
            any: &[&[libc::SYS_read]],
            conditional: &[ConditionalCall {
                call: libc::SYS_socket,
                arguments: &[ArgumentRule::exactly(0, libc::AF_UNIX as u64)],
            }],
        };
        assert_eq!(CALLS.filters(false).unwrap().len(), 3);
        assert_eq!(CALLS.filters(true).unwrap().len(), 2);
    }
}
