"""NVIDIA cards by NVML, where the optional package ``nvidia-ml-py`` and the driver are there (KLO-DEV-01).

A container finds the driver's library in the machine's root. Cards whose PCI function the driver does not hold are left out.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import re
import threading
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

from koord import seams
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.root import HostRoot, rooted
from roles.koordlet.sensing.gpulibrary import DEADLINE, SILENT, GPUCard, GPUProcess

log = logging.getLogger(__name__)

VENDOR = "nvidia"
_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
#: Xids that a program causes: its own fault, not the card's.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
NOT_SUPPORTED = "DeviceHealthCheckNotSupported"
EVENT_WAIT_MS = 5000
#: A card that answers and had no new Xid for so long is healthy again (seconds).
RECOVERS_AFTER = 600.0
#: How often cards that could not be described are looked at again (seconds).
LOOK_AGAIN = 60.0


class NVMLFailedError(HostError):
    """NVML does not answer."""


def bus_address(text: str) -> str:
    """NVML's PCI address as sysfs spells it: four digits of domain, lower case."""
    domain, separator, rest = text.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}{separator}{rest}" if rest.count(":") == 1 else f"0000:{text.lower()}"


def driver_addresses(root: HostRoot) -> frozenset[str]:
    """PCI functions that the nvidia driver holds."""
    try:
        names = os.listdir(root.sys_path("bus/pci/drivers/nvidia"))
    except OSError:
        return frozenset()
    return frozenset(bus_address(name) for name in names if _ADDRESS.fullmatch(name))


_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_PLACES = (
    *(f"/usr/lib/{arch}-linux-gnu" for arch in ("x86_64", "aarch64")),
    "/usr/lib64",
    "/usr/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/opt/nvidia/lib64",
)


