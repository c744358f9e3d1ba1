"""The `koord` command itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from koord.cli import COMMANDS, main
from koord.decisions.record import Record, Subject, encode
from koord.process.flags import GoCommand
from koord.version import VERSION
from tests.support import patience


def koord(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "koord.cli", *args], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_resolves_and_has_help(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.output


def test_help_lists_every_command_and_imports_no_role() -> None:
    text = koord("--help").stdout
    for name, (_, _, line) in COMMANDS.items():
        assert name in text
        assert line.split(":")[0] in " ".join(text.split())
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom koord.cli import main\nCliRunner().invoke(main, ['--help'])\n"
        "heavy = ('roles.', 'aiohttp', 'msgspec', 'pydantic', 'numpy', 'kubernetes', 'rich', 'grpc')\n"
        "print([name for name in sys.modules if (name + '.').startswith(heavy)])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_version() -> None:
    assert koord("--version").stdout == f"koord, version {VERSION}\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["shceduler"], "koord: error: unknown command: shceduler; did you mean scheduler?"),
        (["koordlett", "--x"], "koord: error: unknown command: koordlett; did you mean koordlet?"),
        (["--no-such"], "koord: error: No such option '--no-such'."),
        (["xyz"], f"koord: error: unknown command: xyz; commands: {', '.join(COMMANDS)}"),
    ],
)
def test_unknown_commands_are_one_line(args: list[str], line: str) -> None:
    result = koord(*args)
    assert (result.returncode, result.stderr) == (2, line + "\n")


@pytest.mark.parametrize("role", ["scheduler", "manager", "descheduler", "koordlet", "runtime-proxy"])
def test_roles_refuse_unknown_flags_in_one_line(role: str) -> None:
    result = koord(role, "--no-such-flag=1")
    assert result.returncode == 2
    assert result.stderr == f"koord {role}: error: unknown flag: --no-such-flag\n"


def test_no_numeric_threads() -> None:
    code = "import os, click\nfrom koord.cli import main\n"
    code += "main.get_command(click.Context(main), 'why')\nprint(os.environ['OPENBLAS_NUM_THREADS'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize("role", ["koordlet", "manager", "scheduler", "descheduler"])
def test_the_help_of_a_role_has_sections_and_every_flag_once(role: str) -> None:
    command = main.get_command(click.Context(main), role)
    assert isinstance(command, GoCommand)
    flags = [param.opts[0].lstrip("-") for param in command.params if isinstance(param, click.Option)]
    assert set(command.sections) <= set(flags), "a section begins at a flag that is not there"
    text = CliRunner().invoke(main, [role, "--help"]).output
    headings = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert {"API server", "Logging", "Other"} <= set(headings)
    shown = re.findall(r"^  (?:-\w, )?--([\w-]+)", text, re.MULTILINE)
    assert len(shown) == len(set(shown))
    assert text.index("--kubeconfig") > text.index("API server:")


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: a, user: {token: x}}]
"""


