"""Makes `table.json`, the field numbers of Kubernetes' protobuf messages, from a folder of published `generated.proto` files.

usage: python -m koord.apiserver.protobuf.generate FOLDER

Only messages that a client may send as a request body, and what they are made of, are kept.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import orjson

TABLE = Path(__file__).with_name("table.json")

# API group and version -> protobuf package. policy/v1 has the messages of policy/v1beta1.
PACKAGES = {
    "v1": "k8s.io.api.core.v1",
    "apps/v1": "k8s.io.api.apps.v1",
    "batch/v1": "k8s.io.api.batch.v1",
    "policy/v1": "k8s.io.api.policy.v1beta1",
    "autoscaling/v1": "k8s.io.api.autoscaling.v1",
    "rbac.authorization.k8s.io/v1": "k8s.io.api.rbac.v1",
    "storage.k8s.io/v1": "k8s.io.api.storage.v1",
    "scheduling.k8s.io/v1": "k8s.io.api.scheduling.v1",
    "coordination.k8s.io/v1": "k8s.io.api.coordination.v1",
    "events.k8s.io/v1": "k8s.io.api.events.v1",
    "authentication.k8s.io/v1": "k8s.io.api.authentication.v1",
    "authorization.k8s.io/v1": "k8s.io.api.authorization.v1",
    "admissionregistration.k8s.io/v1": "k8s.io.api.admissionregistration.v1",
}
OPTIONS = "k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions"

# Fields that came later than the published files at hand; numbers never change once given.
_CORE = "k8s.io.api.core.v1."
_META = "k8s.io.apimachinery.pkg.apis.meta.v1."
LATER: dict[str, dict[int, tuple[str, str, bool]]] = {
    _CORE + "PodSpec": {
        36: ("os", _CORE + "PodOS", False),
        37: ("hostUsers", "bool", False),
        38: ("schedulingGates", _CORE + "PodSchedulingGate", True),
        40: ("resources", _CORE + "ResourceRequirements", False),
    },
    _CORE + "PodOS": {1: ("name", "string", False)},
    _CORE + "PodSchedulingGate": {1: ("name", "string", False)},
    _CORE + "Container": {23: ("resizePolicy", _CORE + "ContainerResizePolicy", True), 24: ("restartPolicy", "string", False)},
    _CORE + "ContainerResizePolicy": {1: ("resourceName", "string", False), 2: ("restartPolicy", "string", False)},
    _CORE + "TopologySpreadConstraint": {
        5: ("minDomains", "int32", False),
        6: ("nodeAffinityPolicy", "string", False),
        7: ("nodeTaintsPolicy", "string", False),
        8: ("matchLabelKeys", "string", True),
    },
    _CORE + "PodAffinityTerm": {
        4: ("namespaceSelector", _META + "LabelSelector", False),
        5: ("matchLabelKeys", "string", True),
        6: ("mismatchLabelKeys", "string", True),
    },
    "k8s.io.api.authentication.v1.SelfSubjectReview": {
        1: ("metadata", _META + "ObjectMeta", False),
        2: ("status", "k8s.io.api.authentication.v1.SelfSubjectReviewStatus", False),
    },
    "k8s.io.api.authentication.v1.SelfSubjectReviewStatus": {1: ("userInfo", "k8s.io.api.authentication.v1.UserInfo", False)},
    "k8s.io.api.policy.v1beta1.PodDisruptionBudgetSpec": {4: ("unhealthyPodEvictionPolicy", "string", False)},
}

_MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.M | re.S)
_FIELD = re.compile(r"^\s*(optional|repeated)?\s*(map<\s*string\s*,\s*([\w.]+)\s*>|[\w.]+)\s+(\w+)\s*=\s*(\d+);", re.M)


def read(folder: Path) -> dict[str, dict[str, list[object]]]:
    """Message name -> field number -> [JSON name, type, repeated]; map types are written "map:<value type>"."""
    found: dict[str, dict[str, list[object]]] = {}
    for path in sorted(folder.rglob("generated.proto")):
        text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
        package = re.search(r"^package ([\w.]+);", text, re.M)
        if package is None:
            continue
        for message in _MESSAGE.finditer(text):
            fields: dict[str, list[object]] = {}
            for label, kind, value, name, number in _FIELD.findall(message.group(2)):
                wanted = f"map:{_full(value, package.group(1))}" if kind.startswith("map") else _full(kind, package.group(1))
                fields[number] = [name, wanted, label == "repeated"]
            found[f"{package.group(1)}.{message.group(1)}"] = fields
    for message_name, later in LATER.items():
        found.setdefault(message_name, {}).update({str(number): list(field) for number, field in later.items()})
    return found


def _full(kind: str, package: str) -> str:
    if kind in ("string", "bytes", "bool", "int32", "int64", "uint32", "uint64", "double"):
        return kind
    if kind.startswith(".") or "." in kind:
        return kind.lstrip(".")
    return f"{package}.{kind}"


def reachable(messages: dict[str, dict[str, list[object]]], roots: list[str]) -> dict[str, dict[str, list[object]]]:
    """Those messages and all that they are made of."""
    kept: dict[str, dict[str, list[object]]] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in kept or name not in messages:
            continue
        kept[name] = messages[name]
        waiting += [str(field[1]).removeprefix("map:") for field in messages[name].values()]
    return dict(sorted(kept.items()))


def main(folder: str) -> None:
    messages = read(Path(folder))
    kinds: dict[str, str] = {}
    for version, package in PACKAGES.items():
        for name, fields in messages.items():
            prefix, _, kind = name.rpartition(".")
            if prefix == package and fields.get("1") and fields["1"][1] == _META + "ObjectMeta" and not kind.endswith("List"):
                kinds[f"{version}/{kind}"] = name
    kinds["batch/v1/CronJob"] = "k8s.io.api.batch.v1beta1.CronJob"
    kept = reachable(messages, [*kinds.values(), OPTIONS])
    table = {"kinds": kinds, "messages": kept}
    TABLE.write_bytes(orjson.dumps(table))
    print(f"{len(kinds)} kinds, {len(kept)} messages")


if __name__ == "__main__":
    main(sys.argv[1])
