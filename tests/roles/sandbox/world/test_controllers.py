"""What plays the controller manager in a world writes what the real one does: others tell by it that a controller is at work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson

from tests.support import patience

ROOT = Path(__file__).resolve().parents[4]
LIVE = """
import sys, tempfile
from pathlib import Path
import orjson
from roles.sandbox.world import runner
from roles.sandbox.world.spec import Spec, Workload
from roles.sandbox.world.world import World, quiet
runner.prepare()
spec = Spec(seed=1, nodes=2, minutes=1.0, faults=0, calm=20.0, gpu_nodes=0, hostile=0, koordlets=0,
            workloads=(Workload("web", 3, 200, 64),), schedulers=1, managers=0, deschedulers=0)
world = World(spec, Path(tempfile.mkdtemp()))
with quiet():
    world.run()
(found,) = world.history.of("replicaset.apps").values()
sys.stdout.buffer.write(orjson.dumps(found))
"""


def test_a_replica_set_says_what_is_there_and_which_generation_was_seen() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", LIVE], cwd=ROOT, env=environment, capture_output=True, timeout=patience.seconds(110), check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = orjson.loads(done.stdout)
    status = found["status"]
    assert status["observedGeneration"] == found["metadata"]["generation"] >= 1
    assert [status[name] for name in ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")] == [3] * 4