@pytest.mark.parametrize(
    "line",
    [
        "scheduler --leader-elect-lease-duration=1s",
        "scheduler --leader-elect-resource-lock=configmaps",
        "scheduler --leader-elect-resource-name=",
        "scheduler --tls-cipher-suites=mine",
        "scheduler --tls-cert-file=/a",
        "scheduler --workload-auditor-metric-labels=mine",
        "scheduler --master=somewhere",
        "manager --leader-elect-renew-deadline=20s",
        "manager --controllers=mine",
        "manager --recommender-prometheus-address=here",
        "manager --feature-gates=Mine=true",
        "descheduler --leader-elect-lease-duration=1s",
        "descheduler --leader-elect-resource-lock=configmaps",
        "descheduler --scheduler-plugin-path=/a",
        "descheduler --feature-gates=Mine",
        "simulate --curve=1",
        "apiserver --event-ttl=soon",
        "apiserver --token=a --anonymous",
        "apiserver --token=",
        "apiserver --enable-controllers=mine",
        "apiserver --webhook-service=mine",
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_that_names_the_flag_and_status_2(line: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    role, flag = line.split()[:2]
    done = subprocess.run(
        [sys.executable, "-m", "koord.cli", *line.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience.seconds(60),
        env={**os.environ, "KUBECONFIG": str(file)},
    )
    said = done.stderr.splitlines()
    assert (done.returncode, len(said)) == (2, 1), done.stderr
    assert said[0].startswith(f"koord {role}: error: ")
    assert flag.split("=")[0] in said[0] or role == "simulate" or "--leader-elect-*" in said[0]


@pytest.mark.parametrize(
    ("args", "status"), [(["--help"], 0), (["scheduler", "--help"], 0), (["install", "--print"], 0), (["lint", "/no/such/file"], 141)]
)
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(args: list[str], status: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "koord.cli", *args], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == status
    assert not re.search("Traceback|Broken|Exception", done.stderr)


def test_a_simulation_that_nobody_read_has_not_said_that_all_fits(tmp_path: Path) -> None:
    shape = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": shape, "allocatable": shape}}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container]}
    pod = {"kind": "Pod", "metadata": {"name": "a", "namespace": "default"}, "spec": spec}
    for name, body in (("node", node), ("pod", pod)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"apiVersion": "v1", **body}))
    command = [sys.executable, "-m", "koord.cli", "simulate", f"--snapshot={tmp_path}/node.json", f"--add={tmp_path}/pod.json"]
    reader, writer = os.pipe()
    os.close(reader)
    read = subprocess.run(command, capture_output=True, text=True, check=False)
    unread = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (read.returncode, unread.returncode) == (2, 141), (read.stdout, read.stderr, unread.stderr)


@pytest.mark.parametrize("args", [["--help"], ["top", "--help"], ["install", "--print"], ["lint", "/no/such/file"]])
def test_output_that_cannot_be_written_is_one_line(args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "koord.cli", *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "koord: error: cannot write: No space left on device")
    assert not re.search("Traceback|Exception", done.stderr)


@pytest.mark.parametrize(
    ("args", "status"),
    [(["--help"], 0), (["install", "--print"], 0), (["lint", "/no/such/file"], 1), (["why", "node", "n1", "--decision-log=LOGS"], 0)],
)
def test_a_closed_stdout_is_as_one_that_nobody_looks_at(args: list[str], status: int, tmp_path: Path) -> None:
    record = Record("koordlet", Subject("Node", "", "n1"), 1.0, "Suppressed", "r", "quota")
    (tmp_path / "koordlet.jsonl").write_bytes(encode(record) + b"\n")
    words = [word.replace("LOGS", str(tmp_path)) for word in args]
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "koord.cli", *words]
    environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"} | {"HOME": str(tmp_path)}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr


def test_the_help_names_every_command_once_in_its_group() -> None:
    text = CliRunner().invoke(main, ["--help"], prog_name="koord").output
    found = re.findall(r"^  ([a-z-]+) {2,}[A-Z]", text.partition("Options:")[2].partition("\n\n")[2], re.MULTILINE)
    assert sorted(found) == sorted(COMMANDS)
    assert found[0] == "sandbox", "what one tries first stands first"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_that_lacks_characters_loses_them_and_not_the_command(encoding: str, tmp_path: Path) -> None:
    numbers = {"allowance_milli": 13623, "capacity_milli": 32000, "threshold_percent": 65, "non_be_pods_milli": 7177}
    record = Record("koordlet", Subject("Node", "", "n1"), 1.0, "Suppressed", "BECPUSuppress", "quota", numbers)
    (tmp_path / "koordlet.jsonl").write_bytes(encode(record) + b"\n")
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    environment.pop("KUBECONFIG", None)
    command = [sys.executable, "-m", "koord.cli", "why", "node", "n1", "--decision-log", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=patience.seconds(60), check=False)
    text = done.stdout.decode(encoding)
    assert b"Traceback" not in done.stderr, done.stderr
    minus, times = {"ascii": ("-", "x"), "latin-1": ("-", "×"), "utf-8": ("−", "×")}[encoding]
    assert text.startswith(
        f"Node n1 was suppressed (koordlet): best-effort pods may use 13.6 CPUs: 32 {times} 65 % {minus} 7.18 other pods."
    )
