"""Every webhook: one row here, one module with its handler (MGR-WH-01)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from koord.api.objects import ConfigMap, ElasticQuota, Node, Object, Pod, Reservation, convert
from koord.api.quantity import QuantityError
from koord.config.gates import FeatureGates
from koord.kube.patch import copy_json, diff_json_patch
from roles.manager.webhooks import (
    binding,
    configmap_validate,
    eviction,
    node_mutate,
    node_validate,
    pod_mutate,
    pod_validate,
    quota,
    reservation_mutate,
)
from roles.manager.webhooks.review import Answer, Refusal, Request
from roles.manager.webhooks.view import View

Timer = Callable[[str, Awaitable[Any]], Awaitable[Any]]
"""Runs one plugin of a webhook and observes how long it took."""

Handler = Callable[[Request, View, Timer], Awaitable[Answer]]
_EQ, _EQ_GROUP = "scheduling-sigs-k8s-io-v1alpha1-elasticquota", "scheduling.sigs.k8s.io"
EVICTION_PATH = "/validate-pod-eviction"
_NOT_CONTROL_PLANE = {"matchExpressions": [{"key": "control-plane", "operator": "DoesNotExist"}]}
_OPTED_IN = {"matchLabels": {"pod.koordinator.sh/mutating-update": "true"}}
_SLO_CONFIG = {"matchExpressions": [{"key": "koordinator.sh/configmap-type", "operator": "In", "values": ["slo-controller-config"]}]}


@dataclass(frozen=True, slots=True)
class Registration:
    """An entry of the Mutating- or ValidatingWebhookConfiguration; `ignore` is failurePolicy Ignore."""

    name: str
    group: str
    resources: tuple[str, ...]
    operations: tuple[str, ...]
    ignore: bool = False
    namespace_selector: dict[str, Any] | None = None
    object_selector: dict[str, Any] | None = None
    version: str = "v1"
    account: str = ""
    """Only requests of this service account of koord's namespace are asked about."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A path with its handler, the gate that opens it and how it is registered."""

    path: str
    gate: str
    mutating: bool
    object_type: str
    handle: Handler
    registrations: tuple[Registration, ...]

    def active(self, gates: FeatureGates) -> bool:
        """Whether the path is served and registered."""
        return gates.enabled("WebhookFramework") and gates.enabled(self.gate)


Mutator = Callable[[dict[str, Any], Request, View], Awaitable[dict[str, Any]]]
Validator = Callable[[Request, View], Awaitable[None]]


def _mutating(name: str, mutate: Mutator, shape: type[Object]) -> Handler:
    async def handle(request: Request, view: View, timer: Timer) -> Answer:
        if request.object is None:
            return Answer()
        _check_shape(request, shape)
        try:
            changed = await timer(name, mutate(copy_json(request.object), request, view))
        except QuantityError as error:
            raise Refusal(f"the {shape.__name__} cannot be read: {error}", 400) from None
        return Answer(patch=diff_json_patch(request.object, changed))

    return handle


def _validating(name: str, validate: Validator, shape: type[Object] = Object) -> Handler:
    async def handle(request: Request, view: View, timer: Timer) -> Answer:
        _check_shape(request, shape)
        await timer(name, validate(request, view))
        return Answer()

    return handle


def _check_shape(request: Request, shape: type[Object]) -> None:
    """Mutating webhooks see custom resources before their schema does, and some parts have none. Raises Refusal naming the place."""
    for obj in (request.object, request.old_object):
        if obj is None:
            continue
        try:
            convert(obj, shape)
        except msgspec.ValidationError as error:
            raise Refusal(f"the {shape.__name__} cannot be read: {error}", 400) from None


async def _mutate_pod(request: Request, view: View, timer: Timer) -> Answer:
    # On UPDATE nothing is changed today: the webhook exists so that a pod can opt in later.
    if request.operation != "CREATE" or request.sub_resource or request.object is None:
        return Answer()
    _check_shape(request, Pod)
    pod = pod_mutate.working_copy(request.object)
    for name, step in pod_mutate.STEPS:
        pod = await timer(name, pod_mutate.run_step(step, pod, request, view))
    return Answer(patch=diff_json_patch(request.object, pod))


