"""What the documentation holds: pages, links, blocks, and the `koord` command lines in them.

As a program (`python -m tests.support.docs`) it reads command lines from stdin, one a line, and prints those that `koord` would
refuse, with its message. A process of its own: options like --v take effect when they are parsed.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"(?:^|[;&|(]\s*|\$\s+|[A-Za-z_]+=\S*\s+)(koord\s+.*)$")
_END = re.compile(r"\s+(?:#|\||>|<|&&?|;).*$|[;|&].*$")


def pages() -> list[Path]:
    """README, CONTRIBUTING and everything in docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Fenced blocks: language and content."""
    for match in _FENCE.finditer(text):
        yield match.group(1), match.group(2)


def without_fences(text: str) -> str:
    """A page's prose."""
    return _FENCE.sub("", text)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    words = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).strip().lower())
    return words.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """The anchors of a page."""
    prose = without_fences(page.read_text(encoding="utf-8"))
    return {slug(line.lstrip("#")) for line in prose.splitlines() if line.startswith("#")}


def commands(text: str) -> Iterator[str]:
    """`koord` command lines in blocks, in indented code and in inline code."""
    shell = [body.replace("\\\n", " ") for language, body in fences(text) if language in ("", "sh", "bash", "console")]
    prose = without_fences(text)
    shell += [line[4:] for line in prose.splitlines() if line.startswith("    ")]
    for block in shell:
        for line in block.splitlines():
            if match := _COMMAND.search(line.strip()):
                yield _END.sub("", match.group(1))
    for code in _INLINE.findall(prose):
        if code.startswith("koord ") and not code.endswith("*"):
            yield _END.sub("", code)


def refusal(line: str) -> str:
    """What `koord` says to a command line; "" when it would take it. A value or argument that the text leaves out is no mistake."""
    import click

    from koord.cli import main

    words = [word for word in shlex.split(line) if word not in ("…", "...")][1:]
    if not words or "[OPTIONS]" in words:  # a synopsis is no command
        return ""
    command: click.Command = main
    context = click.Context(main, info_name="koord")
    try:
        while isinstance(command, click.Group):
            if not words or words[0].startswith("-"):
                break
            name, found, words = command.resolve_command(context, words)
            assert found is not None
            command, context = found, click.Context(found, info_name=f"{context.info_name} {name}", parent=None)
        if isinstance(command, click.Group) and not words:
            return ""
        with contextlib.redirect_stdout(io.StringIO()):
            command.make_context(context.info_name, list(words))
    except click.exceptions.Exit:
        return ""
    except click.UsageError as error:
        message = error.format_message()
        left_out = ("needs a value", "requires an argument", "Missing ", "does not exist")
        return "" if any(part in message for part in left_out) else message
    return ""


def main_program() -> int:
    """Check the lines of stdin; the status says whether all are good."""
    bad = [f"{line}: {problem}" for line in map(str.strip, sys.stdin) if line and (problem := refusal(line))]
    print("\n".join(bad))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main_program())
