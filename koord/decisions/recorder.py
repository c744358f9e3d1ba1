"""Where records go: the recorder hands each to its sinks, and neither waits nor fails."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from koord.decisions.record import Record
from koord.decisions.ring import RingSink

log = logging.getLogger("koord.decisions")

COMPLAINTS = 5  # failures of a sink that are logged; the rest is counted


class Sink(Protocol):
    """Takes records. Must not block; what it raises is counted and does not reach the role."""

    def write(self, record: Record) -> None:
        """Take one record."""
        ...


class Recorder:
    """The one way that decisions of a role are recorded.

    Always keeps a ring of recent records (`ring`; the first RingSink among `sinks`, or one of its own), which
    `/debug/decisions` and `koord why` read. Use it on the event loop's thread.
    """

    def __init__(self, role: str, sinks: Iterable[Sink] = ()) -> None:
        self.role = role
        self.sinks: list[Sink] = list(sinks)
        rings = [sink for sink in self.sinks if isinstance(sink, RingSink)]
        self.ring = rings[0] if rings else RingSink()
        if not rings:
            self.sinks.insert(0, self.ring)
        self.recorded = 0
        self.failed = 0

    def add(self, sink: Sink) -> None:
        """One more sink, from now on."""
        self.sinks.append(sink)

    def record(self, record: Record) -> None:
        """Hand a record to every sink. Never blocks, never raises."""
        self.recorded += 1
        for sink in self.sinks:
            try:
                sink.write(record)
            except Exception:  # explaining must never stop the acting
                self.failed += 1
                if self.failed <= COMPLAINTS:
                    log.exception("sink %s failed for %s", type(sink).__name__, record.subject)
