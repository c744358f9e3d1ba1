"""The `koord` command itself."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from koord.cli import COMMANDS, main
from koord.process.flags import GoCommand
from koord.version import VERSION


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
