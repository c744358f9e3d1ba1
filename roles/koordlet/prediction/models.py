"""Peak models: a CPU and a memory histogram for each pod, the node, each priority class and the system (KLO-PRED-01, -02)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from koord import seams
from koord.accounting.histogram import AGENT_CPU, AGENT_MEMORY, CheckpointError, DecayingHistogram
from koord.api.priority import PriorityClass
from koord.api.times import TimeError, format_time, parse_time
from roles.koordlet.host.ownfiles import replace
from roles.koordlet.prediction.peak import Amount, UnknownModelError
from roles.koordlet.states.model import PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.view import MetricsView

log = logging.getLogger(__name__)

NODE_KEY = "__node__"
SYSTEM_KEY = "__node-sys__"
CLASSES = (PriorityClass.PROD, PriorityClass.MID, PriorityClass.BATCH, PriorityClass.FREE, PriorityClass.NONE)


def class_key(priority_class: PriorityClass) -> str:
    """Model key of a priority class; the empty class is ``__node-__``."""
    return f"__node-{priority_class}__"


#: A checkpoint without its pod goes when the newest one is so much younger (seconds): the pod list of a node that boots is short, and its
#: clock may be wrong.
ORPHANED = 86_400.0
#: No sample counts as taken later (the year 9000): times of checkpoints end with the year 9999, and a clock may say anything.
LATEST = 221_845_392_000.0
_LARGEST = 1 << 20
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, CheckpointError)

FIXED_KEYS = frozenset({NODE_KEY, SYSTEM_KEY, *(class_key(c) for c in CLASSES)})
#: Models whose sum is the peak of Prod by priority.
PROD_KEYS = (SYSTEM_KEY, class_key(PriorityClass.PROD), class_key(PriorityClass.NONE))


@dataclass(frozen=True, slots=True)
class PredictionOptions:
    """Durations in seconds."""

    directory: str = "/prediction-checkpoints"
    """Empty: models live as long as the process."""
    training_interval: float = 60.0
    cpu_half_life: float = 12 * 3600.0
    memory_half_life: float = 24 * 3600.0
    cold_start: float = 24 * 3600.0
    safety_margin: int = 10
    expiration: float = 30 * 60.0
    checkpoint_interval: float = 10 * 60.0
    checkpoints_per_step: int = 12


@dataclass(slots=True)
class Model:
    cpu: DecayingHistogram
    memory: DecayingHistogram
    updated: float = 0.0
    """When it was last trained, or loaded: that nobody ran here to train it makes no model old."""
    saved: float = 0.0
    sampled: float | None = None
    """Time of the newest sample, which never goes back and never leaps; None before the first one."""

    def body(self, key: str) -> bytes:
        """Content of its checkpoint."""
        return orjson.dumps(
            {
                "UID": key,
                "CPU": self.cpu.to_checkpoint(),
                "Memory": self.memory.to_checkpoint(),
                "LastUpdated": format_time(self.updated if self.sampled is None else self.sampled),
            }
        )

    def time_of_sample(self, now: float, interval: float) -> float:
        """When a sample of ``now`` counts as taken: a clock that leaps makes no old sample worthless, and no new one."""
        last, at = self.sampled, now
        if last is not None and not last <= now <= last + self.cpu.half_life:
            at = last + interval
        self.sampled = min(at, LATEST)
        return self.sampled


@dataclass(slots=True)
class Models:
    """All models of this node. Times are Unix seconds and given by the caller; files are touched only by :meth:`expire`,
    :meth:`write`, :meth:`restore` and :meth:`recall`."""

    options: PredictionOptions
    models: dict[str, Model] = field(default_factory=dict)

    def _model(self, key: str) -> Model:
        model = self.models.get(key)
        if model is None:
            model = self.models[key] = Model(
                DecayingHistogram(AGENT_CPU, self.options.cpu_half_life), DecayingHistogram(AGENT_MEMORY, self.options.memory_half_life)
            )
        return model

    def update(self, key: str, cpu: float, memory: float, now: float) -> None:
        """Add a sample: cores and bytes."""
        model = self._model(key)
        at = model.time_of_sample(now, self.options.training_interval)
        model.cpu.add(cpu, 1.0, at)
        model.memory.add(memory, 1.0, at)
        model.updated = now

    def train(self, view: MetricsView, pods: Sequence[PodState], now: float) -> None:
        """One training step: p90 over the last training interval of each pod, the node, the classes and the system."""
        window = self.options.training_interval
        sums = {c: [0.0, 0.0] for c in CLASSES}
        for pod in pods:
            cpu = view.aggregate(kinds.POD_CPU, "p90", window, pod_uid=pod.uid)
            memory = view.aggregate(kinds.POD_MEMORY, "p90", window, pod_uid=pod.uid)
            if cpu is None or memory is None:
                continue
            self.update(pod.uid, cpu, memory, now)
            sums[pod.priority_class][0] += cpu
            sums[pod.priority_class][1] += memory
        node_cpu = view.aggregate(kinds.NODE_CPU, "p90", window)
        node_memory = view.aggregate(kinds.NODE_MEMORY, "p90", window)
        if node_cpu is not None and node_memory is not None:
            self.update(NODE_KEY, node_cpu, node_memory, now)
        for priority_class, (cpu, memory) in sums.items():
            self.update(class_key(priority_class), cpu, memory, now)
        all_cpu = sum(cpu for cpu, _ in sums.values())
        all_memory = sum(memory for _, memory in sums.values())
        if node_cpu is not None and node_memory is not None:
            self.update(SYSTEM_KEY, max(node_cpu - all_cpu, 0.0), max(node_memory - all_memory, 0.0), now)

    def predict(self, key: str) -> Amount:
        """CPU p95 and memory p98 of a model, truncated to milli-cores and bytes. Raises :class:`UnknownModelError`."""
        model = self.models.get(key)
        if model is None:
            raise UnknownModelError(key)
        return Amount(int(model.cpu.percentile(0.95) * 1000 + 1e-9), int(model.memory.percentile(0.98)))

    # -- files ---------------------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        return os.path.join(self.options.directory, key)

    def expire(self, now: float) -> None:
        """Drop models that were not updated for long, and their files."""
        for key in [k for k, m in self.models.items() if now - m.updated > self.options.expiration]:
            del self.models[key]
            if self.options.directory:
                _remove(self._path(key))

    def due(self, now: float) -> list[tuple[str, bytes]]:
        """Models whose checkpoint is due, oldest first, a bounded number: key and content."""
        if not self.options.directory:
            return []
        due = [(m.saved, k) for k, m in self.models.items() if now - m.saved >= self.options.checkpoint_interval]
        return [(key, self.models[key].body(key)) for _, key in sorted(due)[: self.options.checkpoints_per_step]]

    def write(self, bodies: Sequence[tuple[str, bytes]]) -> list[str]:
        """Write checkpoints, and wait for the disk; the keys of those that are there. Looks at no model: a thread of its own may do it."""
        written: list[str] = []
        for key, body in bodies:
            path = self._path(key)
            try:
                seams.files().make_directory(self.options.directory)
                replace(path, body)
            except OSError as error:
                log.error("prediction checkpoint %s cannot be written: %s", path, error.strerror)
                break
            written.append(key)
        return written

    def wrote(self, keys: Iterable[str], now: float) -> None:
        """Say which models have a checkpoint of this moment."""
        for key in keys:
            if key in self.models:
                self.models[key].saved = now

    def restore(self, pod_uids: set[str], now: float) -> int:
        """Load checkpoints of current pods and of the fixed keys; the models loaded. A checkpoint whose pod is not there goes when others
        were written for a day since; files that are none of ours stay."""
        if not self.options.directory:
            return 0
        try:
            names = os.listdir(self.options.directory)
        except OSError:
            return 0
        loaded, newest = 0, float("-inf")
        orphans: list[tuple[str, float]] = []
        for name in names:
            path = self._path(name)
            try:
                model, key = self._read(path, now)
            except (OSError, *_UNREADABLE) as error:
                if name.removesuffix(".tmp") in FIXED_KEYS or name.removesuffix(".tmp") in pod_uids:
                    log.warning("prediction checkpoint %s is dropped: %s", path, error)
                    _remove(path)
                continue
            if key != name:
                if isinstance(key, str) and name == f"{key}.tmp":  # an agent was killed before it had renamed it
                    _remove(path)
                continue
            written = model.updated if model.sampled is None else model.sampled
            newest = max(newest, written)
            if name in FIXED_KEYS or name in pod_uids:
                self.models.setdefault(name, model)  # training that begins anew goes on with what it has learned since
                loaded += 1
            else:
                orphans.append((path, written))
        for path, written in orphans:
            if newest - written > ORPHANED:
                _remove(path)
        return loaded

    def recall(self, pod_uids: Iterable[str], now: float) -> None:
        """Load the checkpoints of pods that :meth:`restore` did not know of: a kubelet that starts lists its pods late."""
        if not self.options.directory:
            return
        for uid in pod_uids:
            if uid in self.models:
                continue
            try:
                model, key = self._read(self._path(uid), now)
            except (OSError, *_UNREADABLE):
                continue  # of a new pod there is none
            if key == uid:
                self.models[uid] = model

    def _read(self, path: str, now: float) -> tuple[Model, Any]:
        """A checkpoint and whose it is. Raises OSError, or what says that it is none."""
        if not os.path.isfile(path):  # a pipe would never end
            raise FileNotFoundError("it is no file")
        with open(path, "rb") as file:
            data = orjson.loads(file.read(_LARGEST))
        return self._load(data, now), data.get("UID")

    def _load(self, data: dict[str, Any], now: float) -> Model:
        cpu = DecayingHistogram.from_checkpoint(AGENT_CPU, self.options.cpu_half_life, data["CPU"])
        memory = DecayingHistogram.from_checkpoint(AGENT_MEMORY, self.options.memory_half_life, data["Memory"])
        try:
            updated = parse_time(data["LastUpdated"])
        except (TimeError, KeyError):
            updated = now
        return Model(cpu, memory, updated=now, saved=now, sampled=min(updated, LATEST))


def _remove(path: str) -> None:
    try:
        seams.files().unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error.strerror)
