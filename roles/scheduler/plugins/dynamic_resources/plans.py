"""What a pod's claims mean for placing it: which are allocated already, which are to be (SCH-DRA-01). Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from math import inf
from typing import NamedTuple

from koord.api.objects_resource import ResourceClaim, ResourceClaimSpec
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import NodeTerm
from roles.scheduler.plugins.dynamic_resources.claims import Claims, terms_of
from roles.scheduler.plugins.dynamic_resources.readiness import awaited, deadline, failed
from roles.scheduler.plugins.dynamic_resources.requests import RequestError, Wanted

MOST_CONSUMERS = 256


class Waiting(Exception):
    """A claim is not there yet; says which. `key` is "" when its name is not known."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Plan(NamedTuple):
    """`keys` are all claims of the pod; those in `open` are to be allocated as `wanted` says; those in `shared` are about to be allocated
    for another pod of its gang; `terms` are the nodes from which those can be used that are allocated. Pods with equal `digest` are placed
    alike."""

    digest: Hashable
    keys: tuple[str, ...]
    open: tuple[str, ...]
    wanted: tuple[Wanted, ...]
    terms: tuple[tuple[NodeTerm, ...], ...]
    refusal: str = ""
    pending: bool = False  # the refusal ends with something that is under way
    backed: tuple[str, ...] = ()  # extended resources for which a node without them gives devices
    lapsed: str = ""  # the claim of a refusal whose devices do not get ready: it may be allocated anew
    shared: tuple[str, ...] = ()
    until: float = inf  # the plan is another one from this time on, in seconds since the epoch

    @property
    def least(self) -> int:
        """Unused devices that a node must have."""
        return sum(wanted.least for wanted in self.wanted)

    @property
    def alternatives(self) -> bool:
        """Whether a request can be served in several ways."""
        return any(len(asks) > 1 for wanted in self.wanted for asks in wanted.requests)


NOTHING = Plan((), (), (), (), ())


def claim_keys(pod: PodInfo, *, supposed: bool = False) -> Iterator[tuple[str, bool]]:
    """The claims of a pod, and whether each was made for it. `supposed`: nobody makes claims, those of templates have names that cannot be.
    Raises Waiting for one that is not made yet."""
    made = {status.name: status.resource_claim_name for status in pod.pod.status.resource_claim_statuses}
    for reference in pod.shape.template.spec.resource_claims:
        if reference.resource_claim_name:
            yield f"{pod.namespace}/{reference.resource_claim_name}", False
        elif reference.name in made:
            name = made[reference.name]
            if name:
                yield f"{pod.namespace}/{name}", True
        elif supposed:
            yield f"{pod.namespace}/<{pod.name}>/{reference.name}", True
        else:
            raise Waiting(f"waiting for the resource claim of {reference.name} to be made")


def plan(
    pod: PodInfo, cache: Claims, *, supposed: bool, now: float, timeout: float, together: Callable[[str], bool] = lambda uid: False
) -> Plan:  # fmt: skip
    """What the claims of a pod want, and its extended resources; `timeout` is how many seconds devices may take to get ready; `together`
    says with whom the pod is bound, so that neither waits for what the other is about to get. Raises Waiting."""
    found = _claims(pod, cache, supposed=supposed, now=now, timeout=timeout, together=together)
    backed = backed_resources(pod, cache)
    if not backed or found.refusal:
        return found
    if pod.uid in cache.leftover:
        text = f'resourceclaim "{cache.leftover[pod.uid].partition("/")[2]}" of an earlier attempt is being removed'
        return refused(found.keys, text, pending=True)
    return found._replace(digest=(found.digest, cache.class_version, backed), backed=backed)


def backed_resources(pod: PodInfo, cache: Claims) -> tuple[str, ...]:
    """Extended resources of a pod that device classes stand for."""
    if not cache.backed:
        return ()
    return tuple(sorted(name for name, value in pod.shape.amounts.items() if value and name in cache.backed))


