"""Pods with hostile annotations in a world of all roles: what is refused, and that nobody else notices them (BEY-SEC-03)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from koord.api import trust
from roles.sandbox.hostile import ATTACKS
from tests.support import patience

ROOT = Path(__file__).resolve().parents[4]
_LIVE = """
import sys, tempfile
from pathlib import Path
import orjson
from roles.sandbox.world import runner, world as worlds
from roles.sandbox.world.faults import Fault
from roles.sandbox.world.invariants.checker import Checker
from roles.sandbox.world.world import World, quiet
from roles.sandbox.world.spec import Spec

hostile, plan, policies = int(sys.argv[1]), tuple(Fault(**one) for one in orjson.loads(sys.argv[2])), sys.argv[3] == "policies"
worlds.warm()
spec = Spec(seed=11, nodes=3, pods=16, minutes=4.0, plan=plan, calm=60.0, cpus=16, hostile=hostile, policies=policies)
with tempfile.TemporaryDirectory() as scratch, quiet():
    world = World(spec, Path(scratch))
    checker = Checker(world.history)
    world.run()
    checker.end()
    history = world.history
    answers = {}
    for entry in history.entries:
        if entry.verb == "hostile":
            answers.setdefault(entry.key, []).append(entry.text)
    pods = {}
    for key, pod in history.of("pod").items():
        pods[key] = [pod["spec"].get("nodeName", ""), (pod.get("status") or {}).get("phase", ""), pod["metadata"].get("annotations") or {}]
    nodes = {name: node["status"]["allocatable"] for name, node in history.of("node").items()}
    told = {"violations": [str(v) for v in checker.violations], "answers": answers, "pods": pods, "nodes": nodes}
    sys.stdout.buffer.write(orjson.dumps(told))
    sys.stdout.flush()
    import os
    os._exit(0)
"""


def live(hostile: int, plan: list[dict[str, object]], *more: str) -> dict:
    """A world in a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", _LIVE, str(hostile), orjson.dumps(plan).decode(), *(more or ("webhooks",))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=patience.seconds(280), check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return orjson.loads(done.stdout)


def others(told: dict) -> dict[str, tuple[str, str]]:
    return {key: (node, phase) for key, (node, phase, _) in told["pods"].items() if "/hostile-" not in key}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("BEY-SEC-03")
def test_every_attack_is_answered_as_the_table_says_and_harms_nobody() -> None:
    assert len(ATTACKS) >= 30
    told, calm = live(len(ATTACKS), []), live(0, [])
    assert told["violations"] == []
    assert set(told["answers"]) == {attack.name for attack in ATTACKS}
    for attack in ATTACKS:
        said = told["answers"][attack.name]
        refused = [text.startswith(("create refused", "change refused")) for text in said]
        assert refused == ([True, True] if attack.refused else [False]), (attack.name, said)
        if attack.refused:
            assert "annotations[" in said[0], said
            assert len(said[0]) < 700, "a message is no copy of what was sent"
    # all of them run, those that were refused without what they carried
    for attack in ATTACKS:
        node, phase, annotations = told["pods"][f"apps/hostile-{attack.name}"]
        assert (bool(node), phase) == (True, "Running"), attack.name
        kept = {key for key in attack.annotations if annotations.get(key) == attack.annotations[key]}
        assert kept == (set() if attack.refused or attack.corrected else set(attack.annotations)), attack.name
    # the same people's workloads run as they do without them
    assert {key: phase for key, (_, phase) in others(told).items()} == {key: phase for key, (_, phase) in others(calm).items()}
    assert {name: room.get("koordinator.sh/gpu") for name, room in told["nodes"].items()} == {
        name: room.get("koordinator.sh/gpu") for name, room in calm["nodes"].items()
    }


NO_MANAGERS: list[dict[str, object]] = [{"at": 1.0, "kind": "kill", "target": f"manager-{letter}", "seconds": 200.0} for letter in "ab"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("BEY-SEC-03")
def test_policies_hold_while_no_manager_answers() -> None:
    """Allocations and bounds are refused by the API server itself; what only a webhook can judge is left to the node."""
    told = live(len(ATTACKS), NO_MANAGERS, "policies")
    assert told["violations"] == []
    reserved = {*trust.RESERVED, *trust.FORBIDDEN}
    for attack in ATTACKS:
        said = told["answers"][attack.name]
        if reserved & set(attack.annotations):
            assert [text.partition(":")[0] for text in said] == ["create refused", "change refused"], (attack.name, said)
        for key in reserved:
            assert key not in told["pods"][f"apps/hostile-{attack.name}"][2], (attack.name, key)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("BEY-SEC-03")
def test_with_no_manager_to_ask_the_scheduler_keeps_to_what_it_decided() -> None:
    """Pods' webhooks fail open: the forged allocations are stored, and taken off before the pods are bound."""
    told = live(len(ATTACKS), NO_MANAGERS)
    assert told["violations"] == []
    taken = [name for name, said in told["answers"].items() if said[0] == "create taken"]
    assert len(taken) > 30, "the webhooks were not asked"
