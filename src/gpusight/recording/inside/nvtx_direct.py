"""NVTX without any package: what its header would do, in ctypes."""

from __future__ import annotations

import ctypes
import itertools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusight.recording.inside.nvtx_backend import NvtxEvent


_VERSION = 3
_CALLBACKS_TABLE, _VERSION_TABLE = 1, 3
_CORE, _CORE2 = 1, 5
_SLOTS = 16
"""As many as the largest table has; the first is never used."""
_MARK, _START, _END, _PUSH, _POP = 1, 2, 3, 4, 5
_NAME_CATEGORY, _REGISTER_STRING, _CREATE_DOMAIN = 8, 10, 12
_OLD = {_MARK: 1, _START: 4, _END: 7, _PUSH: 8, _POP: 11}
"""The same of the oldest module, which knows the default domain only."""
_COLOR_ARGB = 1
_INT64, _DOUBLE = 2, 3
_ASCII, _REGISTERED = 1, 3
_KEPT = 4096
"""Attributes that are used again; a program that puts numbers in its names has any number."""
_MAX_REGISTERED = 65_536
"""Names of a domain that are registered: neither we nor the tool can forget one."""


class _Payload(ctypes.Union):
    _fields_ = (("integer", ctypes.c_int64), ("number", ctypes.c_double))


class _Attributes(ctypes.Structure):
    """`nvtxEventAttributes_t`."""

    _fields_ = (
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category", ctypes.c_uint32),
        ("color_type", ctypes.c_int32),
        ("color", ctypes.c_uint32),
        ("payload_type", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("payload", _Payload),
        ("message_type", ctypes.c_int32),
        ("message", ctypes.c_void_p),
    )


_Reference = ctypes.POINTER(_Attributes)
_GetTable = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
)
_SetVersion = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
_Export = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)


class _Callbacks(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("get_table", _GetTable))


class _Version(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("set_version", _SetVersion),
    )


_SIGNATURES: dict[int, Any] = {
    _MARK: ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Reference),
    _START: ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, _Reference),
    _END: ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64),
    _PUSH: ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Reference),
    _POP: ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p),
    _NAME_CATEGORY: ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p),
    _REGISTER_STRING: ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
    _CREATE_DOMAIN: ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p),
}
_OLD_SIGNATURES: dict[int, Any] = {
    _MARK: ctypes.CFUNCTYPE(None, _Reference),
    _START: ctypes.CFUNCTYPE(ctypes.c_uint64, _Reference),
    _END: ctypes.CFUNCTYPE(None, ctypes.c_uint64),
    _PUSH: ctypes.CFUNCTYPE(ctypes.c_int, _Reference),
    _POP: ctypes.CFUNCTYPE(ctypes.c_int),
}


class _Offer:
    """The tables that a tool requests while it is initialized, and fills in."""

    def __init__(self) -> None:
        self.slots = (ctypes.c_void_p * _SLOTS)()
        self.old_slots = (ctypes.c_void_p * _SLOTS)()
        self._unused = (ctypes.c_void_p * _SLOTS)()
        self._tables = {
            _CORE: self._pointers(self.old_slots),
            _CORE2: self._pointers(self.slots),
        }
        self._others = self._pointers(self._unused)
        self._callbacks = _Callbacks(ctypes.sizeof(_Callbacks), _GetTable(self._get_table))
        self._version = _Version(ctypes.sizeof(_Version), _VERSION, 0, _SetVersion(lambda _: None))
        self.export = _Export(self._get)

    @staticmethod
    def _pointers(slots: Any) -> Any:
        """Return what the tool expects: pointers to where its functions go, ending in a null."""
        first = ctypes.addressof(slots)
        size = ctypes.sizeof(ctypes.c_void_p)
        addresses = (first + size * index for index in range(1, _SLOTS))
        return (ctypes.c_void_p * (_SLOTS + 1))(None, *addresses, None)

    def _get(self, table: int) -> int | None:
        known = {_CALLBACKS_TABLE: self._callbacks, _VERSION_TABLE: self._version}
        return ctypes.addressof(known[table]) if table in known else None

    def _get_table(self, module: int, table: Any, size: Any) -> int:
        if not 1 <= module <= 6:
            return 0
        table[0] = ctypes.addressof(self._tables.get(module, self._others))
        if size:
            size[0] = _SLOTS
        return 1


class _Domain:
    """A domain's handle, and what was registered in it."""

    def __init__(self, handle: int | None) -> None:
        self.handle = handle
        self.strings: dict[str, int | None] = {}
        self.categories: dict[str, int] = {}
        self.unused = itertools.count(1)
        """Numbers of categories."""


