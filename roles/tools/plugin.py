"""`koord plugin new`: the file of a plugin and a test that runs, for those kinds that live outside the program (BEY-DOC-01)."""

from __future__ import annotations

import contextlib
import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path

import click

from koord.process.errors import ConfigurationError, UsageError
from koord.process.flags import GoCommand

KINDS = {
    "scheduler": "koord scheduler --config=scheduler.yaml --plugin-path={file}",
    "strategy": "koord koordlet --plugin-path={file} --qos-extension-plugins={name}=true",
    "pod-policy": "koord koordlet --plugin-path={file}",
}
"""Kinds of plugins, and how each is brought in."""


@click.group("plugin")
def command() -> None:
    """Begin a plugin of your own."""


@command.command("new", cls=GoCommand)
@click.argument("kind", type=click.Choice(tuple(KINDS)))
@click.argument("name")
@click.option("--directory", type=click.Path(path_type=Path), default=Path(), help="Where the two files go; made if it is not there.")
def new(kind: str, name: str, directory: Path) -> None:
    """Write the file of a plugin and its test.

    NAME is written like QuietHours or quiet_hours. Neither file may exist. docs/plugin-guide.md says what a plugin may do.
    """
    title, module = spelled(name)
    made = {directory / f"{module}.py": kind.replace("-", "_"), directory / f"test_{module}.py": f"test_{kind.replace('-', '_')}"}
    for path in made:
        if path.exists():
            raise ConfigurationError(f"{path} is there already")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, template in made.items():
            path.write_text(text(template, title, module))
    except OSError as error:
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink()
        raise ConfigurationError(f"{error.filename or directory}: {error.strerror}") from error
    first, second = made
    print(f"{first}\n{second}\n")
    print(f"Try it:      python -m pytest {second}")
    print(f"Bring it in: {KINDS[kind].format(file=first, name=title)}")


def spelled(name: str) -> tuple[str, str]:
    """The name of the class and that of the module. Raises ConfigurationError."""
    words = [word for part in name.split("_") for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", part)]
    module = "_".join(word.lower() for word in words)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or not module or keyword.iskeyword(module):
        raise UsageError(f"{name!r} is no name of a plugin: letters, digits, underscores, a letter first (QuietHours, quiet_hours)")
    if module in sys.stdlib_module_names:
        raise UsageError(f"{name!r}: Python has a module {module} of its own, which the test would import instead")
    title = name if name[0].isupper() and "_" not in name else "".join(word[0].upper() + word[1:] for word in words)
    return title, module


def text(template: str, title: str, module: str) -> str:
    """A template of the package with the names put in."""
    found = files("roles.tools").joinpath("templates", f"{template}.py.txt").read_text()
    return found.replace("MyPlugin", title).replace("my_plugin", module)
