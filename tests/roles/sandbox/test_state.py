"""State on disk: ours alone, endpoints, and cleaning after a killed run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from koord.apiserver import kubeconfig
from koord.kube.config import load
from roles.sandbox import state
from roles.sandbox.process_kubelet import layout
from roles.sandbox.process_kubelet.cgroups import RunGroups
from roles.sandbox.state import Run, State, StateError, beside
from roles.tools.gather import find_endpoints
from tests.support import patience


def test_directory_follows_xdg() -> None:
    assert state.directory({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/koord-sandbox")
    assert state.directory({}) == Path(f"/tmp/koord-sandbox-{os.getuid()}")


def test_a_directory_open_to_others_is_closed(tmp_path: Path) -> None:
    target = tmp_path / "s"
    target.mkdir(mode=0o777)
    target.chmod(0o777)
    State(target)
    assert target.stat().st_mode & 0o777 == 0o700


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(StateError, match="not a directory"):
        State(tmp_path / "link")


@pytest.mark.root
def test_a_directory_of_someone_else_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a directory away")
    target = tmp_path / "s"
    target.mkdir()
    os.chown(target, 65534, 65534)
    with pytest.raises(StateError, match="65534"):
        State(target)


def test_endpoints_belong_to_the_run_that_wrote_them(tmp_path: Path) -> None:
    store = State(tmp_path / "s")
    first, second = Run.new(), Run.new()
    store.publish(first, {"manager": "http://127.0.0.1:1"})
    store.publish(second, {"manager": "http://127.0.0.1:2"})
    store.unpublish(first)
    data = orjson.loads((store.path / state.ENDPOINTS).read_bytes())
    assert data["manager"] == "http://127.0.0.1:2"
    assert (store.path / state.ENDPOINTS).stat().st_mode & 0o777 == 0o600
    store.unpublish(second)
    assert not (store.path / state.ENDPOINTS).exists()


def test_runs_side_by_side_do_not_disturb_each_other(tmp_path: Path) -> None:
    def run_of(process: subprocess.Popen[bytes]) -> Run:
        return Run(state.new_id(), process.pid, state.process_start(process.pid) or 0, state.boot_id())

    def current() -> Any:
        kubeconfig = (store.path / state.KUBECONFIG).read_text()
        data = orjson.loads((store.path / state.ENDPOINTS).read_bytes())
        assert kubeconfig == data["run"], "kubeconfig and endpoints are of one run"
        return kubeconfig

    store = State(tmp_path / "s")
    processes = [subprocess.Popen(["sleep", "300"]) for _ in range(3)]
    try:
        first, second, third = (run_of(process) for process in processes)
        for run in (first, second, third):
            (store.register(run) / state.KUBECONFIG).write_text(run.id)
            store.publish(run, {"manager": "http://127.0.0.1:1"})
            assert current() == first.id
        assert beside(store, third) == [
            *(
                f"a sandbox runs already (pid {one.pid}): --kubeconfig {store.scratch(one.id) / 'kubeconfig'}"
                for one in store.reachable()[:2]
            ),
            f"this one (pid {third.pid}): --kubeconfig {store.scratch(third.id) / 'kubeconfig'}",
        ]
        for name in ("kubeconfig", "endpoints.json"):
            assert (store.scratch(second.id) / name).is_file()
        store.unpublish(third)
        store.forget(third.id)
        assert current() == first.id
        processes[0].kill()
        processes[0].wait()
        assert store.clean(None) == ([first.id], [])
        assert current() == second.id
        assert beside(store, second) == []
        store.unpublish(second)
        assert not any(os.path.lexists(store.path / name) for name in (state.KUBECONFIG, state.ENDPOINTS, state.CURRENT))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_why_asks_the_sandbox_of_the_kubeconfig(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    store = State(state.directory(environ))
    runs = [Run.new(), Run.new()]
    for number, run in enumerate(runs):
        made = kubeconfig.build(f"http://127.0.0.1:{number + 1}", "token")
        kubeconfig.write(store.register(run) / state.KUBECONFIG, made)
        store.publish(run, {"manager": f"http://127.0.0.1:1{number}"})
    for number, run in enumerate(runs):
        server = load(str(store.scratch(run.id) / state.KUBECONFIG))
        assert [one.url for one in find_endpoints((), environ, server)] == [f"http://127.0.0.1:1{number}"]


def test_a_living_run_is_not_cleaned(tmp_path: Path) -> None:
    store = State(tmp_path / "s")
    run = Run.new()
    assert run.alive
    store.register(run)
    assert store.clean(None) == ([], [])
    assert [r.id for r in store.runs()] == [run.id]


def test_a_reused_pid_does_not_keep_a_run_alive() -> None:
    run = Run.new()
    assert not Run(run.id, run.pid, run.started + 1, run.boot).alive
    assert not Run(run.id, run.pid, run.started, "another boot").alive


def test_a_broken_run_file_is_passed_over(tmp_path: Path) -> None:
    store = State(tmp_path / "s")
    (store.path / "run-01234567.json").write_text("{")
    (store.path / "run-89abcdef.json").write_text("[]")
    assert store.runs() == []


def test_a_run_that_ends_while_one_looks_is_passed_over(tmp_path: Path) -> None:
    store, run = State(tmp_path / "s"), Run.new()
    store.register(run)
    (store.path / "run-0123abcd.json").symlink_to("gone")  # listed, and not there any more when it is read
    assert store.runs() == [run]


@pytest.mark.root
def test_what_a_killed_run_left_is_removed_and_nothing_else(hierarchies: layout.Hierarchies, tmp_path: Path) -> None:
    store = State(tmp_path / "s")
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    run = Run("dead0a01", dead.pid, 1, state.boot_id())
    store.register(run)
    left = RunGroups(hierarchies, run.id)
    left.create_top()
    stranger = RunGroups(hierarchies, "dead0a02")
    stranger.create_top()
    sleeper = subprocess.Popen(["sleep", "300"])
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        left.attach("", sleeper.pid)
        stranger.attach("", bystander.pid)
        assert store.clean(hierarchies) == (["dead0a01"], [])
        assert sleeper.wait(patience.seconds(5)) == -9
        assert not any(top.exists() for top in left.roots.values())
        assert bystander.poll() is None
        assert {p.name for p in state.strangers(hierarchies, set())} >= {"koord-sandbox-dead0a02"}
        assert not store.scratch(run.id).exists()
    finally:
        stranger.remove_all()
        for process in (sleeper, bystander):
            process.kill()
            process.wait()
