"""ResourceAmplification: how much more of a resource a node may promise (MGR-NR-AMP-01); pure."""

from __future__ import annotations

import math

import orjson

from koord.api import names
from koord.decisions.record import Term
from roles.manager.noderesource.model import Contribution, Inputs
from roles.manager.noderesource.normalization import MAX_RATIO, parse_ratio

NAME = "ResourceAmplification"
KEY = names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO


def calculate(inputs: Inputs) -> Contribution:
    """The amplification annotation of a node; a ratio that is wrong removes it, for too much promised is worse than too little."""
    configured = inputs.amplification
    ratios = dict(configured.get("resourceAmplificationRatio") or {}) if configured.get("enable") is True else {}
    text = inputs.node.metadata.annotations.get(names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO)
    normalization = parse_ratio(text)
    if normalization is None or normalization > MAX_RATIO:
        return removed(inputs, f"annotation {names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO} is {text!r}, no ratio of up to {MAX_RATIO:g}")
    cpu = ratios.get("cpu", 0)
    product = (cpu if cpu > 0 else 1) * (normalization if normalization > 0 else 1)
    if product > 1:
        ratios["cpu"] = product
    wrong = {name: ratio for name, ratio in ratios.items() if not 1 <= ratio < math.inf}
    if wrong:
        return removed(inputs, f"ratios below 1, and those without an end, are refused: {wrong}")
    if not ratios:
        return removed(inputs, "no ratio applies")
    value = "{" + ",".join(f"{orjson.dumps(name).decode()}:{ratios[name]:.2f}" for name in sorted(ratios)) + "}"
    terms = tuple(Term(f"{name}.amplificationRatio", ratios[name]) for name in sorted(ratios))
    return Contribution(NAME, f"ratios {value}", annotations={KEY: value}, reasons=lambda: terms)


def removed(inputs: Inputs, why: str) -> Contribution:
    """The node is amplified no more. Raw amounts that no webhook keeps any more would hide what the kubelet says."""
    stale = not inputs.raw_is_kept and KEY not in inputs.node.metadata.annotations
    raw = {names.ANNOTATION_NODE_RAW_ALLOCATABLE: None} if stale else {}
    return Contribution(NAME, why, annotations={KEY: None, **raw})
