"""ImageLocality: prefers nodes that hold the pod's images, the larger and the more widely spread the better (SCH-KS-08)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, Vector
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Score

_MIB = 1 << 20
_MIN = 23 * _MIB
_MAX_PER_CONTAINER = 1000 * _MIB


class ImageColumns(Columns):
    """Which slots hold an image, and how large it is there (bytes). `version` moves when any of it changes."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[int, int]] = {}
        self.version = 0

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def node_set(self, slot: int, old: NodeView | None, new: NodeView) -> None:
        self._put(slot, old.images if old is not None else {}, new.images)

    def node_removed(self, slot: int, old: NodeView) -> None:
        self._put(slot, old.images, {})

    def _put(self, slot: int, before: Mapping[str, int], now: Mapping[str, int]) -> None:
        if before == now:
            return
        self.version += 1
        for image in before.keys() - now.keys():
            holders = self._holders[image]
            holders.pop(slot, None)
            if not holders:
                del self._holders[image]
        for image, size in now.items():
            self._holders.setdefault(image, {})[slot] = size

    def holders(self, image: str) -> dict[int, int]:
        """Size by slot of an image, {} for one that no node holds."""
        return self._holders.get(image, {})


class ImageLocality(Score):
    """Not normalized: 0..100 by itself."""

    name = "ImageLocality"
    score_reads = 0  # the stamp moves with the images of any node

    def __init__(self, args: None, handle: Handle) -> None:
        super().__init__(args, handle)
        self._images = handle.cluster.register("ImageLocality", ImageColumns())

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        total = ctx.cluster.live
        wanted = [self._images.holders(normalized(image)) for image in ctx.pod.shape.images]
        if not any(wanted) or not total:
            return 0.0
        sums = np.zeros(ctx.cluster.capacity)
        for holders in wanted:
            spread = len(holders) / total
            for slot, size in holders.items():
                sums[slot] += math.floor(size * spread)
        return np.floor(100.0 * (np.clip(sums, _MIN, self._cap(ctx)) - _MIN) / (self._cap(ctx) - _MIN))[rows]

    def score_stamp(self, ctx: CycleContext) -> tuple[int, int]:
        # A node more or less changes the spread of every image.
        return (self._images.version, ctx.cluster.live if self._images.version else 0)

    @staticmethod
    def _cap(ctx: CycleContext) -> float:
        return float(_MAX_PER_CONTAINER * max(1, len(ctx.pod.shape.images)))


def normalized(image: str) -> str:
    """The image name with its tag written out, as nodes report it."""
    if "@" not in image and image.rfind(":") <= image.rfind("/"):
        return f"{image}:latest"
    return image
