"""Go-style flags on click: `--flag=value`, `--flag value`, `-flag=value`, `--bool`, `--bool=false`.

A role's command is made by `go_command`; its options are ordinary click options with the types below. Whatever is wrong on the
command line ends the process with status 2 and one clear line.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import Field, field, fields
from typing import IO, Any, NamedTuple, TypeVar

import click

from koord.api.labels import parse_go_bool
from koord.api.times import format_duration, parse_duration
from koord.config.errors import ConfigError
from koord.process.errors import ConfigurationError, is_usage
from koord.process.logs import SEVERITIES, LogOptions, parse_vmodule, setup
from koord.version import VERSION

F = TypeVar("F", bound=Callable[..., Any])


class FlagError(click.UsageError):
    """A mistake on the command line. Shown as one line, ends the process with status 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line, with the command it is about."""
        where = self.ctx.command_path if self.ctx is not None else "koord"
        line = " ".join(self.format_message().split())
        click.echo(f"{where}: error: {line}", file=file, err=file is None)


class Refused(FlagError):
    """A configuration or a cluster with which the command cannot do its work. Shown like a wrong flag, ends the process with status 1."""

    exit_code = 1


# -- types ---------------------------------------------------------------------------------------------------------


class DurationType(click.ParamType[float]):
    """A Go duration ("5m0s", "300ms", "0") as seconds."""

    name = "duration"

    def __init__(self, *, positive: bool = False) -> None:
        self.positive = positive

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; a number (a default) passes."""
        if isinstance(value, (int, float)):
            return float(value)
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self.positive and seconds <= 0:
            self.fail(f"{value!r} must be more than 0", param, ctx)
        return seconds


class BoolType(click.ParamType[bool]):
    """What Go's strconv.ParseBool accepts."""

    name = "bool"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """True or False."""
        if isinstance(value, bool):
            return value
        if (found := parse_go_bool(value)) is None:
            self.fail(f"{value!r} is no boolean; accepted: true, false, t, f, 1, 0", param, ctx)
        return found


class HostPort(NamedTuple):
    """A listen address. An empty host is every interface; `port` 0 with `disabled` False picks a free port."""

    host: str
    port: int
    disabled: bool = False

    def __str__(self) -> str:
        return "0" if self.disabled else f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str) -> HostPort:
    """Parse `:9316`, `127.0.0.1:80`, `[::1]:80`; `0` and an empty text switch the listener off. Raises ValueError."""
    if text in ("", "0"):
        return HostPort("", 0, disabled=True)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address must stand in brackets, as in [::1]:8080")
    if not (port.isascii() and port.isdigit() and len(port) < 9) or int(port) > 65535 or not colon:
        raise ValueError(f"{text!r} is no listen address; write host:port, :port, or 0 to switch it off")
    return HostPort(host, int(port))


class HostPortType(click.ParamType[HostPort]):
    """A listen address."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> HostPort:
        """A HostPort."""
        if isinstance(value, HostPort):
            return value
        try:
            return parse_host_port(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class CommaListType(click.ParamType[tuple[str, ...]]):
    """A comma-separated list as a tuple of words; an empty text is an empty list."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The words, without surrounding blanks."""
        if isinstance(value, (tuple, list)):
            return tuple(value)
        return tuple(word.strip() for word in str(value).split(",") if word.strip())


class IPType(click.ParamType[str]):
    """An IP address to listen on."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, unchanged."""
        try:
            ipaddress.ip_address(value)
        except ValueError:
            flag = param.opts[0] if param is not None else "the address"
            raise FlagError(f"{flag}: {value!r} is no IP address", ctx) from None
        return str(value)


Duration = DurationType()
IPAddress = IPType()
Bool = BoolType()
CommaList = CommaListType()
HostPortAddress = HostPortType()


def bool_option(*names: str, default: bool = False, **attributes: Any) -> Callable[[F], F]:
    """An option that may stand alone (`--x`) or have a value behind `=` (`--x=false`); never a value behind a blank."""
    return click.option(*names, type=Bool, default=default, show_default=True, metavar="BOOL", **attributes)


