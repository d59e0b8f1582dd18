"""What a capture leaks, and what a sanitized copy keeps, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.render.renderer import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.results import Composite, Fact, Field, Fmt, TableResult
from gpusight.sharing.leak_report import Category, Treatment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.sharing.leak_report import Leak
    from gpusight.sharing.sanitized_copy import SharedCopy


COMMAND = "share"
CATEGORY_FIELDS = (
    Field("category", "Data", Fmt.TEXT, "Kind of private data about people or machines"),
    Field("fate", "In the copy", Fmt.TEXT, "`removed`, `hashed`, `shortened` or `kept`"),
    Field(
        "count",
        "Values",
        Fmt.COUNT,
        "Distinct values, or entries where values cannot be distinguished",
    ),
    Field("places", "Where", Fmt.NAME, "Where in the capture", shown=False),
)
PLACE_FIELDS = (
    Field("category", "Data", Fmt.TEXT, "Kind of private data about people or machines"),
    Field("where", "Where", Fmt.NAME, "Where in the capture, as the format names it"),
    Field(
        "count",
        "Values",
        Fmt.COUNT,
        "Distinct values, or entries where values cannot be distinguished",
    ),
    Field("fate", "In the copy", Fmt.TEXT, "`removed`, `hashed`, `shortened` or `kept`"),
)
REMAIN_FIELDS = (
    Field("category", "Data", Fmt.TEXT, "Kind of private data about people or machines"),
    Field("where", "Where", Fmt.NAME, "Where the copy still has it"),
    Field("count", "Values", Fmt.COUNT, "Distinct values"),
)
_TREATMENTS = (
    Treatment.REMOVED,
    Treatment.HASHED,
    Treatment.SHORTENED,
    Treatment.RENUMBERED,
    Treatment.KEPT,
)
_PROGRAM_WORDS = {
    Category.PROGRAM_TEXTS: "names of ranges or operators",
    Category.KERNEL_NAMES: "names of kernels",
    Category.PYTHON_FUNCTIONS: "names of Python functions",
}
"""Names of the program that a copy may have."""
_SALT = (
    "the salt is random and not stored; --salt TEXT makes hashes comparable between copies, "
    "but anyone who knows the text can test guesses of names"
)


def share_page(shared: SharedCopy, *, categories: bool = True, places: bool = True) -> Composite:
    """Give facts and, as requested, what there is by category and by place."""
    leaks = sorted(shared.leaks, key=lambda leak: _TREATMENTS.index(leak.treatment))
    sections = []
    if categories:
        sections.append(_categories(leaks))
    if places:
        rows = [
            (leak.category.value, leak.where, leak.count, leak.treatment.value) for leak in leaks
        ]
        sections.append(_table("places", "Where", PLACE_FIELDS, rows))
    if shared.suspects:
        sections.append(_leak_table("suspects", "Names to check before sharing", shared.suspects))
    if shared.remains:
        title = "Removed values still in the copy"
        sections.append(_leak_table("remains", title, shared.remains))
    name = shared.capture.name
    title = f"Sanitized copy of {name}" if shared.path else f"Private data in {name}"
    return Composite(COMMAND, title, tuple(_facts(shared)), tuple(sections), notes=_notes(shared))


def closing_sentences(shared: SharedCopy) -> list[str]:
    """Summarize what a copy lacks, and which names of the program it keeps."""
    done = shared.path is not None
    sentences = [
        f"Removed: {shared.removed:,} values."
        if done
        else f"A sanitized copy would remove {shared.removed:,} values."
        if shared.removed
        else "It holds no values that a sanitized copy would remove."
    ]
    if shared.hash_names:
        return [*sentences, "Names are hashed, except words such as gemm or forward."]
    kept = {words: _named(shared.leaks, category) for category, words in _PROGRAM_WORDS.items()}
    own = [f"{count:,} {words}" for words, count in kept.items() if count]
    if not own:
        return [*sentences, "It has no names from the program."]
    return [
        *sentences,
        f"{'Kept' if done else 'It would keep'}: {', '.join(own)}.",
        "These names come from the program: --hash-names hashes them.",
    ]


def _named(leaks: Iterable[Leak], category: Category) -> int:
    """Count the names of a category; several places spell the same kernels."""
    readable = (Treatment.KEPT, Treatment.SHORTENED)
    counts = [k.count for k in leaks if k.category is category and k.treatment in readable]
    return max(counts, default=0) if category is Category.KERNEL_NAMES else sum(counts)


def _facts(shared: SharedCopy) -> Iterator[Fact]:
    if shared.path is not None:
        yield Fact("copy", "Copy", str(shared.path), Fmt.TEXT, "Where the copy was written")
    size = shared.bytes_before
    yield Fact("capture_bytes", "Size of the capture", size, Fmt.BYTES, "Bytes of its files")
    if shared.path is not None:
        size = shared.bytes_after
        yield Fact("copy_bytes", "Size of the copy", size, Fmt.BYTES, "Bytes of its files")
    names = "hashed" if shared.hash_names else "kept"
    yield Fact(
        "names", "Names", names, Fmt.TEXT, "Whether kernel and range names are kept or hashed"
    )


def _notes(shared: SharedCopy) -> tuple[str, ...]:
    own = [_SALT] if shared.hash_names else []
    if shared.suspects:
        own.insert(0, "some kept names look like a path, an address or a key: see the table below")
    if shared.remains:
        count = sum(leak.count for leak in shared.remains)
        what = "1 removed value is" if count == 1 else f"{count:,} removed values are"
        own.insert(0, f"{what} part of a name that was kept: see the last table")
    return (*own, *shared.notes)


def _categories(leaks: Iterable[Leak]) -> TableResult:
    """Add the places of a category up."""
    groups: dict[tuple[str, str], list[Leak]] = {}
    for leak in leaks:
        groups.setdefault((leak.category.value, leak.treatment.value), []).append(leak)
    rows = [
        (
            category,
            treatment,
            sum(leak.count for leak in leaks),
            ", ".join(leak.where for leak in leaks),
        )
        for (category, treatment), leaks in groups.items()
    ]
    return _table("categories", "Data in the capture", CATEGORY_FIELDS, rows)


def _leak_table(command: str, title: str, leaks: Iterable[Leak]) -> TableResult:
    rows = [(leak.category.value, leak.where, leak.count) for leak in leaks]
    return _table(command, title, REMAIN_FIELDS, rows)


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: Sequence[tuple[str | int, ...]]
) -> TableResult:
    types = {f.key: pl.Int64 if f.fmt is Fmt.COUNT else pl.String for f in fields}
    return TableResult(command, title, fields, pl.DataFrame(rows, schema=types, orient="row"))


SHARE_RENDERER = Renderer(tables=share_page, look=TableOptions(100, 0))
