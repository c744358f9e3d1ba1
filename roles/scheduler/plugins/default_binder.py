"""DefaultBinder: posts the Binding with the pod's UID, so that a re-created pod of the same name is never bound."""

from __future__ import annotations

from collections.abc import Sequence

from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.events import UNSCHEDULED_POD, Action, Subscription
from roles.scheduler.framework.interfaces import Bind
from roles.scheduler.framework.status import SKIP, SUCCESS, Status, error


class DefaultBinder(Bind):
    """Errors of the API server come out as exceptions (koord.kube.errors); the binder judges them."""

    name = "DefaultBinder"

    def subscriptions(self) -> Sequence[Subscription]:
        # A pod that the API server would not have bound as it is (422) is worth another try once it is another.
        return (Subscription(UNSCHEDULED_POD, Action.ALL),)

    async def bind(self, ctx: CycleContext, node: str) -> Status:
        client = self.handle.client
        if client is None:
            return error("no API server to bind at")
        pod = ctx.pod
        if pod.reservation:
            return SKIP  # there is no such pod at the API server
        await client.bind(pod.namespace, pod.name, node, uid=pod.pod.metadata.uid or None)
        return SUCCESS
