"""What went wrong in a failed cycle, as one JSON document for debugging (SCH-FW-09), and its writers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from koord import seams
from koord.api import names
from koord.api.labels import parse_go_bool
from koord.api.times import format_time
from roles.scheduler.cycle.decision import Decision, FitFailure
from roles.scheduler.options import Debug
from roles.scheduler.tasks import Tasks

log = logging.getLogger(__name__)

Document = dict[str, Any]


def diagnosis_of(decision: Decision, now: float) -> Document:
    """The document of a cycle that ended without a node."""
    failure, pod = decision.failure, decision.pod
    pre_filter = failure.pre_filter.message if failure is not None and failure.pre_filter is not None else ""
    if failure is None:
        pre_filter = decision.status.message
    finder = decision.framework.next_pod
    job = finder.diagnose(pod) if finder is not None else {}
    return {
        "timestamp": format_time(now),
        "questionedKey": job.get("questionedKey", pod.reservation or pod.key),
        "nominatedNode": decision.nominate or pod.nominated,
        "preFilterMessage": pre_filter,
        "topologyKeyToExplain": pod.labels.get(names.LABEL_TOPOLOGY_KEY_TO_EXPLAIN) or job.get("topologyKeyToExplain", ""),
        "isRootCausePod": job.get("isRootCausePod", True),
        "scheduleDiagnosis": {
            "alreadyWaitForBound": job.get("alreadyWaitForBound", 0),
            "nodeOfferSlot": job.get("nodeOfferSlot", {}),
            "nodeFailedDetails": _details(failure) if failure is not None else [],
        },
        "preemptionDiagnosis": {
            "message": decision.post_filter_message,
            "nominatedNode": decision.nominate or "",
            "victims": sorted(victim.key for victim in decision.victims),
        },
        "suggestion": "",
    }


def _details(failure: FitFailure) -> list[Document]:
    """Refused nodes by reason, plugin and whether preemption might help."""
    cluster = failure.evaluation.cluster
    groups: dict[tuple[str, str, bool], list[str]] = {}
    if failure.pre_filter is None:
        for plugin, slots, codes in failure.first_codes():
            for slot, code in zip(slots.tolist(), codes.tolist(), strict=True):
                if failure.candidates is not None and not failure.candidates[slot]:
                    continue
                rejection = plugin.rejection(failure.ctx, int(code))
                for reason in rejection.reasons:
                    groups.setdefault((plugin.name, reason, rejection.resolvable), []).append(cluster.name_of(slot))
        for slot, (plugin_name, rejection) in failure.blocked.items():
            for reason in rejection.reasons:
                groups.setdefault((plugin_name, reason, rejection.resolvable), []).append(cluster.name_of(slot))
    return [
        {"reason": reason, "failedPlugin": name, "preemptMightHelp": helps, "failedNodes": sorted(nodes)}
        for (name, reason, helps), nodes in sorted(groups.items())
    ]


def filter_lines(decision: Decision) -> list[str]:
    """One line for each filter and reason that refused nodes in a cycle (`--debug-filters`)."""
    evaluation, ctx = decision.evaluation, decision.ctx
    if decision.failure is not None and decision.failure.pre_filter is not None:
        return [f"{decision.pod.key}: {decision.failure.pre_filter.plugin} refused the pod: {decision.failure.pre_filter.message}"]
    if evaluation is None:
        return []
    failure = decision.failure or FitFailure(ctx, evaluation)
    return [
        f"{decision.pod.key}: {entry['failedPlugin']} refused {', '.join(entry['failedNodes'])}: {entry['reason']}"
        for entry in _details(failure)
    ]


def _log(document: Document) -> None:
    log.info("diagnosis %s", orjson.dumps(document).decode())


class Dump:
    """Writes documents beside the cycle, or inside it with `blocking`. When `size` of them wait the newest is dropped with a warning."""

    def __init__(self, *, size: int, workers: int, write: Callable[[Document], None] = _log) -> None:
        self._queue: asyncio.Queue[Document] = asyncio.Queue(size)
        self._workers = workers
        self._write = write
        self._tasks = Tasks()
        self.blocking = False
        self.dropped = 0

    def put(self, document: Document) -> None:
        """Write a document, now or soon."""
        if self.blocking or not self._tasks:
            self._write(document)
            return
        try:
            self._queue.put_nowait(document)
        except asyncio.QueueFull:
            self.dropped += 1
            log.warning("diagnosis of %s is dropped: %d wait already", document["questionedKey"], self._queue.qsize())

    def start(self) -> None:
        """Start writing on the running loop."""
        for number in range(self._workers):
            self._tasks.start(self._work(), f"diagnosis {number}")

    async def stop(self) -> None:
        """Write what waits, then stop."""
        while not self._queue.empty():
            self._write(self._queue.get_nowait())
        await self._tasks.stop()

    async def _work(self) -> None:
        while True:
            self._write(await self._queue.get())
            await seams.sleep(0)  # a burst of failures must not hold the loop


def install(ops: Any, debug: Debug, dump: Dump) -> None:
    """The switches under `PUT /debug/flags/` (s, f, d, db) of a server that serves profiling."""

    def scores(text: str) -> None:
        if not text.isdigit():
            raise ValueError(f"{text!r} must be a whole number")
        debug.scores = int(text)

    ops.flag("s", scores)
    for name, target, field in (("f", debug, "filters"), ("d", debug, "diagnosis"), ("db", dump, "blocking")):
        ops.flag(name, partial(_switch, target, field))


def _switch(target: Any, field: str, text: str) -> None:
    """Raises ValueError for what is no boolean as Go spells it."""
    value = parse_go_bool(text)
    if value is None:
        raise ValueError(f"{text!r} is no boolean; accepted: true, false, t, f, 1, 0")
    setattr(target, field, value)
