"""Things that are costly to build, kept while they are used and fit into so many bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Sized(Protocol):
    """What knows how large it is."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps."""
        ...


Item = TypeVar("Item", bound=Sized)


class Shelf:
    """Keeps what was used last, for several threads at once.

    One thing is built at a time, while what is there can still be taken. What stands under a key is
    always of one type.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept_bytes = 0
        self._items: OrderedDict[Hashable, Sized] = OrderedDict()
        self._looking = threading.Lock()
        self._building = threading.Lock()

    def take(self, key: Hashable, build: Callable[[], Item]) -> Item:
        """Give what stands under a key; it is built where it is not there, or no more."""
        found = self._find(key)
        if found is None:
            with self._building:
                found = self._find(key)  # another thread may have built it meanwhile
                if found is None:
                    found = self._put(key, build())
        return cast("Item", found)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        with self._looking:
            return self._kept_bytes

    def _find(self, key: Hashable) -> Sized | None:
        with self._looking:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def _put(self, key: Hashable, item: Sized) -> Sized:
        """Keep an item, and let go of those not used for longest; the newest always stays."""
        with self._looking:
            self._items[key] = item
            self._kept_bytes += item.nbytes
            while self._kept_bytes > self._most_bytes and len(self._items) > 1:
                _, oldest = self._items.popitem(last=False)
                self._kept_bytes -= oldest.nbytes
        return item
