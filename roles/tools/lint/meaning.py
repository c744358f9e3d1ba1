"""What a schema cannot say: objects read by the part of the scheduler that will act on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from koord.api.objects import ClusterNetworkTopology, Pod, PodGroup, Reservation, convert
from koord.api.quantity import QuantityError
from roles.tools.lint import requests
from roles.tools.lint.finding import Finding, Level
from roles.tools.lint.sources import Document

Obj = dict[str, Any]


def check(document: Document, obj: Obj) -> Iterator[Finding]:
    """Every problem that the reader of this kind tells. `obj` is the document with the schema's defaults, as it would be stored."""
    reader = _READERS.get(str(document.data.get("kind")))
    if reader is None:
        return
    try:
        found = list(reader(document, obj))
    except (msgspec.ValidationError, QuantityError):
        return  # told by the schema
    yield from found


def _pod_group(document: Document, obj: Obj) -> Iterator[Finding]:
    from roles.scheduler.plugins.coscheduling.spec import Defaults, from_pod_group

    yield from _told(document, from_pod_group(convert(obj, PodGroup), Defaults()).problems)


def _pod(document: Document, obj: Obj) -> Iterator[Finding]:
    from roles.scheduler.cluster.podinfo import PodParser
    from roles.scheduler.cluster.vocabulary import Vocabulary
    from roles.scheduler.plugins.coscheduling.spec import Defaults, from_pod

    spec = from_pod(PodParser(Vocabulary()).parse(convert(obj, Pod)), Defaults())
    yield from _told(document, spec.problems if spec is not None else ())
    yield from requests.check(document, obj)


def _reservation(document: Document, obj: Obj) -> Iterator[Finding]:
    from roles.scheduler.cluster.podinfo import PodParser
    from roles.scheduler.cluster.vocabulary import Vocabulary
    from roles.scheduler.plugins.reservation.reserve_pod import read

    terms, _ = read(convert(obj, Reservation), PodParser(Vocabulary()))
    yield from _told(document, terms.problems)


def _network_topology(document: Document, obj: Obj) -> Iterator[Finding]:
    from roles.scheduler.plugins.network_topology.network import OBJECT
    from roles.scheduler.plugins.network_topology.tree import TreeError, layers_of

    topology = convert(obj, ClusterNetworkTopology)
    if topology.metadata.name != OBJECT:
        yield document.finding(f"is not read: the scheduler looks at the one named {OBJECT!r}", "metadata.name", level=Level.WARNING)
    try:
        layers_of(topology.spec.network_topology_spec)
    except TreeError as error:
        yield from _told(document, [f"spec.{error}"] if str(error).startswith("network") else [f"spec.networkTopologySpec: {error}"])


_READERS: dict[str, Callable[[Document, Obj], Iterable[Finding]]] = {
    "PodGroup": _pod_group,
    "Pod": _pod,
    "Reservation": _reservation,
    "ClusterNetworkTopology": _network_topology,
}
_ANNOTATION = re.compile(r"annotation (\S+?):? ")
_PATH = re.compile(r"(?:spec|status|metadata)(?:\.\w+|\[\d+\])+")


def _told(document: Document, problems: Iterable[str]) -> Iterator[Finding]:
    """Problems as the scheduler words them, each at the field that it begins with or speaks of."""
    for problem in problems:
        annotation = _ANNOTATION.match(problem)
        if annotation:
            yield document.finding(problem[annotation.end() :], f'metadata.annotations["{annotation[1]}"]')
            continue
        path = _PATH.search(problem)
        if path is None:
            yield document.finding(problem)
        elif path.start() == 0:
            yield document.finding(problem[path.end() :].lstrip(": "), path.group())
        else:
            yield document.finding(problem, path.group())
