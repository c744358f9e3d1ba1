"""Defects of the shared library: leases, informers, requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roles.sandbox.world.faults import Fault
from roles.sandbox.world.mutants.planting import Mutants, nothing, replace, wrap
from roles.sandbox.world.spec import Workload

MUTANTS = Mutants(minutes=0.5, pods=16, koordlets=0, deschedulers=1, hostile=0)


@MUTANTS.add(
    "standby-binds",
    "a scheduler that lost its lease goes on",
    rule="OneLeaderWrites",
    workloads=tuple(Workload(f"web-{at}", 1, 250, 128, at=float(at)) for at in range(24, 30)),
    plan=(Fault(2.0, "freeze", "scheduler-a", 22.0), Fault(23.5, "delay", "scheduler-b", 8.0, amount=1.0, method="POST")),
)
def _standby_binds() -> None:
    from koord import seams

    def renew(old: Any) -> Any:
        async def in_its_own_eyes(self: Any, lease: Any) -> None:
            await old(self, lease)
            while True:
                self.leadership.extend(self._clock())
                await seams.sleep(1.0)

        return in_its_own_eyes

    wrap("koord.kube.leases:LeaderElector._renew", renew)


@MUTANTS.add("deletions-are-missed", "an informer does not hear of deletions")
def _no_deletions() -> None:
    wrap("koord.kube.store:Informer.forget", nothing())


@MUTANTS.add("a-stalled-watch-is-believed", "nobody looks whether a silent watch is alive", kinds=("stall",))
def _stalled() -> None:
    replace("koord.kube.reflector:QUIET", (1e9, 1e9))


@MUTANTS.add(
    "expired-versions-are-kept",
    "410 Gone does not lead to a new list",
    workloads=(Workload("web", 2, 250, 128), Workload("late", 2, 250, 128, at=20.0)),
    plan=(Fault(3.0, "resume", "scheduler-a", 8.0), Fault(3.0, "resume", "scheduler-b", 8.0), Fault(8.0, "compact")),
)
def _no_relist() -> None:
    replace("koord.kube.reflector:must_list", lambda error: False)


def _observed_at(moment: float) -> Callable[[Any], Any]:
    def make(old: Any) -> Any:
        def observe(self: Any, lease: Any) -> None:
            old(self, lease)
            if self._holder(lease) != self.who.name:
                self._observed_at = self._clock() + moment

        return observe

    return make


MUTANTS.wrap(
    "a-lease-is-taken-at-once",
    "a standby does not wait for the lease to run out",
    "koord.kube.leases:_Lease._observe",
    _observed_at(-1e9),
    kinds=("freeze", "refuse"),
    rule="OneLeaderWrites",
)
MUTANTS.wrap(
    "a-lease-is-never-taken-over",
    "a standby waits for ever",
    "koord.kube.leases:_Lease._observe",
    _observed_at(1e9),
    rule="LeadersLead",
    workloads=(Workload("web", 2, 250, 128),),
    plan=(Fault(5.0, "kill", "manager-a", 5.0),),
)


@MUTANTS.add("only-the-first-address-is-tried", "of a server with two addresses the second one is never asked", kinds=("dead-address",))
def _first_address() -> None:
    async def reach(self: Any, loop: Any, connection: Any, address: tuple[str, int]) -> None:
        first = (await loop.getaddrinfo(*address))[0][4]
        await loop.create_connection(lambda: connection, *first)

    replace("koord.kube.pool:Pool._reach", reach)


@MUTANTS.add(
    "a-lease-is-kept-at-the-end", "a leader that ends in order does not give its lease back", rule="LeadersHandOver", kinds=("terminate",)
)
def _kept() -> None:
    async def release(self: Any) -> None:
        return

    replace("koord.kube.leases:_Lease.release", release)


@MUTANTS.add(
    "the-fence-is-asked-once",
    "a write is sent though the lease has run out, and that it has is noticed some seconds later",
    rule="OneLeaderWrites",
    workloads=tuple(Workload(f"web-{at}", 1, 250, 128, at=float(at)) for at in range(14, 26)),
    plan=(Fault(2.0, "lose-request", "scheduler-a", 40.0, method="PUT /apis/coordination"),),
)
def _fence() -> None:
    from koord import seams

    def renew(old: Any) -> Any:
        async def late(self: Any, lease: Any) -> None:
            await old(self, lease)
            await seams.sleep(12.0)

        return late

    wrap("koord.kube.leases:LeaderElector._renew", renew)

    async def send(old: Any, self: Any, data: bytes, fence: Any = None, **options: Any) -> Any:
        return await old(self, data, None, **options)

    wrap("koord.kube.connection:Connection.send", lambda old: lambda self, *args, **options: send(old, self, *args, **options))
    replace("roles.scheduler.app:App.may_write", lambda self: True)
    replace("koord.kube.transport:_too_late", lambda fence, pause: False)


@MUTANTS.add(
    "ghosts-are-believed",
    "nobody looks whether the API server has lost what it knew",
    rule="NothingForGhosts",
    workloads=(Workload("web", 2, 250, 128), Workload("huge", 1, 9000, 128)),
    plan=(Fault(12.0, "wipe", "", 1.0), Fault(29.0, "kill", "scheduler-a", 100.0)),
)
def _ghosts() -> None:
    async def went_back(self: Any) -> bool:
        return False

    replace("koord.kube.reflector:Reflector._went_back", went_back)
    replace("koord.kube.reflector:older", lambda version, than: False)


@MUTANTS.add(
    "bookmarks-are-ignored",
    "a watch that was told how far it has come does not remember it",
    rule="BookmarksSpareLists",
    kinds=("bookmark",),
)
def _no_bookmarks() -> None:
    def event(old: Any) -> Any:
        def ignoring(self: Any, event: Any, meta: Any) -> Any:
            from koord.kube.wire import ends_initial

            known = event.type != "BOOKMARK" or (self._initial is not None and ends_initial(event))
            return old(self, event, meta) if known else None

        return ignoring

    wrap("koord.kube.reflector:Reflector._event", event)


# -- the API server ------------------------------------------------------------------------------------------------------------


@MUTANTS.add("the-disk-is-behind", "one write in five is acknowledged and not on disk", rule="AcknowledgedIsKept", kinds=("restart",))
def _behind() -> None:
    count = 0

    def put(old: Any) -> Any:
        def some(self: Any, *args: Any) -> None:
            nonlocal count
            count += 1
            if count % 5:
                old(self, *args)

        return some

    wrap("koord.apiserver.disk:Disk.put", put)


@MUTANTS.add("versions-are-given-out-twice", "a restarted API server counts its versions from an older one on", kinds=("restart",))
def _versions() -> None:
    replace("koord.apiserver.disk:BIRTH", -50)


@MUTANTS.add(
    "bindings-are-overwritten",
    "a second binding moves a pod, and a scheduler without an answer tries another node",
    rule="BoundOnce",
    workloads=(Workload("web", 4, 250, 128, at=2.0),),
    plan=(Fault(1.5, "lose-answer", "scheduler-a", 10.0, method="POST"), Fault(1.5, "lose-answer", "scheduler-b", 10.0, method="POST")),
)
def _rebound() -> None:
    from koord.kube.errors import Unreachable

    def bind(old: Any) -> Any:
        async def anew(core: Any, namespace: str, name: str, body: Any, options: Any) -> Any:
            bucket = core.store.bucket(core.resources.by_path("", "v1", "pods").bucket)
            entry = bucket.get(namespace, name)
            if entry is None or not entry.obj["spec"].get("nodeName"):
                return await old(core, namespace, name, body, options)
            moved = entry.copy()
            moved["spec"]["nodeName"] = body["target"]["name"]
            bucket.put(namespace, name, moved)
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

        return anew

    def sent(old: Any) -> Any:
        async def twice(self: Any, namespace: str, pod: str, node: str, uid: str | None = None) -> None:
            try:
                await old(self, namespace, pod, node, uid)
            except Unreachable:
                await old(self, namespace, pod, "sim-001" if node == "sim-000" else "sim-000", uid)

        return twice

    wrap("koord.apiserver.rest.subresources:bind", bind)
    wrap("koord.kube.client:Client.bind", sent)
