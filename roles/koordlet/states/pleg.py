"""Pod lifecycle events from cgroup directories: the kubelet is asked at once when a pod appears (KLO-SI-02).

A resize in place makes no directory. Before the kubelet carries one out it replaces its file of what pods are allocated, which is watched:
a CPU burst that is larger than the new limit has to go first, or the kernel refuses that limit (SCH-RSZ-05).

Level directories that are missing at the start or made anew later are found by watching their parents.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from roles.koordlet.host.cgroup import BESTEFFORT, BURSTABLE, Cgroups
from roles.koordlet.host.inotify import Inotify

log = logging.getLogger(__name__)

#: Of the kubelet, below its directory.
ALLOCATED = "allocated_pods_state"


class Pleg:
    """Calls ``on_pod`` when a pod's or a container's directory appears or a pod's goes away, and when a pod is resized."""

    def __init__(self, cgroups: Cgroups, on_pod: Callable[[], None]) -> None:
        self._cgroups = cgroups
        self._on_pod = on_pod
        self._inotify: Inotify | None = None

    def _levels(self) -> list[str]:
        """kubepods and the two levels below it (absolute, cpu hierarchy)."""
        names = (self._cgroups.kubepods, self._cgroups.qos_dir(BURSTABLE), self._cgroups.qos_dir(BESTEFFORT))
        return [self._cgroups.subsystem_dir("cpu", n) for n in names]

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to watch; where the kernel refuses, pods are only polled, and the log says so."""
        try:
            self._inotify = Inotify()
            self._watch()
        except OSError as error:
            log.error("cgroup directories cannot be watched (%s): new pods are seen at the next --kubelet-sync-interval", error)
            self.stop(loop)
            return
        loop.add_reader(self._inotify.fd, self._ready)

    def relocate(self) -> None:
        """Watch where the kubelet's directories turned out to be."""
        try:
            self._watch()
        except OSError as error:
            log.warning("a cgroup directory cannot be watched: %s", error)

    def _watch(self) -> None:
        """Watch what exists: the hierarchy's root, the levels, and the pods in them (for their containers)."""
        inotify = self._inotify
        if inotify is None:
            return
        inotify.watch(self._cgroups.subsystem_dir("cpu"))
        inotify.watch(self._cgroups.root.kubelet)
        for path in inotify.paths:
            if not os.path.isdir(path):
                inotify.unwatch(path)
        for level in self._levels():
            if not inotify.watch(level):
                continue
            with os.scandir(level) as entries:
                for entry in entries:
                    if self._cgroups.pod_uid_of(entry.name) and entry.is_dir(follow_symlinks=False):
                        inotify.watch(entry.path)

    def _ready(self) -> None:
        inotify = self._inotify
        if inotify is None:
            return
        wanted = False
        levels = set(self._levels())
        try:
            for event in inotify.read():
                if event.path == self._cgroups.root.kubelet:
                    wanted = wanted or event.name == ALLOCATED
                elif event.path in levels and self._cgroups.pod_uid_of(event.name):
                    wanted = True
                    path = os.path.join(event.path, event.name)
                    # a kernel tells the parent of the end of a group, and not always the watch of the group itself
                    inotify.watch(path) if event.created else inotify.unwatch(path)
                elif os.path.join(event.path, event.name) in levels:
                    self._watch()
                elif event.created and self._cgroups.pod_uid_of(os.path.basename(event.path)):
                    wanted = wanted or self._cgroups.container_id_of(event.name) is not None
            if inotify.overflowed:
                inotify.overflowed = False
                self._watch()
                wanted = True
        except OSError as error:
            log.warning("a cgroup directory cannot be watched: %s", error)
        if wanted:
            self._on_pod()

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._inotify is not None:
            loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None
