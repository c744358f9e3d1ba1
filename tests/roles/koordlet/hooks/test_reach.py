"""The page about hooks says what the code that carries answers does."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from koord.protocols import runtimehook_pb2 as pb
from roles.koordlet.hooks.asking import Answers
from roles.koordlet.hooks.context import Answer, DeviceNode, Mount
from roles.koordlet.hooks.messages import container_response
from roles.koordlet.hooks.plan import writes
from roles.koordlet.nri.convert import adjustment
from tests.support.processes import ROOT

_TEXTS = {
    "cpu_shares": "CPU shares",
    "cpu_quota": "CFS quota",
    "cpuset": "CPUs",
    "memory_limit": "memory limit",
    "bvt": "group identity",
    "cpu_idle": "`cpu.idle`",
    "net_classid": "network class",
    "rdt_class": "resctrl group",
    "env": "environment",
    "mounts": "mounts",
    "devices": "device nodes",
}
_SAMPLES: dict[str, Any] = {
    "cpuset": "0",
    "rdt_class": "koord-x",
    "env": {"A": "1"},
    "mounts": (Mount("/a", "/b"),),
    "devices": (DeviceNode("/dev/a", 1, 2),),
}
_WALKED = frozenset({"rdt_class"})
"""What the reconciler does otherwise than by writing to the container's cgroup: it moves tasks into the group."""
FIRST, LATER, NO = "from the first instruction", "a moment later", "no"


def reached() -> dict[str, tuple[str, str, str]]:
    """Field of an answer: what becomes of it by the runtime proxy, by NRI, and by the reconciler alone."""
    request = pb.ContainerResourceHookRequest()
    unchanged = container_response(request, Answer())
    found = {}
    for field in fields(Answer):
        answer = Answer(**{field.name: _SAMPLES.get(field.name, 7)})
        later = field.name in _WALKED or bool(writes(Answers(answer, {field.name: "hook"}), "directory"))
        proxy, nri = container_response(request, answer) != unchanged, adjustment(answer) is not None
        behind = LATER if later else NO
        found[field.name] = (FIRST if proxy else behind, FIRST if nri else behind, behind)
    return found


def table() -> str:
    """The rows as docs/koordlet-hooks.md has them."""
    lines = ["| What a hook sets | runtime proxy | NRI | neither |", "| --- | --- | --- | --- |"]
    lines += [f"| {_TEXTS[name]} | {' | '.join(ways)} |" for name, ways in reached().items()]
    return "\n".join(lines) + "\n"


@pytest.mark.feature("KA-RH-02")
def test_the_page_has_the_table_that_the_code_gives() -> None:
    assert (wanted := table()) in (ROOT / "docs/koordlet-hooks.md").read_text(), wanted


@pytest.mark.feature("KA-RH-02")
def test_what_each_way_reaches() -> None:
    found = reached()
    assert found["cpuset"] == (FIRST, FIRST, LATER)
    assert found["devices"] == (NO, FIRST, NO)
    assert found["env"] == (FIRST, FIRST, NO)
    assert found["bvt"] == (LATER, LATER, LATER)
