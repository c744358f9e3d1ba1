"""The people who keep a world's cluster in order: they taint nodes, move nodes between pools and label pods, so that pods are where they
should not be any more; and the workloads that mind. Only in worlds whose descheduler has plugins for that (`configuration.py`)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.kinds import NODES, PODS
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound
from roles.sandbox.nodes.fleet import node_name
from roles.sandbox.world.configuration import AGED, HERE, LOUD, POOL, TAINT, THERE
from roles.sandbox.world.programs import connection
from roles.sandbox.world.spec import NAMESPACE, Chore, Workload

if TYPE_CHECKING:
    from roles.sandbox.world.environment import Environment

NAME = "operators"
_MOST = 2000  # milli-CPU of a pod at most, so that another node has room for it now and then


def draw(rng: random.Random, nodes: int, minutes: float) -> list[Chore]:
    """One node is tainted, mostly for a while only; one changes its pool, and now and then back; two pods become loud."""
    until, chores = minutes * 60, list[Chore]()
    node, at = node_name(rng.randrange(nodes)), round(rng.uniform(15, until * 0.6), 1)
    chores.append(Chore(at, "taint", node))
    if rng.random() < 0.7:
        chores.append(Chore(round(at + rng.uniform(15, 45), 1), "clear", node))
    node, at = node_name(rng.randrange(nodes)), round(rng.uniform(15, until * 0.8), 1)
    chores.append(Chore(at, "pool", node, THERE))
    if rng.random() < 0.3:
        chores.append(Chore(round(at + rng.uniform(10, 30), 1), "pool", node, HERE))
    chores += [Chore(round(rng.uniform(15, until * 0.8), 1), "loud", "loud") for _ in range(2)]
    return sorted(chores, key=lambda chore: chore.at)


def workloads(rng: random.Random, nodes: int, minutes: float) -> list[Workload]:
    """One that is spread evenly, one that is bound to a pool, one that shuns loud pods, those, and one whose pods are not to get old.
    Some use so much that they have to be moved for that, too."""

    def one(name: str, replicas: int, **rest: Any) -> Workload:
        usage = rng.choice((20, 60, 60, 250))
        work = Workload(name, replicas, rng.choice((150, 300)), 128, usage=usage, at=round(rng.uniform(0, minutes * 20), 1))
        return replace(work, **rest)

    made = [
        one("even", nodes + rng.randint(0, 2), spread=1),
        one("bound", rng.randint(1, 4), pool=HERE),
        one("quiet", rng.randint(1, 3), shuns=LOUD),
        one("loud", rng.randint(2, 3)),
        one(AGED, rng.randint(1, 2), at=round(rng.uniform(0, 10), 1)),
    ]
    if rng.random() < 0.5:
        chosen = rng.randrange(len(made))
        made[chosen] = replace(made[chosen], min_available=max(1, made[chosen].replicas - 1))
    return made


class Operators:
    """Do their chores, each until it is done. A second life, after all was lost, does those again that are due."""

    def __init__(self, world: Environment, chores: list[Chore]) -> None:
        self.world = world
        self.chores = chores
        self._begun: float | None = None

    async def main(self) -> None:
        """Live until everything is done."""
        async with Client(connection(NAME), role=NAME) as client:
            if self._begun is None:
                self._begun = seams.monotonic()
            for chore in self.chores:
                await seams.sleep(max(0.0, chore.at - (seams.monotonic() - self._begun)))
                while not await self._done(client, chore):
                    await seams.sleep(1.0)
                self.world.history.tell("chore", chore.kind, str(chore))

    async def _done(self, client: Client, chore: Chore) -> bool:
        try:
            if chore.kind == "taint":
                await client.patch(NODES, chore.what, {"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}})
            elif chore.kind == "clear":
                await client.patch(NODES, chore.what, {"spec": {"taints": None}})
            elif chore.kind == "pool":
                await client.patch(NODES, chore.what, {"metadata": {"labels": {POOL: chore.value}}})
            else:
                await self._label(client, chore.what)
        except NotFound:
            return True
        except ApiError:
            return False
        return True

    async def _label(self, client: Client, app: str) -> None:
        """The first pod of a workload that is not loud yet becomes so."""
        found = await client.list(PODS, NAMESPACE, label_selector=f"app={app},!{LOUD}")
        for pod in sorted(found.items, key=lambda pod: str(pod["metadata"]["name"]))[:1]:
            await client.patch(PODS, pod["metadata"]["name"], {"metadata": {"labels": {LOUD: "yes"}}}, NAMESPACE)
