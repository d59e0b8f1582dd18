"""What every answer of `gpusight.api` has in common: it says what it is, and shows itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class Answer(Protocol):
    """What results of every kind tell about themselves."""

    @property
    def title(self) -> str:
        """What it is about."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """Totals and other values about it as a whole."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        ...


class Shown(ABC):
    """A result that shows itself, in a shell or a notebook."""

    result: Answer

    @property
    def title(self) -> str:
        """What the result is about."""
        return self.result.title

    @property
    def meta(self) -> Mapping[str, Any]:
        """Totals and other values about the result as a whole."""
        return self.result.meta

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: incomplete data, what was left out, what was assumed."""
        return self.result.notes

    @abstractmethod
    def to_text(self) -> str:
        """Give it as plain text, as printing does."""

    def __repr__(self) -> str:
        """Show it as plain text."""
        return self.to_text().rstrip("\n")
