"""One program for the kubelets of many nodes, and what a large world remembers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from roles.sandbox.world.herd import Agenda
from roles.sandbox.world.history import History
from roles.sandbox.world.spec import LARGE, Spec, sized
from tests.support import patience

ROOT = Path(__file__).resolve().parents[4]
_LIVE = """
import sys
from roles.sandbox.world import runner
from roles.sandbox.world.spec import Spec
runner.prepare()
spec = Spec(seed=2, nodes=3, pods=6, minutes=0.3, faults=2, calm=40.0, koordlets=0, herd=True, keep=100, kinds=("kill", "lose-answer"))
result = runner.run(spec) if sys.argv[1] == "alone" else next(runner.many(iter([spec]), 1))
print(result.digest, result.entries, result.violations, result.failure)
"""


def test_what_is_due_is_taken_once_and_at_the_earliest_time() -> None:
    agenda = Agenda()
    agenda.put(3.0, "pod", "a")
    agenda.put(1.0, "pod", "a")
    agenda.put(2.0, "beat", "n")
    agenda.put(9.0, "pod", "a")
    assert list(agenda.take(0.5)) == []
    assert list(agenda.take(5.0)) == [("pod", "a"), ("beat", "n")]
    assert list(agenda.take(99.0)) == []
    agenda.put(4.0, "pod", "a")
    assert list(agenda.take(4.0)) == [("pod", "a")]


def test_a_world_of_many_nodes_is_modelled_more_coarsely_and_no_other() -> None:
    small, large = Spec(nodes=LARGE), Spec(nodes=LARGE + 1, schedulers=2)
    assert sized(small) == small
    coarse = sized(large)
    assert coarse.herd
    assert coarse.keep
    assert (coarse.schedulers, coarse.managers, coarse.deschedulers) == (2, 2, 2)


def _event(verb: str, version: int, node: str, phase: str = "Running") -> Any:
    meta = {"name": "p", "namespace": "apps", "resourceVersion": str(version)}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase}}
    return SimpleNamespace(type=verb, rv=version, entry=SimpleNamespace(obj=body, name="p", namespace="apps"))


def test_the_history_knows_what_each_node_holds() -> None:
    history = History(lambda: 0.0)
    history.on_store(_event("ADDED", 1, ""))
    assert not any(history.placed.values())
    history.on_store(_event("MODIFIED", 2, "n1"))
    assert list(history.placed["n1"]) == ["apps/p"]
    history.on_store(_event("MODIFIED", 3, "n1", "Succeeded"))
    assert not history.placed["n1"]
    history.on_store(_event("MODIFIED", 4, "n1"))
    history.on_store(_event("DELETED", 5, "n1"))
    assert not history.placed["n1"]


def test_a_thinned_history_has_the_digest_of_a_whole_one() -> None:
    whole, thin = History(lambda: 0.0), History(lambda: 0.0)
    thin.thin(2)
    for history in (whole, thin):
        for version in range(1, 6):
            history.on_store(_event("ADDED" if version == 1 else "MODIFIED", version, f"n{version}"))
    assert (len(thin.entries), thin.count) == (2, 5)
    assert (whole.digest, whole.count) == (thin.digest, 5)


def test_one_program_keeps_many_nodes_and_the_history_is_the_same_for_any_hash_seed_alone_and_among_others() -> None:
    outputs = []
    for seed, how in (("1", "alone"), ("2", "rehearsed")):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", _LIVE, how],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience.seconds(110),
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    digest, entries, rest = outputs[0].split(" ", 2)
    assert (len(digest), rest.strip()) == (64, "()")
    assert int(entries) > 100
