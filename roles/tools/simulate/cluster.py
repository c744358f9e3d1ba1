"""A cluster as objects: from files, folders, or a live API server, which is only ever read (BEY-SIM-01)."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson
import yaml

from koord.accounting.resources import parse_quantity
from koord.api import kinds, names
from koord.api.kinds import Kind
from koord.api.objects import ClusterColocationProfile, ConfigMap, ElasticQuota, Node, NodeMetric, Object, PriorityClassObject, convert
from koord.api.quantity import QuantityError
from koord.api.times import TimeError, parse_time
from koord.config import plainyaml
from koord.kube import errors
from koord.kube.client import Client
from koord.process.errors import ConfigurationError
from roles.tools.folders import meant

Obj = dict[str, Any]
T = TypeVar("T")

BASE = (kinds.NODES, kinds.PODS, kinds.NAMESPACES, kinds.PRIORITYCLASSES, kinds.NODEMETRICS, kinds.CLUSTERCOLOCATIONPROFILES,
        kinds.ELASTICQUOTAS, kinds.NODERESOURCETOPOLOGIES, kinds.DEVICES)  # fmt: skip
"""Kinds that are looked at whatever the scheduler's configuration; its plugins name more."""

_SUFFIXES = (".yaml", ".yml", ".json")
_SHAPES: dict[str, type[Object]] = {
    "Node": Node, "NodeMetric": NodeMetric, "ConfigMap": ConfigMap, "ClusterColocationProfile": ClusterColocationProfile,
    "ElasticQuota": ElasticQuota, "PriorityClass": PriorityClassObject,
}  # fmt: skip


@dataclass(slots=True)
class Cluster:
    """Objects by kind, and within a kind by `namespace/name` (`name` where there is no namespace). Nobody changes an object in place."""

    objects: dict[str, dict[str, Obj]] = field(default_factory=dict)

    def put(self, obj: Obj) -> None:
        """Add an object, or replace the one of its name."""
        self.objects.setdefault(kinds.key_of(str(obj.get("apiVersion")), obj["kind"]), {})[key_of(obj)] = obj

    def all(self, kind: Kind) -> dict[str, Obj]:
        """The objects of a kind by key."""
        return self.objects.get(kind.key, {})

    def pods_by_node(self) -> defaultdict[str, list[Obj]]:
        """Its pods by the name of their node; those without one under ""."""
        found: defaultdict[str, list[Obj]] = defaultdict(list)
        for pod in self.all(kinds.PODS).values():
            found[(pod.get("spec") or {}).get("nodeName") or ""].append(pod)
        return found

    def copy(self) -> Cluster:
        """A copy that may be changed, with the same objects."""
        return Cluster({kind: dict(found) for kind, found in self.objects.items()})

    def slo_config(self) -> dict[str, str] | None:
        """The data of slo-controller-config, None where there is none."""
        found = (
            obj
            for obj in self.objects.get("ConfigMap", {}).values()
            if obj["metadata"].get("name") == names.CONFIGMAP_SLO_CONTROLLER_CONFIG
        )
        config = next(found, None)
        return None if config is None else config.get("data") or {}


class Held:
    """Objects by key as an informer has them."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self._objects = objects

    def get(self, key: str) -> Any:
        """The object of a key; None without one."""
        return self._objects.get(key)

    def list(self) -> Any:
        """All of them."""
        return [*self._objects.values()]


class Structs:
    """Objects as projections, each read once: clusters share objects, and nobody changes one in place."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, type], tuple[Obj, Any]] = {}

    def of(self, obj: Obj, target: type[T]) -> T:
        """The projection of an object. Raises ConfigurationError, naming the object and the field that cannot be read."""
        found = self._read.get((id(obj), target))
        if found is None:
            try:
                found = self._read[id(obj), target] = (obj, convert(obj, target))
            except msgspec.ValidationError as error:
                raise ConfigurationError(f"{obj['kind']} {key_of(obj)}: {error}") from error
        made: T = found[1]
        return made


