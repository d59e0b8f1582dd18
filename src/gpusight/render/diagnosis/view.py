"""A diagnosis that shows itself, in a shell or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.findings.finding import Finding
    from gpusight.findings.kernels.diagnosis import Diagnosis, KernelDiagnosis

WIDTH = 100
ROWS = 20
DETAILS = 3


class DiagnosisView:
    """What is wrong with the kernels of a capture; printing it explains the foremost ones."""

    def __init__(self, result: Diagnosis) -> None:
        self.result = result

    @property
    def kernels(self) -> tuple[KernelDiagnosis, ...]:
        """Every launch with its findings, those with the most time to give back first."""
        return self.result.kernels

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding, added up over equal launches, the one that gives most back first."""
        return self.result.findings

    @property
    def saved_ns(self) -> float:
        """Time that the first fix of each kernel gives back."""
        return self.result.saved_ns

    @property
    def meta(self) -> Mapping[str, Any]:
        """The GPUs and the tool of the capture."""
        return self.result.meta

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: rules that could not be judged, incomplete data."""
        return self.result.notes

    def __repr__(self) -> str:
        """Show it as plain text."""
        from gpusight.render.diagnosis.text import to_text
        from gpusight.render.layout import Look

        look = Look(WIDTH, ROWS, rows_advice="all are in .kernels")
        return to_text(self.result, look, details=DETAILS).rstrip("\n")

    def _repr_html_(self) -> str:
        from gpusight.render.diagnosis.html import to_fragment

        return to_fragment(self.result, limit=ROWS, details=DETAILS)

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.json import encode

        return encode(self.result.document())

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes: one line for each finding of each launch."""
        from gpusight.render.csv import to_csv
        from gpusight.render.diagnosis.tables import every_finding

        return to_csv(every_finding(self.result))

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with all kernels."""
        from gpusight.render.diagnosis.markdown import to_document

        return to_document(self.result, limit=0, details=0)

    def to_html(self) -> str:
        """Give the page that `--format html` writes."""
        from gpusight.render.diagnosis.html import to_page

        return to_page(self.result)
