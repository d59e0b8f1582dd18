"""The five questions about a forward pass, a training step and attention: `questions`."""

from __future__ import annotations

from gpusight.analyses.questions.report import questions

__all__ = ["questions"]
