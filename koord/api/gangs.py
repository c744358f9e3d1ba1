"""Which gang a pod belongs to, and how many of its members must run, as far as the pod itself says (SCH-GANG-01)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from koord.api import names

_NUMBER = re.compile(r"[+-]?[0-9]{1,12}", re.ASCII)


def gang_name(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """The gang that labels and annotations name, "" for none."""
    return (
        labels.get(names.LABEL_POD_GROUP)
        or labels.get(names.LABEL_POD_GROUP_NAME_DEPRECATED)
        or annotations.get(names.ANNOTATION_GANG_NAME)
        or ""
    )


def gang_minimum(labels: Mapping[str, str], annotations: Mapping[str, str]) -> int | None:
    """The minimum that the pod names; None without one, or for one that is no int32."""
    text = labels.get(names.LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED) or annotations.get(names.ANNOTATION_GANG_MIN_AVAILABLE)
    if not text or not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**31) <= number < 2**31 else None