def driver_library(root: HostRoot) -> str | None:
    """The driver's library in the machine's own root; None where the loader has to find it."""
    if root.root == "/":
        return None
    paths = (rooted(root.root, f"{place}/{_LIBRARY}") for place in _LIBRARY_PLACES)
    return next((path for path in paths if os.path.exists(path)), None)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Health:
    """What is wrong with which card. Written by the event thread, read by the tick."""

    def __init__(self, clock: Callable[[], float] = seams.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._problems: dict[str, tuple[str, float]] = {}

    def xid(self, uuids: list[str], number: int) -> None:
        """An Xid of cards; those of applications do not count."""
        if number in APPLICATION_XIDS:
            return
        with self._lock:
            for uuid in uuids:
                if self._problems.get(uuid, ("",))[0] != f"Xid{number}":
                    log.error("card %s is not healthy: Xid %d", uuid, number)
                self._problems[uuid] = (f"Xid{number}", self.clock())

    def unsupported(self, uuid: str) -> None:
        with self._lock:
            self._problems[uuid] = (NOT_SUPPORTED, float("inf"))

    def problem(self, uuid: str, *, answers: bool) -> str:
        """The reason in force; one of an event goes when the card answers and stayed quiet."""
        with self._lock:
            reason, since = self._problems.get(uuid, ("", 0.0))
            if reason and answers and self.clock() - since >= RECOVERS_AFTER:
                log.info("card %s answers and had no Xid for %g s: healthy again", uuid, RECOVERS_AFTER)
                del self._problems[uuid]
                return ""
            return reason


class NVML:
    """The library as this agent sees it. :func:`load` makes one."""

    def __init__(self, library: Any, root: HostRoot, health: Health) -> None:
        self._nvml = library
        self._root = root
        self.health = health
        self._sampled: dict[str, tuple[int, frozenset[int]]] = {}
        """Of each card the time of the newest sample, and the processes that have ever had one."""
        self._static: dict[str, GPUCard] = {}
        self._handles: dict[str, Any] = {}
        self._missing: dict[int, str] = {}
        """Cards that could not be described, by index, and why."""
        self._look_at = 0.0
        self._silent: dict[str, float] = {}
        """Since when a card answers with errors alone."""
        self._learn()

    def _learn(self) -> None:
        """The cards and where they sit; one that is lost hides no other. Raises NVMLFailedError where there is none."""
        nvml, addresses = self._nvml, driver_addresses(self._root)
        self._look_at = self.health.clock() + LOOK_AGAIN
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            raise NVMLFailedError(f"NVML: {error}") from None
        before, self._missing = self._missing, {}
        for index in range(count):
            try:
                self._learn_card(index, addresses, driver)
            except nvml.NVMLError as error:
                self._missing[index] = f"NVML: card {index}: {error}"
        if self._missing and not self._static:
            raise NVMLFailedError("; ".join(self._missing.values()))
        for index, text in self._missing.items():
            if before.get(index) != text:
                log.error("%s; it is looked at again", text)

    def _learn_card(self, index: int, addresses: Set[str], driver: str) -> None:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        bus_id = bus_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        if bus_id not in addresses:
            return
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        node, pcie = self._place(bus_id)
        self._static[uuid] = GPUCard(
            uuid=uuid,
            minor=int(nvml.nvmlDeviceGetMinorNumber(handle)),
            memory_total=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            model=_text(nvml.nvmlDeviceGetName(handle)),
            vendor=VENDOR,
            driver=driver,
            numa_node=node,
            pcie_root=pcie,
            bus_id=bus_id,
        )
        self._handles[uuid] = handle

    def _place(self, bus_id: str) -> tuple[int, str]:
        """NUMA node (0 for a card that belongs to none) and PCIe root of a function."""
        directory = self._root.sys_path("bus/pci/devices", bus_id)
        found = _PCIE_ROOT.search(os.path.realpath(directory))
        try:
            with open(os.path.join(directory, "numa_node"), encoding="ascii", errors="replace") as file:
                node = max(int(file.read()), 0)
        except (OSError, ValueError):
            node = -1
        return node, found[0] if found is not None else ""

    def cards(self) -> tuple[GPUCard, ...]:
        if self._missing and self.health.clock() >= self._look_at:
            try:
                self._learn()
            except NVMLFailedError as error:  # the health of those that are known has to be told all the same
                log.warning("%s; lost cards are looked at again in %g s", error, LOOK_AGAIN)
        out: list[GPUCard] = []
        for uuid, card in self._static.items():
            answers = self._answers(uuid)
            problem = self.health.problem(uuid, answers=answers)
            if not problem and not answers and self.health.clock() - self._silent[uuid] >= DEADLINE:
                problem = SILENT
            out.append(card if not problem else replace(card, problem=problem))
        return tuple(sorted(out, key=lambda c: (c.minor, c.uuid)))

    def _answers(self, uuid: str) -> bool:
        """A card that fell off the bus says so here, whether or not anybody heard its Xid."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(self._handles[uuid])
        except self._nvml.NVMLError as error:
            if uuid not in self._silent:
                self._silent[uuid] = self.health.clock()
                log.error("card %s does not answer: %s", uuid, error)
            return False
        if self._silent.pop(uuid, None) is not None:
            log.info("card %s answers again", uuid)
        return True

    def processes(self) -> list[GPUProcess]:
        nvml = self._nvml
        out: list[GPUProcess] = []
        for uuid, handle in self._handles.items():
            try:
                memory = {int(p.pid): int(p.usedGpuMemory or 0) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
                if not memory:
                    continue
                used = self._utilization(uuid, handle, memory.keys())
            except nvml.NVMLError as error:
                log.debug("card %s: %s", uuid, error)
                continue
            out += [GPUProcess(pid, uuid, used[pid], size) for pid, size in memory.items() if pid in used]
        return out

    def _utilization(self, uuid: str, handle: Any, running: Set[int]) -> dict[int, float]:
        """Use of multiprocessors by process: of each the newest sample since the last reading, at first of the driver's whole buffer.

        NVML has samples only of those that worked: who has none since the last reading, but had one ever, uses nothing now.
        """
        since, sampled = self._sampled.get(uuid, (0, frozenset()))
        newest = dict.fromkeys(sampled & running, (since, 0.0))
        try:
            found = self._nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except self._nvml.NVMLError_NotFound:
            found = ()
        for sample in found:
            pid, at = int(sample.pid), int(sample.timeStamp)
            if pid and at > newest.get(pid, (0, 0.0))[0]:
                newest[pid] = (at, float(sample.smUtil))
        self._sampled[uuid] = (max((at for at, _ in newest.values()), default=since), frozenset(newest))
        return {pid: use for pid, (_, use) in newest.items()}

    # -- health --------------------------------------------------------------------------------------------------------------

    def watch(self, stop: threading.Event) -> None:
        """Wait for Xids until ``stop`` is set; runs in a thread of its own."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            log.warning("health of NVIDIA cards is not watched: %s", error)
            return
        asked: set[str] = set()
        watched, complaint = 0, ""
        while not stop.is_set():
            for uuid, handle in list(self._handles.items()):
                if uuid in asked:
                    continue
                asked.add(uuid)
                try:
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                    watched += 1
                except nvml.NVMLError:
                    self.health.unsupported(uuid)
            if not watched:  # a card that was lost may come back
                stop.wait(EVENT_WAIT_MS / 1000)
                continue
            try:
                event = nvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
            except nvml.NVMLError_Timeout:
                complaint = ""
                continue
            except nvml.NVMLError as error:
                if str(error) != complaint:
                    log.warning("waiting for events of NVIDIA cards: %s", error)
                complaint = str(error)
                stop.wait(EVENT_WAIT_MS / 1000)
                continue
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self.health.xid(self._of_event(event), int(event.eventData))
        nvml.nvmlEventSetFree(events)

    def _of_event(self, event: Any) -> list[str]:
        """The card of an event; all cards where it cannot be told."""
        try:
            uuid = _text(self._nvml.nvmlDeviceGetUUID(event.device))
        except self._nvml.NVMLError:
            uuid = ""
        return [uuid] if uuid in self._handles else list(self._handles)


def load(root: HostRoot, clock: Callable[[], float] = seams.monotonic) -> NVML | None:
    """NVML with its event thread, or None with the reason in the log: no package, no driver, no card."""
    if not driver_addresses(root):
        return None
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        log.warning("there are NVIDIA cards, but the package nvidia-ml-py is not installed: they are not read")
        return None
    if (path := driver_library(root)) is not None:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)  # nvidia-ml-py asks for it by name and then finds it loaded
        except OSError as error:
            log.warning("%s cannot be loaded: %s", path, error)
    try:
        library.nvmlInit()
        found = NVML(library, root, Health(clock))
    except (library.NVMLError, NVMLFailedError) as error:
        log.warning("NVML cannot be used, NVIDIA cards are not read: %s", error)
        return None
    threading.Thread(target=found.watch, args=(threading.Event(),), name="nvml events", daemon=True).start()
    log.info("NVML knows %d cards", len(found.cards()))
    return found