def key_of(obj: Obj) -> str:
    """`namespace/name`, or `name`."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def read(paths: Iterable[str]) -> Iterator[Obj]:
    """The objects of files and folders (YAML or JSON, Lists too). Raises ConfigurationError with the file and what is wrong with it."""
    for name in paths:
        path = Path(name)
        files = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES and meant(each)) if path.is_dir() else [path]
        if not files:
            raise ConfigurationError(f"{name}: no *.yaml, *.yml or *.json in this folder")
        for file in files:
            try:
                text = file.read_bytes()
                documents = [orjson.loads(text)] if file.suffix == ".json" else plainyaml.load_all(text)
            except OSError as error:
                raise ConfigurationError(f"{file}: {error.strerror}") from error
            except (orjson.JSONDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"{file}: {' '.join(str(error).split())}") from error
            yield from normalized(documents, str(file))


def normalized(documents: Iterable[Any], where: str) -> Iterator[Obj]:
    """Objects that are decoded already, Lists too. Raises ConfigurationError with `where`."""
    for number, document in enumerate(documents, 1):
        yield from _objects(document, f"{where}, object {number}")


def taken_at(cluster: Cluster, otherwise: float) -> float:
    """When a snapshot was taken, in Unix time: at its newest report, so that reports are as fresh as they were then."""
    times = []
    for metric in cluster.all(kinds.NODEMETRICS).values():
        with contextlib.suppress(TimeError):
            times.append(parse_time((metric.get("status") or {}).get("updateTime") or ""))
    return max(times, default=otherwise)


def _objects(document: Any, where: str) -> Iterator[Obj]:
    if document is None:
        return
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise ConfigurationError(f"{where}: must be an object with apiVersion and kind")
    kind = document["kind"]
    if kind.endswith("List") and isinstance(document.get("items"), list):
        for number, item in enumerate(document["items"]):
            if isinstance(item, dict) and kind != "List":
                item = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List"), **item}
            yield from _objects(item, f"{where}, items[{number}]")
        return
    meta = document.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name") or meta.get("generateName"), str):
        raise ConfigurationError(f"{where}: {kind}: metadata.name must be a string")
    _check(document, meta, f"{where}: {kind} {meta.get('name') or meta['generateName']}")
    known = kinds.BY_KIND.get(kind)
    if not meta.get("name"):
        document = {**document, "metadata": {**meta, "name": meta["generateName"] + "x"}}
    if known is not None and known.namespaced and not meta.get("namespace"):
        document = {**document, "metadata": {**document["metadata"], "namespace": "default"}}
    yield document


def _check(document: Obj, meta: Obj, where: str) -> None:
    """What an API server would have refused. Raises ConfigurationError; the fields of pods, of which there are many, are told when read."""
    for part, value in (("metadata.labels", meta.get("labels")), ("metadata.annotations", meta.get("annotations"))):
        if value is not None and not (isinstance(value, dict) and all(isinstance(text, str) for text in (*value, *value.values()))):
            raise ConfigurationError(f"{where}: {part} must be a mapping of strings")
    for part in ("spec", "status", "data"):
        if document.get(part) is not None and not isinstance(document[part], dict):
            raise ConfigurationError(f"{where}: {part} must be a mapping")
    spec = document.get("spec") or {}
    for list_name in ("containers", "initContainers") if document["kind"] == "Pod" else ():
        for container in spec.get(list_name) or ():
            resources = (container.get("resources") if isinstance(container, dict) else None) or {}
            for part in ("requests", "limits"):
                _check_amounts((resources.get(part) if isinstance(resources, dict) else None) or {}, f"{where}: {list_name}: {part}")
    shape = _SHAPES.get(document["kind"])
    if shape is None:
        return
    try:
        convert(document, shape)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    for path, name, amount in _amounts(document.get("status"), "status"):
        _check_amounts({name: amount}, f"{where}: {path}")


def _check_amounts(amounts: Any, where: str) -> None:
    for name, amount in amounts.items() if isinstance(amounts, dict) else ():
        try:
            parse_quantity(name, amount)
        except QuantityError as error:
            raise ConfigurationError(f"{where}: {name}: {error}") from None


def _amounts(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    """Amounts below a status: (path, resource, amount)."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _amounts(item, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in ("capacity", "allocatable", "resources") and isinstance(item, dict):
                yield from ((f"{path}.{key}", name, amount) for name, amount in item.items())
            else:
                yield from _amounts(item, f"{path}.{key}")


async def live(client: Client, wanted: Iterable[Kind], config_namespace: str) -> Cluster:
    """The cluster as it is now: lists, one read, and nothing else. What the server does not know is left out. Raises ApiError."""
    cluster = Cluster()
    for kind in dict.fromkeys((*BASE, *wanted)):
        try:
            listed = await client.list(kind)
        except errors.NotFound:
            continue
        cluster.objects[kind.key] = {}
        for item in listed.items:
            cluster.put({"apiVersion": kind.api_version, "kind": kind.kind, **item})
    with contextlib.suppress(errors.NotFound):
        cluster.put({"kind": "ConfigMap", **await client.get(kinds.CONFIGMAPS, names.CONFIGMAP_SLO_CONTROLLER_CONFIG, config_namespace)})
    return cluster
