"""What the hook service answers: a request to a context, the hooks of its stage, a response (KA-RH-01)."""

from __future__ import annotations

from koord.protocols import runtimehook_pb2 as pb
from roles.koordlet.hooks import messages
from roles.koordlet.hooks.context import Stage
from roles.koordlet.hooks.delivery import Delivery

SERVICE = "runtime.v1alpha1.RuntimeHookService"
POD_STAGES = (Stage.PRE_RUN_POD_SANDBOX, Stage.POST_STOP_POD_SANDBOX)
CONTAINER_STAGES = (
    Stage.PRE_CREATE_CONTAINER,
    Stage.PRE_START_CONTAINER,
    Stage.POST_START_CONTAINER,
    Stage.POST_STOP_CONTAINER,
    Stage.PRE_UPDATE_CONTAINER,
)


class HookService:
    """One method a stage. Raises HookError where the failure policy says so, ValueError for a request that cannot be read."""

    def __init__(self, delivery: Delivery, runtime: str) -> None:
        self._delivery = delivery
        self._runtime = runtime

    async def look_up(self, request: pb.PodSandboxHookRequest | pb.ContainerResourceHookRequest) -> None:
        """What has to be known of the pod before the hooks are asked."""
        annotations = request.annotations if isinstance(request, pb.PodSandboxHookRequest) else request.pod_annotations
        await self._delivery.look_up(request.pod_meta.uid, annotations)

    def pod(self, stage: Stage, request: pb.PodSandboxHookRequest) -> pb.PodSandboxHookResponse:
        delivery = self._delivery
        pod = messages.pod_context(request, delivery.cgroups, strict=delivery.strict)
        return messages.pod_response(request, delivery.pod(stage, pod))

    def container(self, stage: Stage, request: pb.ContainerResourceHookRequest) -> pb.ContainerResourceHookResponse:
        delivery = self._delivery
        context = messages.container_context(request, delivery.cgroups, self._runtime, strict=delivery.strict)
        return messages.container_response(request, delivery.container(stage, context))
