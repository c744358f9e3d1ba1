"""A tenant of a world who tries what is not his: pods that carry what only others may write, made and changed under his own name."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.kinds import PODS, ROLEBINDINGS, ROLES, VALIDATINGWEBHOOKCONFIGURATIONS
from koord.kube.client import Client
from koord.kube.errors import AlreadyExists, ApiError, NotFound, from_response
from roles.sandbox.builders import SCHEDULER, container, obj
from roles.sandbox.hostile import ATTACKS, Attack
from roles.sandbox.world.programs import connection
from roles.sandbox.world.spec import NAMESPACE

if TYPE_CHECKING:
    from roles.sandbox.world.environment import Environment

Obj = dict[str, Any]
NAME = "tenant"
_REFUSED = (400, 403, 422)
_DENIED = "denied the request"  # a mutating webhook's no comes with status 500
_AGAIN = 30  # times that what was refused is tried again, for a moment in which nobody is there to refuse it
_BREATH = 2.0  # seconds after a failure that says nothing about the request


def draw(rng: random.Random, count: int) -> tuple[Attack, ...]:
    """So many attacks, in any order; all of them where there are no more."""
    return tuple(rng.sample(ATTACKS, min(count, len(ATTACKS))))


def pod_of(attack: Attack, suffix: str = "", *, clean: bool = False) -> Obj:
    """A small pod that carries an attack, or the same pod without its annotations."""
    amounts = {"cpu": "20m", "memory": "16Mi"}
    spec = {
        "schedulerName": SCHEDULER,
        "priorityClassName": "koord-prod",
        "terminationGracePeriodSeconds": 1,
        "containers": [container("main", "app", amounts, amounts)],
    }
    labels = {"app": "hostile", "koordinator.sh/qosClass": "LS", **attack.labels}
    annotations = {} if clean else dict(attack.annotations)
    return obj(PODS, f"hostile-{attack.name}{suffix}", NAMESPACE, labels=labels, annotations=annotations, spec=spec)


async def policies(client: Client) -> None:
    """The policies of who may write what, as they are shipped, and a tenant who may write pods and nothing else."""
    from roles.tools import policies as shipped

    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "patch"]}
    who = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": NAME}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME}
    await client.create(ROLES, {"metadata": {"name": NAME}, "rules": [rule]}, NAMESPACE)
    await client.create(ROLEBINDINGS, {"metadata": {"name": NAME}, "roleRef": role, "subjects": [who]}, NAMESPACE)
    for document in (*shipped.allocations(), *shipped.bounds()):
        plural = "ies" if document["kind"].endswith("Policy") else "ybindings"
        path = f"/apis/{document['apiVersion']}/validatingadmissionpolic{plural}"
        status, raw = await client.raw("POST", path, document)
        if status != 201:
            raise from_response(status, raw)


class Tenant:
    """Tries one attack after the other within `seconds`: at creation, and where that is refused, on a pod that is there."""

    def __init__(self, world: Environment, attacks: tuple[Attack, ...], seconds: float) -> None:
        self._world = world
        self._attacks = attacks
        self._pause = seconds / max(len(attacks), 1)

    async def main(self) -> None:
        """Live until everything was tried."""
        me = replace(connection(NAME), headers=(*connection(NAME).headers, ("Impersonate-User", NAME)))
        async with Client(connection(NAME), role="users") as plain, Client(me, role="users") as client:
            while not (await self._answered(lambda: plain.list(VALIDATINGWEBHOOKCONFIGURATIONS))).items:
                await seams.sleep(1.0)
            for attack in self._attacks:
                begun = seams.monotonic()
                await self._try(client, attack)
                await seams.sleep(max(0.0, self._pause - (seams.monotonic() - begun)))
            stubborn = [attack for attack in self._attacks if attack.refused]
            for number in range(_AGAIN if stubborn else 0):
                attack = stubborn[number % len(stubborn)]
                body = pod_of(attack, f"-again-{number}")
                if not await self._refused(partial(client.create, PODS, body, NAMESPACE)):
                    self._tell(attack, "create", "")
                await seams.sleep(_BREATH)

    async def _try(self, client: Client, attack: Attack) -> None:
        refused = await self._refused(lambda: client.create(PODS, pod_of(attack), NAMESPACE))
        self._tell(attack, "create", refused)
        if refused and not await self._refused(lambda: client.create(PODS, pod_of(attack, clean=True), NAMESPACE)):
            change = {"metadata": {"annotations": attack.annotations}}
            name = f"hostile-{attack.name}"
            self._tell(attack, "change", await self._refused(lambda: client.patch(PODS, name, change, NAMESPACE)))

    def _tell(self, attack: Attack, what: str, refused: str) -> None:
        self._world.history.tell("hostile", attack.name, f"{what} refused: {refused[:1000]}" if refused else f"{what} taken")

    async def _refused(self, step: Callable[[], Awaitable[Any]]) -> str:
        """Why a write was refused; "" when it was taken."""
        try:
            await self._answered(step)
        except ApiError as error:
            return str(error)
        return ""

    async def _answered(self, step: Callable[[], Awaitable[Any]]) -> Any:
        """A request, again and again until it has an answer that is about itself. Raises ApiError for a refusal."""
        while True:
            try:
                return await step()
            except (AlreadyExists, NotFound):
                return None
            except ApiError as error:
                if error.status in _REFUSED or _DENIED in error.message:
                    raise
                await seams.sleep(_BREATH)