class DirectBackend:
    """Calls the functions of the tool that listens.

    CUPTI does not record what comes to the default domain through the functions that take a domain;
    for it, `old` functions without one are called there, with names that are not registered.
    """

    def __init__(self, offer: _Offer, library: Any, *, old: bool = False) -> None:
        self._keep = (offer, library)
        self._old = old
        functions = {
            slot: make(offer.slots[slot]) if offer.slots[slot] else _nothing
            for slot, make in _SIGNATURES.items()
        }
        if old:
            functions.update(_by_domain(functions, offer))
        self._mark, self._push, self._pop = functions[_MARK], functions[_PUSH], functions[_POP]
        self._start, self._end = functions[_START], functions[_END]
        self._name_category = functions[_NAME_CATEGORY]
        self._register_string = functions[_REGISTER_STRING]
        self._create_domain = functions[_CREATE_DOMAIN]
        self._domains: dict[str | None, _Domain] = {}
        self._known: dict[NvtxEvent, tuple[int | None, Any]] = {}
        self._lock = threading.RLock()  # a finaliser may run in the middle, and open a range

    @classmethod
    def load(cls, path: str) -> DirectBackend:
        """Load the tool's library and let it fill in its functions."""
        library = ctypes.CDLL(path)
        initialize = library.InitializeInjectionNvtx2
        initialize.argtypes, initialize.restype = [_Export], ctypes.c_int
        offer = _Offer()
        if not initialize(offer.export):
            raise RuntimeError("it refuses")
        return cls(offer, library, old=hasattr(library, "cuptiGetVersion"))

    def push(self, event: NvtxEvent) -> None:
        """Open a range on this thread's stack."""
        self._push(*self._domain_and_attributes(event))

    def pop(self, domain: str | None) -> None:
        """Close its innermost range."""
        self._pop(self._domain(domain).handle)

    def start(self, event: NvtxEvent) -> tuple[int | None, int]:
        """Open a range that any thread may close."""
        handle, attributes = self._domain_and_attributes(event)
        return handle, self._start(handle, attributes)

    def end(self, opened: tuple[int | None, int]) -> None:
        """Close it."""
        self._end(*opened)

    def mark(self, event: NvtxEvent) -> None:
        """Mark that something happens now."""
        self._mark(*self._domain_and_attributes(event))

    def _domain_and_attributes(self, event: NvtxEvent) -> tuple[int | None, Any]:
        """Return the domain's handle and the attributes; those without a payload are kept."""
        known = self._known.get(event)
        if known is None:
            known = self._attributes(event)
            if event.payload is None and len(self._known) < _KEPT:
                self._known[event] = known
        return known

    def _attributes(self, event: NvtxEvent) -> tuple[int | None, Any]:
        name = event.name
        payload: Any = event.payload
        domain = self._domain(event.domain)
        known = domain.strings
        can_register = name in known or len(known) < _MAX_REGISTERED
        attributes = _Attributes(version=_VERSION, size=ctypes.sizeof(_Attributes))
        if (self._old and domain.handle is None) or not can_register:
            attributes.text = _encoded(name)  # kept as long as what points to it
            attributes.message_type, attributes.message = (
                _ASCII,
                ctypes.cast(attributes.text, ctypes.c_void_p),
            )
        else:  # tools that filter by name look at registered strings only
            if name not in known:
                known[name] = self._register_string(domain.handle, _encoded(name))
            attributes.message_type, attributes.message = _REGISTERED, known[name]
        attributes.category = self._category(domain, event.category)
        if event.color is not None:
            attributes.color_type, attributes.color = _COLOR_ARGB, event.color
        if isinstance(payload, int):
            attributes.payload_type, attributes.payload.integer = _INT64, payload
        elif payload is not None:
            attributes.payload_type, attributes.payload.number = _DOUBLE, payload
        return domain.handle, ctypes.byref(attributes)

    def _domain(self, name: str | None) -> _Domain:
        """Create a domain at its first use; the default one has no handle."""
        known = self._domains.get(name)
        if known is None:
            with self._lock:
                handle = None if name is None else self._create_domain(_encoded(name))
                known = self._domains.setdefault(name, _Domain(handle))
        return known

    def _category(self, domain: _Domain, category: str | int | None) -> int:
        """Return a category's number; a named one gets the next."""
        if category is None or isinstance(category, int):
            return category or 0
        known = domain.categories.get(category)
        if known is None:
            number = next(domain.unused)  # where two call at once, one of them is lost
            known = domain.categories.setdefault(category, number)
            if known == number:
                self._name_category(domain.handle, number, _encoded(category))
        return known


def _by_domain(functions: dict[int, Any], offer: _Offer) -> dict[int, Any]:
    """Return functions that call the old ones where the domain, their first argument, is none."""

    def chosen(slot: int) -> Any:
        address, new = offer.old_slots[_OLD[slot]], functions[slot]
        old = _OLD_SIGNATURES[slot](address) if address else _nothing
        return lambda domain, *rest: old(*rest) if domain is None else new(domain, *rest)

    return {slot: chosen(slot) for slot in _OLD}


def _encoded(text: str) -> bytes:
    """Write text for C, which ends it at a null; what UTF-8 cannot hold becomes `?`."""
    return text.replace("\0", " ").encode("utf-8", "replace")


def _nothing(*_: Any) -> int:
    """Stand in for a function that the tool does not want to hear."""
    return 0
