"""What the accounts of a window are made of: laid out once, for all that are asked of it.

The ledger, the ledger's track and a diagnosis all account for the same time, which is most of the
work of each. Who asks several of them makes one `Accounting` and hands it on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gpusight.analyses.ledger.hosts import HostTime, host_time
from gpusight.analyses.ledger.ledger import Account, Ledger, account
from gpusight.analyses.schedule.build import build

if TYPE_CHECKING:
    from gpusight.analyses.schedule.schedule import Schedule
    from gpusight.model.trace import Trace


@dataclass(frozen=True)
class Accounting:
    """A window of a capture; what is worked out of it is worked out when it is first asked for."""

    trace: Trace
    start_ns: int
    end_ns: int
    process: int | None = None
    """The only one that counts; None for all."""

    def or_known(self, known: Accounting | None) -> Accounting:
        """Give what was handed on, where it is of the same window."""
        return known if known is not None and known == self else self

    @cached_property
    def schedule(self) -> Schedule:
        """The GPU work and the API calls of the window."""
        return build(self.trace, self.start_ns, self.end_ns, process=self.process)

    @cached_property
    def hosts(self) -> HostTime:
        """What each lane of the host did at every instant."""
        return host_time(self.trace, self.schedule)

    @cached_property
    def accounts(self) -> tuple[Account, ...]:
        """The spans of every GPU that worked."""
        return tuple(account(self.schedule, self.hosts))

    @property
    def ledger(self) -> Ledger:
        """Where the time of every GPU went."""
        return Ledger(self.start_ns, self.end_ns, tuple(one.ledger for one in self.accounts))
