"""What pods request and no node gives them: resources that nobody offers, devices in amounts that the scheduler refuses everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from koord.accounting.resources import parse
from koord.api import names
from koord.api.objects import Pod, convert
from koord.api.quantity import QuantityError
from koord.config.errors import did_you_mean, join
from roles.tools.lint.finding import Finding, Level
from roles.tools.lint.sources import Document

Obj = dict[str, Any]
_KNOWN = frozenset(value for key, value in vars(names).items() if key.startswith("RESOURCE_")) | names.DEPRECATED_RESOURCES.keys()
_OURS = f"{names.RESOURCE_GPU.partition('/')[0]}/"


def check(document: Document, obj: Obj) -> Iterator[Finding]:
    """A pod by itself. Raises msgspec.ValidationError and QuantityError for what the schema tells."""
    from roles.scheduler.cluster.podinfo import PodParser
    from roles.scheduler.cluster.vocabulary import Vocabulary
    from roles.scheduler.plugins.device_share.amounts import InvalidRequest, wanted_of

    for path, name in _requested(obj):
        if name.startswith(_OURS) and name not in _KNOWN:
            hint = did_you_mean(name, sorted(_KNOWN))
            yield document.finding(f"no node offers {name}{hint}", path, level=Level.WARNING, key=True)
    try:
        wanted_of(PodParser(Vocabulary()).parse(convert(obj, Pod)).shape.amounts)
    except InvalidRequest as error:
        yield document.finding(str(error), "spec.containers")


def against(documents: Iterable[Document]) -> Iterator[Finding]:
    """Pods of the files against the nodes of the files, where there are any."""
    read = list(documents)
    offered: set[str] = set()
    nodes = [one.data for one in read if one.data["kind"] == "Node"]
    for node in nodes:
        try:
            offered.update(name for name, amount in parse((node.get("status") or {}).get("allocatable") or {}).items() if amount > 0)
        except (QuantityError, TypeError, AttributeError):
            return  # told by the schema
    if not offered:
        return
    offered = {names.DEPRECATED_RESOURCES.get(name, name) for name in offered}
    for document in read:
        if document.data["kind"] == "Pod":
            for path, name in _requested(document.data):
                name = names.DEPRECATED_RESOURCES.get(name, name)
                if "/" in name and name not in offered | names.COUNTED_BY_CARD:
                    yield document.finding(f"none of the nodes among the files offers {name}", path, level=Level.WARNING, key=True)


def _requested(obj: Obj) -> Iterator[tuple[str, str]]:
    """(path, resource) of each request, or limit that stands for one, that is not 0."""
    spec = obj.get("spec")
    for group in ("initContainers", "containers"):
        containers = spec.get(group) if isinstance(spec, dict) else None
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            resources = container.get("resources") if isinstance(container, dict) else None
            seen: set[str] = set()
            for side in ("requests", "limits"):
                amounts = resources.get(side) if isinstance(resources, dict) else None
                for name, amount in amounts.items() if isinstance(amounts, dict) else ():
                    if str(amount) != "0" and name not in seen:
                        seen.add(name)
                        yield join(f"spec.{group}[{index}].resources.{side}", str(name)), str(name)