def _claims(pod: PodInfo, cache: Claims, *, supposed: bool, now: float, timeout: float, together: Callable[[str], bool]) -> Plan:
    """What `spec.resourceClaims` wants."""
    until = inf
    keys: list[str] = []
    open_: list[str] = []
    shared: list[str] = []
    wanted: list[Wanted] = []
    terms: list[tuple[NodeTerm, ...]] = []
    digest: list[Hashable] = [cache.class_version]
    for number, (key, own) in enumerate(claim_keys(pod, supposed=supposed)):
        keys.append(key)
        if (key, pod.uid) in cache.releasing:
            text = f'resourceclaim "{key.partition("/")[2]}" of an earlier attempt is being given back'
            return refused(keys, text, pending=True)
        mine, claim = cache.assumed.get(key), cache.claims.get(key)
        usable = mine if mine is not None and (supposed or together(mine.pod)) else cache.lent.get(key)
        found = usable.terms if usable is not None else None
        if mine is None or not supposed:
            refusal = "" if claim is None else _refusal(pod, claim, key, own=own, pending=mine is not None and usable is not mine)
            if refusal:
                return refused(keys, refusal, pending=mine is not None)
            if mine is not None:
                shared.append(key)
        if claim is not None and claim.status.allocation is not None and mine is None:
            found = terms_of(claim.status.allocation.node_selector)
            unready, ends = failed(claim), deadline(claim, timeout)
            if not unready and awaited(claim):
                if now < ends:
                    until = min(until, ends)
                else:
                    unready = f"timed out waiting for {awaited(claim)}"
            if unready:
                return refused(keys, f'resourceclaim "{claim.metadata.name}": {unready}', lapsed=key)
        elif usable is None:
            if claim is None and not supposed:
                name = key.partition("/")[2]
                raise Waiting(f'resourceclaim "{name}" not found', key)
            spec = claim.spec if claim is not None else _template(pod, cache, number)
            if spec is None:
                raise Waiting(f"claim {key} is not known, nor the template that it is made from")
            try:
                identity, ask = cache.wanted(spec)
            except RequestError as error:
                return refused(keys, str(error))
            open_.append(key)
            wanted.append(ask)
            digest.append(identity)
            continue
        digest.append(found)
        if found is not None:
            terms.append(found)
    return Plan(tuple(digest), tuple(keys), tuple(open_), tuple(wanted), tuple(terms), shared=tuple(shared), until=until)


def refused(keys: Iterable[str], text: str, *, pending: bool = False, lapsed: str = "") -> Plan:
    """The plan of a pod that is refused for a reason."""
    return Plan(("refused", text), tuple(keys), (), (), (), text, pending, lapsed=lapsed)


def _template(pod: PodInfo, cache: Claims, number: int) -> ResourceClaimSpec | None:
    name = pod.shape.template.spec.resource_claims[number].resource_claim_template_name
    found = cache.templates.get(f"{pod.namespace}/{name}")
    return found.spec.spec if found is not None else None


def _refusal(pod: PodInfo, claim: ResourceClaim, key: str, *, own: bool, pending: bool) -> str:
    """Why a claim keeps the pod from every node, "" if it does not."""
    name = key.partition("/")[2]
    if claim.metadata.deletion_timestamp is not None:
        return f'resourceclaim "{name}" is being deleted'
    if own and all(owner.uid != pod.uid for owner in claim.metadata.owner_references):
        return f'resourceclaim "{name}" was not created for pod "{pod.key}" (pod is not owner)'
    if pending:
        return f'resourceclaim "{name}" is in the process of being allocated'
    reserved = claim.status.reserved_for
    if len(reserved) >= MOST_CONSUMERS and all(consumer.uid != pod.uid for consumer in reserved):
        return f'resourceclaim "{name}" is in use'
    return ""
