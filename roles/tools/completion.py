"""`koord completion`: the script that makes a shell complete commands and flags; and what kubectl asks for the same (`kubectl koord`)."""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

PROGRAM, VARIABLE = "koord", "_KOORD_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
NO_FILES = ":4"
"""Cobra's directive, which kubectl expects after the words: do not complete file names."""


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print a script that completes koord's commands and flags; docs/cli.md says where it goes."""
    from koord.cli import main

    made = get_completion_class(shell)
    assert made is not None
    if shell == "bash":  # click runs bash to look at its version; what is printed is the same
        print(ShellComplete.source(made(main, {}, PROGRAM, VARIABLE)))
        return
    print(made(main, {}, PROGRAM, VARIABLE).source())


def words(arguments: list[str]) -> list[CompletionItem]:
    """What may follow the arguments; the last one is incomplete, and may be empty."""
    from koord.cli import main

    complete = ShellComplete(main, {}, PROGRAM, VARIABLE)
    return complete.get_completions(arguments[:-1], arguments[-1] if arguments else "")


def kubectl() -> None:
    """`kubectl_complete-koord`: kubectl runs it with the words after `kubectl koord`, and reads a word a line and a directive."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for item in words(sys.argv[1:] or [""]):
        if item.type == "plain":
            print(f"{item.value}\t{item.help}" if item.help else item.value)
    print(NO_FILES)
