"""A verdict that shows itself, in a shell or a notebook, and as text of every form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.render.shown import Shown

if TYPE_CHECKING:
    from gpusight.comparison.gate import Check, Gate
    from gpusight.comparison.outcome import Comparison

WIDTH = 100


class GateView(Shown):
    """Whether captures hold their limits; printing it shows the checks."""

    result: Gate

    def __init__(self, result: Gate) -> None:
        self.result = result

    @property
    def passed(self) -> bool:
        """Whether nothing stands in the way."""
        return self.result.passed

    @property
    def outcome(self) -> str:
        """`passed`, `failed` or `inconclusive`."""
        return self.result.outcome

    @property
    def checks(self) -> tuple[Check, ...]:
        """Each metric against its limit."""
        return self.result.checks

    @property
    def comparison(self) -> Comparison | None:
        """What changed since the baseline; None where there is none."""
        return self.result.comparison

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, as `--format json` writes them."""
        return self.result.document()

    def to_text(self) -> str:
        """Give it as plain text, as printing does."""
        from gpusight.render.gate.text import to_text

        return to_text(self.result, WIDTH)

    def _repr_html_(self) -> str:
        from gpusight.render.gate.html import to_fragment

        return to_fragment(self.result)

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.json import encode

        return encode(self.document())

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes."""
        from gpusight.render.gate.markdown import to_markdown

        return to_markdown(self.result)

    def to_junit(self) -> str:
        """Give the XML that `--junit` writes."""
        from gpusight.render.gate.junit import to_junit

        return to_junit(self.result)