def duration_option(*names: str, default: str | float | None = None, positive: bool = False, **attributes: Any) -> Callable[[F], F]:
    """An option with a Go duration, more than 0 where it must be `positive`; the function gets seconds."""
    shown = format_duration(default) if isinstance(default, (int, float)) else default
    return click.option(*names, type=DurationType(positive=positive), default=shown, show_default=shown is not None, **attributes)


def gates_option(**attributes: Any) -> Callable[[F], F]:
    """`--feature-gates=A=true,B=false`, repeatable: the function gets one text, to be given to `FeatureGates.set_from_flag`."""

    def join(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> str:
        return ",".join(value.strip(",") for value in values if value.strip(","))

    attributes.setdefault("help", "Switches as Name=true|false, comma-separated; later ones win.")
    return click.option("--feature-gates", multiple=True, callback=join, metavar="NAME=BOOL,...", **attributes)


def always_allow_option(function: F) -> F:
    """`--authorization-always-allow-paths`: what needs no credentials on an address that others reach; the function gets a tuple."""
    return click.option(
        "--authorization-always-allow-paths",
        type=CommaList,
        default="/healthz,/readyz,/livez",
        show_default=True,
        help="Paths open to everybody, by plain HTTP too; /x/* stands for all below /x, /* for everything.",
    )(function)


# -- flags that are fields of a dataclass --------------------------------------------------------------------------


def flag(
    default: Any,
    help: str,
    name: str = "",
    *,
    type: Any = None,
    shown: Any = None,
    option: Callable[..., Any] | None = None,
    **attributes: Any,
) -> Any:
    """A dataclass's field that is a flag. Its type follows from the default, its name from the field's, unless they are given here.

    `shown` is the default in the flag's own unit, where a callback converts it; `option` makes a flag that is like no other.
    """
    if type is None and isinstance(default, (bool, tuple)):
        type = Bool if isinstance(default, bool) else CommaList
    return field(
        default=default, metadata={"flag": name, "shown": shown, "made": option, "option": {"type": type, "help": help, **attributes}}
    )


def flags_of(options: type[Any], *, but: Container[str] = ()) -> Callable[[F], F]:
    """Put the flags of a dataclass on a command, in the order of its fields, `but` for some fields."""

    def decorate(function: F) -> F:
        for one in reversed([one for one in fields(options) if "flag" in one.metadata and one.name not in but]):
            settings = dict(one.metadata["option"])
            if made := one.metadata["made"]:
                function = made(help=settings["help"])(function)
                continue
            shown = one.default if one.metadata["shown"] is None else one.metadata["shown"]
            if isinstance(settings["type"], DurationType) and not isinstance(shown, str):
                shown = format_duration(shown)
            elif isinstance(shown, bool):
                settings["metavar"] = "BOOL"
            elif isinstance(shown, tuple):
                shown = ",".join(shown)
            function = click.option(_flag_name(one), default=shown, show_default=shown != "", **settings)(function)
        return function

    return decorate


def taken(options: type[Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """What a command was told of the fields of a dataclass, by field."""
    named = {one.name: _flag_name(one)[2:].replace("-", "_") for one in fields(options) if "flag" in one.metadata}
    return {name: flags[parameter] for name, parameter in named.items() if parameter in flags}


def _flag_name(one: Field[Any]) -> str:
    return "--" + (one.metadata["flag"] or one.name.replace("_", "-"))


# -- the command ---------------------------------------------------------------------------------------------------


class Commands(click.Group):
    """A group that lists its commands with the whole first sentence of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit=1000)) for name, command in found if command and not command.hidden]
            )


_SHARED = {
    **dict.fromkeys(("decision-log", "decision-log-size"), "Decision log"),
    **dict.fromkeys(("kubeconfig", "context", "master"), "API server"),
    **dict.fromkeys(("log-format", "v", "vmodule", "logtostderr", "alsologtostderr", "skip-headers", "stderrthreshold"), "Logging"),
    **dict.fromkeys(("log-file", "log-dir", "log-file-max-size"), "Logging"),
    **dict.fromkeys(("version", "help"), "Other"),
}
"""Flags that many commands have, and the section of the help in which they stand; these sections come last."""


class GoCommand(click.Command):
    """A command that reads its arguments as Go programs do. `sections`: the titles of its help, by the first flag of each."""

    allow_interspersed_args = True

    def __init__(self, *args: Any, sections: Mapping[str, str] | None = None, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.sections = sections or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Flags by section, in the order in which they are declared; those that many commands have come last."""
        title, own, shared = "Options", dict[str, list[tuple[str, str]]](), dict[str, list[tuple[str, str]]]()
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or (isinstance(param, click.Argument) and not record[1]):  # the line of usage names it
                continue
            name = param.opts[0].lstrip("-")
            title = self.sections.get(name, title)
            if self.sections and name in _SHARED:
                shared.setdefault(_SHARED[name], []).append(record)
            else:
                own.setdefault(title, []).append(record)
        for heading in sorted(dict.fromkeys((*own, *_SHARED.values())), key=lambda each: each == "Other"):
            if records := own.get(heading, []) + shared.get(heading, []):
                with formatter.section(heading):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Spell the arguments click's way, then parse; every mistake becomes a FlagError."""
        if ctx.resilient_parsing:  # a line that is being completed is not whole yet
            return super().parse_args(ctx, args)
        try:
            return super().parse_args(ctx, self._normalized(ctx, args))
        except FlagError:
            raise
        except click.UsageError as error:
            raise FlagError(error.format_message(), ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the function; a configuration error that it raises is shown like a wrong flag, and ends with status 1 unless it is one."""
        try:
            return super().invoke(ctx)
        except FlagError:
            raise
        except click.UsageError as error:
            raise FlagError(error.format_message(), ctx) from error
        except click.ClickException as error:
            raise Refused(error.format_message(), ctx) from error
        except (ConfigurationError, ConfigError) as error:
            mistake = FlagError if is_usage(error) else Refused
            raise mistake(str(error), ctx) from error

    def _normalized(self, ctx: click.Context, args: Iterable[str]) -> list[str]:
        options: dict[str, click.Option] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option):
                options.update(dict.fromkeys((*param.opts, *param.secondary_opts), param))
        result: list[str] = []
        waiting = iter(args)
        for word in waiting:
            if word == "--":
                rest = [*waiting]
                if rest and not self._takes_arguments():
                    raise FlagError(f"unexpected argument {rest[0]!r}: only flags are accepted", ctx)
                return [*result, "--", *rest]
            if not word.startswith("-") or word == "-":
                if not self._takes_arguments():
                    raise FlagError(f"unexpected argument {word!r}: only flags are accepted", ctx)
                result.append(word)
                continue
            flag, equals, value = word.partition("=")
            known = _known(flag, options)
            if known is None:
                raise FlagError(f"unknown flag: {flag}{_hint(flag, options)}", ctx)
            name, option = known, options[known]
            if isinstance(option.type, BoolType):
                value, equals = (value, "=") if equals else ("true", "=")
            elif option.is_flag or option.count:
                if equals and not parse_go_bool(value):
                    raise FlagError(f"{flag} takes no value", ctx)
                result.append(name)
                continue
            if not equals:
                try:
                    value = next(waiting)
                except StopIteration:
                    raise FlagError(f"flag needs a value: {flag}", ctx) from None
            # click takes `-s=1` for the value "=1": a short name and its value are two words
            result += [f"{name}={value}"] if name.startswith("--") else [name, value]
        return result

    def _takes_arguments(self) -> bool:
        return any(isinstance(param, click.Argument) for param in self.params)


def _known(flag: str, options: dict[str, click.Option]) -> str | None:
    """The declared spelling of a flag: one or two dashes, `_` for `-`."""
    bare = flag.lstrip("-")
    for name in (flag, f"--{bare}", f"-{bare}", f"--{bare.replace('_', '-')}"):
        if name in options and (name.startswith("--") or len(bare) == 1):
            return name
    return None


def _hint(flag: str, options: Iterable[str]) -> str:
    bare = flag.lstrip("-")
    near = difflib.get_close_matches(bare, [name.lstrip("-") for name in options], n=1, cutoff=0.6)
    return f"; did you mean --{near[0]}?" if near else ""


def go_command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], GoCommand]:
    """Make a role's command of a function: Go-style flags, `--help`, `--version`."""
    attributes.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 120})

    def decorate(function: Callable[..., Any]) -> GoCommand:
        function = click.version_option(VERSION, prog_name="koord")(function)
        return click.command(name, cls=GoCommand, **attributes)(function)

    return decorate


def _without_effect() -> list[Callable[[Any], Any]]:
    """klog's other flags: command lines of existing manifests carry them."""
    switches = {
        "one-output": "a line is written once whatever its severity",
        "add-dir-header": "lines name the file alone",
        "skip-log-headers": "log files have no header",
        "legacy-stderr-threshold-behavior": "--stderrthreshold counts when logging to a file",
    }
    options = [
        bool_option(f"--{name}", hidden=True, expose_value=False, help=f"Accepted; no effect: {why}.") for name, why in switches.items()
    ]
    trace = "Accepted; no effect: errors that need a trace have one."
    return [*options, click.option("--log-backtrace-at", default="", hidden=True, expose_value=False, help=trace)]


def logging_options(function: F) -> F:
    """klog's flags on a command; they are in force when the function runs and come as `logging: LogOptions`."""

    @functools.wraps(function)
    def with_logging(**values: Any) -> Any:
        try:
            patterns = parse_vmodule(values.pop("vmodule"))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--vmodule") from error
        options = LogOptions(
            format=values.pop("log_format"),
            verbosity=values.pop("v"),
            vmodule=patterns,
            to_stderr=values.pop("logtostderr"),
            also_to_stderr=values.pop("alsologtostderr"),
            stderr_threshold=SEVERITIES[values.pop("stderrthreshold").lower()],
            file=values.pop("log_file"),
            directory=values.pop("log_dir"),
            file_max_mib=values.pop("log_file_max_size"),
            skip_headers=values.pop("skip_headers"),
        )
        context = click.get_current_context(silent=True)
        name = (context.info_name or "koord") if context else "koord"
        setup(options=options, role=name)
        return function(logging=options, **values)

    decorated: Any = with_logging
    for option in (
        *_without_effect(),
        click.option(
            "--log-file-max-size", type=click.IntRange(0), default=1800, show_default=True, help="MiB after which it is rotated; 0: never."
        ),
        click.option("--log-dir", default="", metavar="DIR", help="Directory of the log file, with --logtostderr=false."),
        click.option("--log-file", default="", metavar="FILE", help="Log file, with --logtostderr=false."),
        click.option(
            "--stderrthreshold",
            type=click.Choice(sorted(SEVERITIES), case_sensitive=False),
            default="error",
            show_default=True,
            help="With a log file: what goes to stderr as well.",
        ),
        bool_option("--skip-headers", help="Lines without time and place."),
        bool_option("--alsologtostderr", help="With a log file: everything goes to stderr as well."),
        bool_option("--logtostderr", default=True, help="Log to stderr rather than to a file."),
        click.option("--vmodule", default="", metavar="PATTERN=N,...", help="Verbosity of single modules."),
        click.option("-v", "--v", type=click.IntRange(0), default=0, show_default=True, help="Verbosity: 4 debugging, 6 everything."),
        click.option(
            "--log-format",
            "--logging-format",
            "log_format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="How log lines look.",
        ),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result


def common_options(function: F) -> F:
    """The options that every role has: where the API server is, and klog's logging flags.

    The function gets `kubeconfig: str | None`, `context: str | None`, `master: str | None` and `logging: LogOptions` (which is
    already in force).
    """
    function = logging_options(function)
    for option in (
        click.option("--master", metavar="URL", help="Address of the API server; replaces the kubeconfig's."),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig (default: its current-context)."),
        click.option(
            "--kubeconfig",
            metavar="FILE",
            help="How to reach the API server. Without it: the files of KUBECONFIG, the pod's service account, ~/.kube/config.",
        ),
    ):
        function = option(function)
    return function
