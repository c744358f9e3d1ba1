"""How workloads replace their pods: the strategies of Deployments, DaemonSets and StatefulSets."""

from __future__ import annotations

import re
from typing import Any

from koord.apiserver.errors import Cause, field_forbidden, invalid_value, not_supported, required
from koord.apiserver.schema.builtin import Path_, path_text
from koord.apiserver.schema.rules import checking
from koord.apiserver.store import Obj
from koord.apiserver.validation.pods import amount

_PERCENT = re.compile(r"[0-9]+%")


def share(value: Any, path: str, causes: list[Cause], *, most: bool = True) -> None:
    """A number of pods, or a percentage of them; of `most` 100."""
    if isinstance(value, int):
        amount(value, path, causes)
    elif isinstance(value, str) and not _PERCENT.fullmatch(value):
        text = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"  # noqa: E501
        causes.append(invalid_value(path, value, text))
    elif most and isinstance(value, str) and int(value[:-1]) > 100:
        causes.append(invalid_value(path, value, "must not be greater than 100%"))


def _none(value: Any) -> bool:
    return value == 0 or (isinstance(value, str) and value.lstrip("0") == "%")


@checking("V1DeploymentStrategy")
def _deployment(strategy: Obj, path: Path_, causes: list[Cause]) -> None:
    kind, rolling, where = strategy.get("type"), strategy.get("rollingUpdate"), path_text(path)
    if kind not in ("Recreate", "RollingUpdate"):
        causes.append(not_supported(where, strategy, ("Recreate", "RollingUpdate")))
    elif kind == "Recreate" and rolling is not None:
        causes.append(field_forbidden(f"{where}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'"))
    elif rolling is not None:
        share(rolling.get("maxUnavailable"), f"{where}.rollingUpdate.maxUnavailable", causes)
        share(rolling.get("maxSurge"), f"{where}.rollingUpdate.maxSurge", causes, most=False)
        if _none(rolling.get("maxUnavailable")) and _none(rolling.get("maxSurge")):
            text = "may not be 0 when `maxSurge` is 0"
            causes.append(invalid_value(f"{where}.rollingUpdate.maxUnavailable", rolling["maxUnavailable"], text))


@checking("V1DaemonSetUpdateStrategy")
def _daemon_set(strategy: Obj, path: Path_, causes: list[Cause]) -> None:
    kind, rolling, where = strategy.get("type"), strategy.get("rollingUpdate") or {}, path_text(path)
    if kind not in ("RollingUpdate", "OnDelete"):
        causes.append(not_supported(where, strategy, ("RollingUpdate", "OnDelete")))
    elif kind == "RollingUpdate":
        below, surge = rolling.get("maxUnavailable"), rolling.get("maxSurge")
        share(below, f"{where}.rollingUpdate.maxUnavailable", causes)
        share(surge, f"{where}.rollingUpdate.maxSurge", causes)
        if not _none(below) and not _none(surge):
            causes.append(invalid_value(f"{where}.rollingUpdate.maxSurge", surge, "may not be set when maxUnavailable is non-zero"))
        elif _none(below) and _none(surge):
            causes.append(required(f"{where}.rollingUpdate.maxUnavailable", "cannot be 0 when maxSurge is 0"))


@checking("V1StatefulSetUpdateStrategy")
def _stateful_set(strategy: Obj, path: Path_, causes: list[Cause]) -> None:
    kind, rolling, where = strategy.get("type"), strategy.get("rollingUpdate"), path_text(path)
    if kind not in ("RollingUpdate", "OnDelete"):
        causes.append(invalid_value(where, strategy, "must be 'RollingUpdate' or 'OnDelete'"))
    elif kind == "OnDelete" and rolling is not None:
        causes.append(invalid_value(f"{where}.rollingUpdate", rolling, "only allowed for updateStrategy 'RollingUpdate'"))
    elif rolling is not None:
        amount(rolling.get("partition", 0), f"{where}.rollingUpdate.partition", causes)


@checking("V1DeploymentSpec")
def _deadline(spec: Obj, path: Path_, causes: list[Cause]) -> None:
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= spec.get("minReadySeconds", 0):
        causes.append(invalid_value("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"))
