"""docs/reference/commands.md: every command, argument and flag, as click knows them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from koord.cli import COMMANDS, main
from roles.tools.reference.environment import VARIABLES
from roles.tools.reference.markdown import between, code, noted, page, table

_ALIKE = frozenset({"--help", "--version"})


def walk(command: click.Command = main, path: str = "koord") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, depth first; hidden ones too."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from walk(child, f"{path} {name}")


def options(command: click.Command, path: str) -> list[click.Option]:
    """The flags of a command without --help and --version, in the order of its help."""
    params = command.get_params(click.Context(command, info_name=path))
    return [param for param in params if isinstance(param, click.Option) and not _ALIKE.intersection(param.opts)]


def default_of(option: click.Option) -> str:
    """The default as it would be written on the command line; "" where there is none."""
    default = option.default
    if callable(default):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    text = str(default)
    return "" if default is None or text == "Sentinel.UNSET" or isinstance(default, (tuple, list)) else text


def _spelling(option: click.Option, context: click.Context) -> str:
    names = ", ".join(code(name) for name in sorted(option.opts, key=len, reverse=True))
    other = "".join(f", {code(name)}" for name in option.secondary_opts)
    if option.is_flag:
        return names + other
    if isinstance(option.type, click.Choice):
        return f"{names} {code(' or '.join(map(str, option.type.choices)))}"
    return f"{names} {code(option.make_metavar(context).removesuffix(' RANGE'))}"


def _meaning(option: click.Option) -> str:
    """The help with the range of a number, where it has one."""
    kind = option.type
    if not isinstance(kind, (click.IntRange, click.FloatRange)):
        return option.help or ""
    return noted(option.help or "", between(kind.min, kind.max))


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join((path, *command.collect_usage_pieces(context)))
    parts = [f"## {path}", inspect.cleandoc(command.help or ""), f"    {usage}"]
    if command.hidden:
        parts.insert(2, "The sandbox starts these itself; `--help` does not show them.")
    known = options(command, path)
    rows = [(_spelling(option, context), code(default_of(option)), _meaning(option)) for option in known if not option.hidden]
    if rows:
        parts.append(table(("Flag", "Default", "Meaning"), rows))
    inert = [(_spelling(option, context), option.help or "") for option in known if option.hidden]
    if inert:
        parts += ["Accepted, and not shown by `--help`:", table(("Flag", "Meaning"), inert)]
    return "\n\n".join(parts)


def render() -> str:
    """The page."""
    intro = (
        "Roles read their flags as Go programs do: `--flag=value`, `--flag value`, `--bool`, `--bool=false`. Durations are written like "
        "`300ms`, `15s` or `1h30m`. Whatever is wrong on the command line ends a role with status 1 and one line. Every command has "
        "`--help`, every role `--version`."
    )
    overview = table(("Command", "What it does"), [(f"[`koord {name}`](#koord-{name})", line) for name, (_, _, line) in COMMANDS.items()])
    environment = [
        "## Environment variables",
        table(("Variable", "Read by", "Meaning"), [(code(name), *rest) for name, rest in VARIABLES.items()]),
    ]
    sections = [_section(path, command) for path, command in walk() if path != "koord"]
    return page("Commands and flags", intro, (overview, *environment, *sections))
