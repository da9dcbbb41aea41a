//! Results of checks.

use serde::Serialize;

use super::redaction::Redactor;

/// The subject of a check.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckSubject {
    name: &'static str,
    /// The source that is read.
    reads: &'static str,
}

/// Outcome of a check, the most urgent one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckOutcome {
    /// Something does not work, or data is at risk.
    Problem,
    /// It works, and is worse than it could be.
    Warning,
    Ok,
}

/// Result of a check.
#[derive(Debug, Serialize)]
pub(super) struct CheckResult {
    pub(super) name: &'static str,
    reads: &'static str,
    pub(super) outcome: CheckOutcome,
    /// One sentence.
    pub(super) finding: String,
    /// One sentence. `None` if nothing has to be done.
    pub(super) remedy: Option<String>,
}

impl CheckSubject {
    pub(super) const fn new(name: &'static str, reads: &'static str) -> Self {
        Self { name, reads }
    }

    pub(super) fn ok(self, finding: impl Into<String>) -> CheckResult {
        self.result(CheckOutcome::Ok, finding, None)
    }

    pub(super) fn warning(
        self,
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> CheckResult {
        self.result(CheckOutcome::Warning, finding, Some(remedy.into()))
    }

    pub(super) fn problem(
        self,
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> CheckResult {
        self.result(CheckOutcome::Problem, finding, Some(remedy.into()))
    }

    fn result(
        self,
        outcome: CheckOutcome,
        finding: impl Into<String>,
        remedy: Option<String>,
    ) -> CheckResult {
        CheckResult {
            name: self.name,
            reads: self.reads,
            outcome,
            finding: finding.into(),
            remedy,
        }
    }
}

impl CheckResult {
    /// Redacts secrets in its sentences.
    pub(super) fn redact(&mut self, redactor: &Redactor) {
        self.finding = redactor.redacted(&self.finding);
        self.remedy = self.remedy.as_deref().map(|text| redactor.redacted(text));
    }

    fn text(&self) -> String {
        let mark = match self.outcome {
            CheckOutcome::Problem => "PROBLEM",
            CheckOutcome::Warning => "warning",
            CheckOutcome::Ok => "ok     ",
        };
        let mut text = format!("{mark}  {}: {}", self.name, self.finding);
        if let Some(remedy) = &self.remedy {
            text.extend(["\n         Remedy: ", remedy]);
        }
        text
    }
}

/// Returns the problems and warnings, and the number of passed checks.
pub(super) fn summary(results: &[CheckResult]) -> String {
    let (passed, open): (Vec<_>, Vec<_>) = results
        .iter()
        .partition(|result| result.outcome == CheckOutcome::Ok);
    let mut lines: Vec<String> = open.into_iter().map(CheckResult::text).collect();
    lines.push(format!("{} checks passed", passed.len()));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: CheckSubject = CheckSubject::new("disk", "the file system");

    #[test]
    fn findings_precede_the_number_of_passed_checks() {
        let mut results = [
            DISK.ok("fine"),
            DISK.warning("9 % are free", "Delete something."),
            DISK.problem("4 % are free", "Delete something."),
        ];
        results.sort_by_key(|result| result.outcome);
        let expected = "PROBLEM  disk: 4 % are free\n         Remedy: Delete something.\n\
                        warning  disk: 9 % are free\n         Remedy: Delete something.\n\
                        1 checks passed";
        assert_eq!(summary(&results), expected);
        let json = serde_json::to_value(&results[0]).unwrap();
        assert_eq!(json["outcome"], "problem");
        assert_eq!(json["reads"], "the file system");
    }
}
