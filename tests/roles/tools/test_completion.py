"""Completion in shells and for `kubectl koord`, and one form of every mistake on the command line (BEY-WHY-01)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from koord.cli import main
from koord.decisions.record import Record, Subject
from koord.decisions.recorder import Recorder
from koord.process.http import OpsServer
from roles.tools import completion, explain
from tests.support import patience

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_has_a_script(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_KOORD_COMPLETE" in done.output


def test_bash_takes_its_script() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).output
    done = subprocess.run(["bash", "-c", f"{script}\ncomplete -p koord"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "_koord_completion" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["wh"], ["why"]),
        (["why", ""], ["node", "pod", "podgroup", "quota"]),
        (["top", "--so"], ["--sort"]),
        (["top", "--sort", "me"], ["memory"]),
    ],
)
def test_words_are_completed(arguments: list[str], words: list[str]) -> None:
    assert [item.value for item in completion.words(arguments)] == words


def test_kubectl_is_told_in_its_own_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-koord", "wh"])
    completion.kubectl()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t")[0] == "why"
    assert lines[-1] == ":4"


def test_the_plugin_is_installed_and_names_itself() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for name, target in re.findall(r'^(kubectl[\w-]+) = "(.+)"$', text, re.MULTILINE):
        module, _, function = target.partition(":")
        assert callable(getattr(__import__(module, fromlist=["x"]), function)), name
    assert "kubectl-koord" in text
    assert entry_points is not None
    program = "import sys; sys.argv=['kubectl-koord', 'nope']; from koord.cli import kubectl; kubectl()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ["nope"],
        ["scheduler", "--nope"],
        ["manager", "--feature-gates=Nope=true"],
        ["koordlet", "--feature-gates=Nope=true"],
        ["scheduler", "--feature-gates=Nope=true"],
        ["sandbox", "up", "--nodes", "x"],
        ["sandbox", "nope"],
        ["why", "pod"],
        ["completion", "tcsh"],
        ["top", "-o", "xml"],
    ],
)
def test_every_mistake_on_the_command_line_is_one_line_and_status_2(words: list[str]) -> None:
    done = CliRunner().invoke(main, words, prog_name="koord")
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    assert re.match(r"koord( [\w-]+)*: error: ", done.stderr), done.stderr


def test_every_reason_is_on_the_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) >= set(explain._PLAIN)


def test_yaml_says_what_json_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KOORD_ENDPOINTS", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def story() -> None:
        recorder = Recorder("koordlet")
        recorder.record(
            Record("koordlet", Subject("Pod", "web", "api-1", "u"), time.time(), "Evicted", "MemoryEvict", "node memory is at 92%")
        )
        server = OpsServer(role="koordlet", recorder=recorder)
        await server.start()
        outputs = {}
        for form in ("json", "yaml"):
            arguments = ["why", "pod", "web/api-1", "--endpoint", server.url, "-o", form]
            outputs[form] = (await asyncio.to_thread(CliRunner().invoke, main, arguments)).output
        assert json.loads(outputs["json"]) == yaml.safe_load(outputs["yaml"])
        assert json.loads(outputs["json"])["reason"] == "Evicted"
        # --watch: the whole explanation, then a line when the decision changes
        command = [sys.executable, "-m", "koord.cli", "why", "pod", "web/api-1", "--endpoint", server.url, "--watch", "--interval=100ms"]
        child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ})
        assert child.stdout is not None
        first = (await asyncio.wait_for(child.stdout.readline(), patience.seconds(30))).decode()
        assert first == "Pod web/api-1 was evicted (koordlet): node memory is at 92%.\n"
        recorder.record(Record("scheduler", Subject("Pod", "web", "api-1", "u"), time.time() + 1, "Scheduled", message="placed on n2"))
        while True:
            line = (await asyncio.wait_for(child.stdout.readline(), patience.seconds(30))).decode()
            if "was placed" in line:
                break
            assert line
        child.terminate()
        await child.wait()
        await server.stop()

    asyncio.run(story())
