"""NVML in a thread of its own: a card that hangs holds up nobody (KLO-DEV-01).

The library is loaded there, tried again while it cannot be used, and asked once a second. The tick takes the newest answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from koord import seams
from roles.koordlet.host.errors import HostError
from roles.koordlet.sensing.gpulibrary import DEADLINE, SILENT, GPUCard, GPULibrary, GPUProcess

log = logging.getLogger(__name__)

EVERY, LOAD_AGAIN = 1.0, 60.0


class NVMLThread:
    """A :class:`GPULibrary`. ``load`` gives the library, or None with the reason in the log."""

    def __init__(
        self,
        load: Callable[[], GPULibrary | None],
        *,
        deadline: float = DEADLINE,
        load_again: float = LOAD_AGAIN,
        clock: Callable[[], float] = seams.monotonic,
    ) -> None:
        self._load = load
        self._deadline = deadline
        self._load_again = load_again
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._cards: tuple[GPUCard, ...] = ()
        self._known = False
        """Whether there was a first answer: before it, no card is not the same as no cards."""
        self._processes: list[GPUProcess] | HostError = []
        self._late = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; one that hangs in the driver ends with the process."""
        self._stop.set()

    def cards(self) -> tuple[GPUCard, ...]:
        """Raises HostError before the first answer."""
        with self._lock:
            if not self._known:
                self._overdue()
                raise HostError("NVML has not answered yet")
            if not self._overdue():
                return self._cards
            return tuple(card if card.problem else replace(card, problem=SILENT) for card in self._cards)

    def processes(self) -> list[GPUProcess]:
        """Raises HostError when NVML does not answer."""
        with self._lock:
            if self._overdue():
                raise HostError(f"NVML has not answered for {self._deadline:g} s: no use of cards is known")
            if isinstance(self._processes, HostError):
                raise self._processes
            return self._processes

    def _overdue(self) -> bool:
        late = self._asked is not None and self._clock() - self._asked > self._deadline
        if late and not self._late:
            log.error("NVML has not answered for %g s; cards count as not healthy until it does", self._deadline)
        self._late = late
        return late

    def _run(self) -> None:
        library: GPULibrary | None = None
        while not self._stop.is_set():
            with self._lock:
                self._asked = self._clock()
            try:
                library = library if library is not None else self._load()
                if library is not None:
                    self._take(library)
            except Exception:
                log.exception("NVML failed")
            with self._lock:
                self._asked, self._known = None, True
            self._stop.wait(EVERY if library is not None else self._load_again)

    def _take(self, library: GPULibrary) -> None:
        cards = library.cards()
        found: list[GPUProcess] | HostError
        try:
            found = library.processes()
        except HostError as error:
            found = error
        with self._lock:
            self._cards, self._processes = cards, found
