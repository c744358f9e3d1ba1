"""What a plugin may ask for in its turn. A turn is a generator: it yields an effect and is told whether that was done.

So plugins decide without doing: the same turn runs against a cluster, in a dry run, and in a test that answers for the cluster.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import msgspec

from koord.api.objects import Node, Pod
from koord.decisions.record import Record
from roles.descheduler.relief import Relief

Number = float | int | str


class PluginError(Exception):
    """A plugin could not do its work in this round; the profile's other plugins still run, later profiles do not."""


class Evict(msgspec.Struct, frozen=True, gc=False):
    """One pod is to leave its node, and why. `target` is where the plugin reckons that it fits, "" when it did not ask.

    `dry_run` is the plugin's own switch. `numbers` are what the reason rests on. `relief`: where the pod may go."""

    pod: Pod
    reason: str
    target: str = ""
    numbers: dict[str, Number] = {}
    dry_run: bool = False
    relief: Relief | None = None


class Cordon(msgspec.Struct, frozen=True, gc=False):
    """A node is to take no new pods, or (`on` False) to take them again."""

    node: Node
    on: bool
    reason: str
    dry_run: bool = False


class Annotate(msgspec.Struct, frozen=True, gc=False):
    """A pod is to carry an annotation."""

    pod: Pod
    key: str
    value: str
    reason: str
    dry_run: bool = False


class Tell(msgspec.Struct, frozen=True, gc=False):
    """What has become of pods that left (their uids): whether it helped, and in words. Nothing is to be done but to remember it."""

    node: Node
    pods: tuple[str, ...]
    helped: bool
    message: str
    numbers: dict[str, Number] = {}


class Rehearse(msgspec.Struct, frozen=True, gc=False):
    """A question to the scheduler: whether a waiting pod would be placed once these pods have left their nodes, and they after it on
    others. The answer is False where it cannot be asked. What was answered True counts for the later questions of the round."""

    pod: Pod
    leaving: tuple[Pod, ...]


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Nothing is to be done: the plugin has worked for a while, and others in the process may have their turn."""


PAUSE = Pause()
Effect = Evict | Cordon | Annotate | Tell | Rehearse | Pause
Turn = Generator[Effect, bool, None]


@dataclass(slots=True)
class Outcome:
    """What a round did, or why there was none."""

    records: list[Record] = field(default_factory=list)
    nodes: int = 0
    evicted: int = 0
    skipped: str = ""
    errors: list[str] = field(default_factory=list)
    turns: list[tuple[str, float]] = field(default_factory=list)  # plugin and the seconds of its turn
