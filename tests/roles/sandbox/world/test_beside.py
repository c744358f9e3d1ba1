"""Another release beside the running one in a world: modules of its own, the world's clock, and a clear no where it does not fit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from koord import seams
from roles.sandbox.cli import command
from roles.sandbox.world import beside, programs
from roles.sandbox.world.beside import Mixture, Unfit
from tests.support import patience

ROOT = Path(__file__).resolve().parents[4]
_LIVE = """
import sys
from roles.sandbox.world import beside, runner
from roles.sandbox.world.spec import Spec

other, ours = beside.load(sys.argv[1]), beside.running()
runner.prepare()
assert other.seams.System is not ours.seams.System and other.life is not ours.life
assert other.seams.__file__.startswith(sys.argv[1])
own = [module for name, module in sys.modules.items() if name.partition(".")[0] == "koord_beside" and hasattr(module, "orjson")]
assert own and all(module.orjson is sys.modules["orjson"] for module in own), "what others wrote is shared"
spec = Spec(5, nodes=2, pods=6, faults=0, calm=20.0, hostile=0, kinds=("kill",), beside=sys.argv[1])
told = [runner.run(spec, story=True) for _ in range(2)]
assert told[0].digest == told[1].digest, "a seed is one history"
print(*told[0].story, *told[0].violations, told[0].failure, sep="\\n")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The running release once more, as another one."""
    for name in beside.PACKAGES:
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.timeout(240)
def test_both_releases_lead_in_turns_and_all_rules_hold(tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIVE, tree], cwd=ROOT, capture_output=True, text=True, timeout=patience.seconds(230), check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "! " not in done.stdout, done.stdout[-3000:]
    other = set(re.findall(r"started (\S+) of the other release", done.stdout))
    leaders = {(lease, who in other) for who, lease in re.findall(r"(\S+) takes koordinator-system/(\S+)", done.stdout)}
    assert {role.rpartition("-")[0] for role in other if role[-1] in "ab"} == {"scheduler", "manager", "descheduler"}
    assert leaders == {(lease, kind) for lease in ("koord-scheduler", "koordinator-manager", "koord-descheduler") for kind in (True, False)}


def test_one_of_two_replicas_is_of_the_other_release_and_a_node_agent_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "load", lambda tree: beside.running())
    mixture, alone = Mixture("world/3", "/other"), Mixture("world/3", "/other", alone=True)
    for role in ("scheduler", "manager", "descheduler"):
        assert {mixture.is_former(f"{role}-{letter}", life) for letter in "ab" for life in (1, 2)} == {True, False}
        assert mixture.is_former(f"{role}-a", 1) is mixture.is_former(f"{role}-a", 7)
        assert alone.is_former(f"{role}-a", 1)
        assert alone.is_former(f"{role}-b", 1)
        hurt = [fault for fault in mixture.turns(60.0) if fault.target.startswith(role)]
        assert [fault.target[-1] for fault in hurt] in (["a", "b"], ["b", "a"])
        assert hurt[0].at + hurt[0].seconds < hurt[1].at + 1.0, "one of them is there"
    assert {mixture.is_former("koordlet-sim-000", life) for life in range(1, 9)} == {True, False}
    for stranger in ("kubelet-sim-000", "users", "apiserver", "controllers"):
        assert not mixture.is_former(stranger, 1)
        assert not alone.is_former(stranger, 1)
    assert Mixture("world/3", "").turns(60.0) == []


class _System(seams.System):
    def moon(self) -> float:
        """What no world knows."""
        return 0.0


class _Files(seams.Files):
    def truncate(self, fd: int, length: int, sparse: bool = False) -> None:
        """With more than a world gives."""


@pytest.mark.parametrize(
    ("system", "files", "number", "said"),
    [
        (seams.System, seams.Files, 1, []),
        (_System, seams.Files, 1, ["koord.seams: _System.moon(self) -> 'float'"]),
        (seams.System, _Files, 1, ["koord.seams: _Files.truncate(self, fd: 'int', length: 'int', sparse: 'bool' = False) -> 'None'"]),
        (seams.System, seams.Files, 2, ["its programs have contract 2, this release has 1"]),
    ],
)
def test_a_release_whose_seams_do_not_fit_is_refused(system: Any, files: Any, number: int, said: list[str]) -> None:
    composed = {name: getattr(programs, name) for name in ("scheduler", "manager", "descheduler", "koordlet")}
    other: Any = SimpleNamespace(
        seams=SimpleNamespace(System=system, Files=files), programs=SimpleNamespace(CONTRACT=number, PROCESS=None, **composed)
    )
    assert beside.misfits(other) == said
    del other.programs.CONTRACT
    other.programs.manager = lambda world, name: None
    del other.programs.PROCESS
    assert beside.misfits(other)[-2:] == ["roles.sandbox.world.programs: PROCESS", "roles.sandbox.world.programs: manager"]


def test_what_is_no_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "koord").mkdir()
    (tmp_path / "koord" / "__init__.py").touch()
    with zipfile.ZipFile(tmp_path / "release.whl", "w") as archive:
        archive.writestr("release-1/koord/__init__.py", "")
        archive.writestr("release-1/roles/__init__.py", "")
    with beside.opened(str(tmp_path / "release.whl")) as tree:
        assert sorted(os.listdir(tree)) == ["koord", "roles"]
    assert not os.path.exists(tree)
    for path, said in ((tmp_path, "it has no package roles"), (tmp_path / "none", "neither a directory nor a zip file")):
        done = CliRunner().invoke(command, ["world", f"--beside={path}"])
        assert done.exit_code == 2
        assert said in done.output
    done = CliRunner().invoke(command, ["world", f"--beside={tmp_path}", "--hunt"])
    assert (done.exit_code, "not with --hunt" in done.output) == (2, True)


def test_a_tree_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    for name in beside.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    code = "import sys; from roles.sandbox.world import beside; beside.load(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=patience.seconds(60), check=False
    )
    assert done.stderr.splitlines()[-1].endswith("cannot be loaded: ModuleNotFoundError: No module named 'koord_beside.koord.seams'")
    assert Unfit.__name__ in done.stderr
