"""Copies of PyTorch's Chrome traces without what tells about the machine, its users and their data.

A trace is walked through once, half a megabyte at a time, as the reader does. Keys that we do not
know are left behind, whatever they hold.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.errors import NotACaptureError
from gpusight.readers.blocks import Blocks
from gpusight.readers.chrome import kinds
from gpusight.readers.chrome.events import EventReader
from gpusight.sharing.report import TAKES
from gpusight.sharing.tally import Tally
from gpusight.sharing.torch_about import About
from gpusight.sharing.torch_events import Events
from gpusight.sharing.torch_values import Values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from gzip import GzipFile
    from pathlib import Path
    from typing import IO

    from gpusight.sharing.report import Found, Options

_DECODER = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
"""Reads events without deciding what their keys mean."""
_TORCH = frozenset({"schemaVersion", "deviceProperties", "distributedInfo"})
"""What only PyTorch writes beside the events."""
_NOT_TELLING = frozenset({kinds.PLAIN, kinds.SETTING, kinds.SILENT})
"""Kinds of events that other programs write too."""
_GZIP_LEVEL = 6
_BETWEEN = b",\n"


class TorchCleaner:
    """Knows traces that torch.profiler wrote."""

    suffixes = (".json.gz", ".json")

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self, options: Options) -> Found:
        """Say what the trace holds, and what would become of it."""
        return self._walk(options, lambda _text: None)

    def write(self, output: Path, options: Options, *, name: str = "") -> Found:
        """Write the copy, packed where its name ends in .gz."""
        with output.open("xb") as file, _packing(file, name or output.name) as packed:
            return self._walk(options, packed.write)

    def _walk(self, options: Options, put: Callable[[bytes], Any]) -> Found:
        tally = Tally()
        values = Values(options, tally)
        events = Events(values, tally)
        blocks = Blocks(self._path)
        reader = EventReader(self._path, blocks, _DECODER)
        before = b'{"traceEvents":[\n'
        for some in reader:
            written = events.cleaned(some)
            if written:
                put(before + _BETWEEN.join(written))
                before = _BETWEEN
        if before != _BETWEEN:
            put(before)
        self._check(events, reader.about)
        about = msgspec.json.encode(About(values, tally).cleaned(reader.about))
        put(b"\n]" + (b"," + about[1:] if about != b"{}" else b"}") + b"\n")
        return tally.found(_notes(reader, blocks))

    def _check(self, events: Events, about: dict[str, Any]) -> None:
        own = about.get("otherData")
        if isinstance(own, dict) and own.get("writer") == "gpusight":
            raise NotACaptureError(
                f"{self._path} is a timeline that gpusight exported",
                hint="share the capture that it was made from",
            )
        if not events.kinds and not _TORCH & about.keys():
            raise NotACaptureError(
                f"{self._path} is not a trace", why="it holds no events", hint=TAKES
            )
        if not events.kinds - _NOT_TELLING and not _TORCH & about.keys():
            raise NotACaptureError(
                f"{self._path} is a Chrome trace, but not one of PyTorch",
                why="what others write into theirs is not known well enough to clean it",
                hint=TAKES,
            )


@contextlib.contextmanager
def _packing(file: IO[bytes], name: str) -> Iterator[IO[bytes] | GzipFile]:
    if not name.lower().endswith(".gz"):
        yield file
        return
    import gzip

    # Neither the name nor the time of the copy goes into the header.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
        yield packed


def _notes(reader: EventReader, blocks: Blocks) -> Iterator[str]:
    if blocks.problem or reader.cut_off:
        why = blocks.problem or "it ends inside its list of events"
        yield f"the trace is cut off: {why}; the copy holds what is there, as a whole file"
    if reader.left_over:
        yield "what follows the list of events was left behind: it belongs to no trace"
    if reader.unreadable:
        yield f"{reader.unreadable:,} events are not valid JSON and were left behind"
