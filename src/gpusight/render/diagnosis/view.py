"""A diagnosis that shows itself, in a shell or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.findings.joined import JoinedDiagnosis
from gpusight.findings.kernels.diagnosis import Diagnosis
from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
from gpusight.render.diagnosis import forms
from gpusight.render.shown import Shown

if TYPE_CHECKING:
    from gpusight.analyses.ledger.ledger import Ledger
    from gpusight.findings.diagnose import AnyDiagnosis
    from gpusight.findings.finding import Finding
    from gpusight.findings.kernels.diagnosis import KernelDiagnosis
    from gpusight.findings.timeline.finding import TimelineFinding

WIDTH = 100
ROWS = 20
DETAILS = 3


class DiagnosisView(Shown):
    """What holds a program or its kernels back; printing it explains the foremost findings."""

    result: AnyDiagnosis

    def __init__(self, result: AnyDiagnosis) -> None:
        self.result = result

    @property
    def timeline(self) -> TimelineDiagnosis | None:
        """What the timeline says; None where there is only a report of measured kernels."""
        if isinstance(self.result, JoinedDiagnosis):
            return self.result.timeline
        return self.result if isinstance(self.result, TimelineDiagnosis) else None

    @property
    def kernels(self) -> tuple[KernelDiagnosis, ...]:
        """Every measured launch with its findings, those with the most time to give back first."""
        if isinstance(self.result, JoinedDiagnosis):
            return tuple(one for kernel in self.result.kernels for one in kernel.group.kernels)
        return self.result.kernels if isinstance(self.result, Diagnosis) else ()

    @property
    def findings(self) -> tuple[Finding | TimelineFinding, ...]:
        """Every finding, the one that gives most back first; of a timeline, where there is one."""
        if isinstance(self.result, Diagnosis):
            return self.result.findings
        return self.timeline.findings if self.timeline else ()

    @property
    def ledger(self) -> Ledger | None:
        """Where the time of the window went; None where there is only a report."""
        return None if self.timeline is None else self.timeline.ledger

    @property
    def saved_ns(self) -> float:
        """Time that the first fix of each kernel, or of a timeline the first fix, gives back."""
        if isinstance(self.result, Diagnosis):
            return self.result.saved_ns
        return max((f.recoverable_ns or 0.0 for f in self._of_timeline()), default=0.0)

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.render.layout import Look

        look = Look(WIDTH, ROWS, rows_advice="all are in .findings")
        return forms.as_text(self.result, look, details=DETAILS)

    def _of_timeline(self) -> tuple[TimelineFinding, ...]:
        return () if self.timeline is None else self.timeline.findings

    def _repr_html_(self) -> str:
        return forms.as_fragment(self.result, limit=ROWS, details=DETAILS)

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.json import encode

        return encode(self.result.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes: one line for each finding."""
        from gpusight.render.csv import to_csv

        return to_csv(forms.as_table(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with everything."""
        return forms.as_markdown(self.result, limit=0, details=0)

    def to_html(self) -> str:
        """Give the page that `--format html` writes."""
        return forms.as_page(self.result)
