"""`koord plugin new`: what it writes runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from koord.cli import main
from roles.koordlet import extensions
from roles.scheduler.engine import registry
from roles.tools.plugin import KINDS, spelled


def new(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["plugin", "new", *arguments])
    return result.exit_code, result.output


@pytest.mark.feature("BEY-DOC-01")
def test_each_kind_comes_with_a_test_that_passes_and_can_be_brought_in(tmp_path: Path) -> None:
    for kind in KINDS:
        made = tmp_path / kind
        code, told = new(kind, "GoodThing", "--directory", str(made))
        assert code == 0
        assert f"python -m pytest {made}/test_good_thing.py" in told
        assert "--plugin-path=" in told
        assert sorted(each.name for each in made.iterdir()) == ["good_thing.py", "test_good_thing.py"]
        assert "MyPlugin" not in (made / "good_thing.py").read_text() + (made / "test_good_thing.py").read_text()
        run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(made)]
        ended = subprocess.run(run, cwd=made, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout
        assert "passed" in ended.stdout
    assert "GoodThing" in registry([str(tmp_path / "scheduler" / "good_thing.py")])
    assert "GoodThing" in registry([str(tmp_path / "scheduler")]), "a folder's tests are no plugins"
    assert len(extensions.load([str(tmp_path / "pod-policy" / "good_thing.py")]).policies) == 1


@pytest.mark.feature("BEY-DOC-01")
def test_nothing_is_overwritten_and_names_are_names(tmp_path: Path) -> None:
    (tmp_path / "test_good_thing.py").write_text("mine")
    code, told = new("scheduler", "GoodThing", "--directory", str(tmp_path))
    assert code == 1
    assert told.endswith(f" plugin new: error: {tmp_path}/test_good_thing.py is there already\n")
    assert [each.name for each in tmp_path.iterdir()] == ["test_good_thing.py"]
    for name in ("9lives", "class", "a-b", "_", "a/b"):
        code, told = new("scheduler", name, "--directory", str(tmp_path))
        assert code == 2
        assert f"{name!r} is no name of a plugin" in told
    code, told = new("scheduler", "Json", "--directory", str(tmp_path))
    assert (code, "Python has a module json of its own" in told) == (2, True)
    code, told = new("scheduler", "Good", "--directory", f"{tmp_path}/test_good_thing.py/x")
    assert (code, told.count("\n")) == (1, 1)


def test_both_spellings_of_a_name_mean_the_same() -> None:
    for name in ("QuietHours", "quiet_hours", "quietHours"):
        assert spelled(name) == ("QuietHours", "quiet_hours")
    assert spelled("GPUHours2") == ("GPUHours2", "gpu_hours2")
