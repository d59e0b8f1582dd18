"""What a native report says of machine and session beside its tables: who ran what, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.readers.nsys.rep.container import Container
from gpusight.readers.protobuf.wire import child, children, integer, text
from gpusight.sharing.report import Category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.readers.nsys.raw import RawTables
    from gpusight.readers.protobuf.wire import Message

_PROPERTIES = {
    600: Category.HARDWARE_IDS,
    610: Category.ENVIRONMENT,
    619: Category.HOST_NAMES,
    721: Category.HARDWARE_IDS,
    897: Category.HARDWARE_IDS,
}
"""Properties of the machine, by number."""
_PROCESS = {10: Category.COMMAND_LINES, 11: Category.COMMAND_LINES, 12: Category.FILE_PATHS}
_UI = {
    4: Category.CAPTURE_TIME,
    5: Category.HOST_NAMES,
    22: Category.CAPTURE_TIME,
    24: Category.HOST_NAMES,
    25: Category.COMMAND_LINES,
}
_Found = tuple[Category, str, str]


def session_values(raw: RawTables) -> Iterator[_Found]:
    """Give what a native report tells; the other forms have it in their tables."""
    if raw.source != "nsys-rep":
        return
    container = Container(raw.path)
    try:
        yield from _fields(container.ui, _UI, "UI Data")
        for machine in children(container.raw.system, 1):
            yield from _machine(machine)
        for process in children(child(container.raw.system, 2), 26):
            yield from _fields(process, _PROCESS, "capture options")
            for variable in children(process, 30):
                value = text(variable, 2)
                if value:
                    yield Category.ENVIRONMENT, "capture options", value
    finally:
        container.close()


def _machine(machine: Message) -> Iterator[_Found]:
    if name := text(machine, 1):
        yield Category.HOST_NAMES, "system information", name
    for entry in children(child(machine, 2), 1):
        category = _PROPERTIES.get(integer(entry, 1) or 0)
        value = text(entry, 2)
        if category is Category.ENVIRONMENT and value:
            for variable in value.replace("\0", ";").split(";"):
                if told := variable.partition("=")[2]:
                    yield category, "system information", told
        elif category is not None and value:
            yield category, "system information", value


def _fields(message: Message, wanted: dict[int, Category], where: str) -> Iterator[_Found]:
    for number, category in wanted.items():
        for value in message.get(number, ()):
            if isinstance(value, bytes) and value:
                yield category, where, value.decode("utf-8", "replace")
