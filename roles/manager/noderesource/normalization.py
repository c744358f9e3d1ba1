"""CPUNormalization: how fast a node's CPUs are against the reference (MGR-NR-NORM-01); pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from koord.api import names
from koord.api.labels import parse_go_bool
from koord.api.objects import Node
from koord.decisions.record import Term
from roles.manager.noderesource.model import Contribution, Inputs, PluginError

NAME = "CPUNormalization"
MIN_RATIO, MAX_RATIO = 1.0, 5.0
_BASIC_INFO = (("cpuModel", str, "a string"), ("hyperThreadEnabled", bool, "true or false"), ("turboEnabled", bool, "true or false"))


def calculate(inputs: Inputs) -> Contribution:
    """The ratio annotation of a node. Raises PluginError when it is enabled and cannot be told: the old annotation then stays."""
    if not _enabled(inputs):
        return _answer(1.0, "disabled")
    basic = _basic_info(inputs)
    model = basic.get("cpuModel")
    ratios = (inputs.normalization.get("ratioModel") or {}).get(model)
    hyper, turbo = bool(basic.get("hyperThreadEnabled")), bool(basic.get("turboEnabled"))
    field = {
        (True, True): "hyperThreadTurboEnabledRatio",
        (True, False): "hyperThreadEnabledRatio",
        (False, True): "turboEnabledRatio",
        (False, False): "baseRatio",
    }[hyper, turbo]
    ratio = (ratios or {}).get(field)
    source = f"ratioModel[{model!r}].{field}"
    if ratio is None:
        ratio, source = inputs.normalization.get("defaultRatio"), f"defaultRatio ({source} is not set)"
    if ratio is None:
        raise PluginError(f"no ratio for the CPU: ratioModel[{model!r}].{field} and defaultRatio are not set")
    if not MIN_RATIO <= ratio <= MAX_RATIO:
        raise PluginError(f"{source} is {ratio}, outside [{MIN_RATIO:g}, {MAX_RATIO:g}]")
    return _answer(float(ratio), source)


def taken_back(inputs: Inputs) -> bool:
    """Whether it was rolled back, and the node still shows a ratio: agents go by it, co-location or not."""
    if not inputs.normalization or names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO not in inputs.node.metadata.annotations:
        return False
    try:
        return not _enabled(inputs)
    except PluginError:
        return False  # told where co-location is on


def standing(node: Node) -> float | None:
    """The ratio that a node shows, None for none that could have been written here."""
    ratio = parse_ratio(node.metadata.annotations.get(names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO))
    return ratio if ratio is not None and MIN_RATIO <= ratio <= MAX_RATIO else None


def parse_ratio(text: str | None) -> float | None:
    """The ratio of annotation cpu-normalization-ratio: −1 when absent, None when it is no number above 0."""
    if text is None:
        return -1.0
    try:
        ratio = float(text)
    except ValueError:
        return None
    return ratio if 0 < ratio < float("inf") else None


def _enabled(inputs: Inputs) -> bool:
    label = inputs.node.metadata.labels.get(names.LABEL_NODE_CPU_NORMALIZATION_ENABLED)
    if label is None:
        return inputs.normalization.get("enable") is True
    enabled = parse_go_bool(label)
    if enabled is None:
        raise PluginError(f"label {names.LABEL_NODE_CPU_NORMALIZATION_ENABLED} is {label!r}; true or false is accepted")
    return enabled


def _basic_info(inputs: Inputs) -> Mapping[str, Any]:
    if inputs.topology is None:
        raise PluginError("the NodeResourceTopology of the node is missing")
    text = inputs.topology.metadata.annotations.get(names.ANNOTATION_NRT_CPU_BASIC_INFO)
    if not text:
        raise PluginError(f"the NodeResourceTopology has no annotation {names.ANNOTATION_NRT_CPU_BASIC_INFO}")
    try:
        info = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise PluginError(f"annotation {names.ANNOTATION_NRT_CPU_BASIC_INFO} is not valid JSON: {error}") from None
    if not isinstance(info, dict):
        raise PluginError(f"annotation {names.ANNOTATION_NRT_CPU_BASIC_INFO} must be an object")
    for field, kind, accepted in _BASIC_INFO:
        if not isinstance(info.get(field), kind | None):
            raise PluginError(f"annotation {names.ANNOTATION_NRT_CPU_BASIC_INFO}: {field} must be {accepted}, got {info[field]!r}")
    return info


def _answer(ratio: float, source: str) -> Contribution:
    text = f"{ratio:.2f}"
    return Contribution(
        NAME,
        f"ratio {text}: {source}",
        annotations={names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO: text},
        ratio=float(text),  # agents read the annotation: what they are told is what batch-cpu is scaled by
        reasons=lambda: (Term("cpu.normalizationRatio", float(text), source),),
    )