async def _validate_pod(request: Request, view: View, timer: Timer) -> Answer:
    if request.sub_resource not in ("", pod_validate.RESIZE) or request.operation not in ("CREATE", "UPDATE"):
        return Answer()
    pod, old = pod_validate.read(request)
    for name, rule in pod_validate.RULES:
        await timer(name, pod_validate.run_rule(rule, pod, old, request, view))
    return Answer()


WEBHOOKS: tuple[Webhook, ...] = (
    Webhook(
        "/mutate-pod",
        "PodMutatingWebhook",
        True,
        "pod",
        _mutate_pod,
        (
            Registration("mpod-create.koordinator.sh", "", ("pods",), ("CREATE",), True, _NOT_CONTROL_PLANE),
            Registration("mpod-update.koordinator.sh", "", ("pods",), ("UPDATE",), True, _NOT_CONTROL_PLANE, _OPTED_IN),
        ),
    ),
    Webhook(
        "/validate-pod",
        "PodValidatingWebhook",
        False,
        "pod",
        _validate_pod,
        (
            Registration("vpod.koordinator.sh", "", ("pods",), ("CREATE", "UPDATE"), True, _NOT_CONTROL_PLANE),
            Registration("vpodresize.koordinator.sh", "", ("pods/resize",), ("UPDATE",), True, _NOT_CONTROL_PLANE),
        ),
    ),
    Webhook(
        "/validate-pod-binding",
        "PodValidatingWebhook",
        False,
        "pod",
        _validating("BindingAdmission", binding.validate),
        (Registration("vpodbinding.koordinator.sh", "", ("pods/binding",), ("CREATE",), True),),
    ),
    Webhook(
        EVICTION_PATH,
        "PodValidatingWebhook",
        False,
        "pod",
        _validating("OwnNodeEviction", eviction.validate),
        (Registration("vpodeviction.koordinator.sh", "", ("pods/eviction",), ("CREATE",), account="koordlet"),),
    ),
    Webhook(
        f"/mutate-{_EQ}",
        "ElasticMutatingWebhook",
        True,
        "elasticquota",
        _mutating("ElasticQuota", quota.mutate, ElasticQuota),
        (Registration("melasticquota.koordinator.sh", _EQ_GROUP, ("elasticquotas",), ("CREATE",), version="v1alpha1"),),
    ),
    Webhook(
        f"/validate-{_EQ}",
        "ElasticValidatingWebhook",
        False,
        "elasticquota",
        _validating("ElasticQuota", quota.validate),
        (Registration("velasticquota.koordinator.sh", _EQ_GROUP, ("elasticquotas",), ("CREATE", "UPDATE", "DELETE"), version="v1alpha1"),),
    ),
    Webhook(
        "/mutate-node-status",
        "NodeMutatingWebhook",
        True,
        "node",
        _mutating("NodeResourceAmplification", node_mutate.mutate, Node),
        (Registration("mnode-status.koordinator.sh", "", ("nodes/status",), ("CREATE", "UPDATE"), True),),
    ),
    Webhook(
        "/validate-node",
        "NodeValidatingWebhook",
        False,
        "node",
        _validating("SLOControllerConfig", node_validate.validate),
        (Registration("vnode.koordinator.sh", "", ("nodes",), ("CREATE", "UPDATE"), True),),
    ),
    Webhook(
        "/validate-configmap",
        "ConfigMapValidatingWebhook",
        False,
        "configmap",
        _validating("SLOControllerConfig", configmap_validate.validate, ConfigMap),
        (Registration("vconfigmap.koordinator.sh", "", ("configmaps",), ("CREATE", "UPDATE", "DELETE"), object_selector=_SLO_CONFIG),),
    ),
    Webhook(
        "/mutate-reservation",
        "ReservationMutatingWebhook",
        True,
        "reservation",
        _mutating("ClusterColocationProfile", reservation_mutate.mutate, Reservation),
        (
            Registration(
                "mreservation-create.koordinator.sh", "scheduling.koordinator.sh", ("reservations",), ("CREATE",), version="v1alpha1"
            ),
        ),
    ),
)
