"""`report.html`: the report as one file without scripts, charts inline. It shows what report.md says, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from itertools import groupby

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}
h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.15rem;margin-top:2rem}
p.verdict{font-size:1.1rem;border-left:.3rem solid #0072B2;padding:.2rem 0 .2rem 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.2rem .8rem;border-bottom:1px solid #ccc;text-align:right}
th:first-child,td:first-child{text-align:left}div.wide{overflow-x:auto}svg{max-width:100%;height:auto}code{font-size:.95em}
@media (prefers-color-scheme:dark){body{color:#e6e6e6;background:#181818}th,td{border-color:#444}svg{background:#fff}}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, markdown: str, chart: str | None) -> str:
    """The HTML document of a report in the Markdown that `text` writes; `chart` is an SVG document that stands where its image is."""
    body = "\n".join(_blocks(markdown, chart))
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'/>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'/>"
        f"<meta http-equiv='Content-Security-Policy' content=\"{POLICY}\"/>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _blocks(markdown: str, chart: str | None) -> Iterator[str]:
    lead = " class='verdict'"
    for kind, lines in groupby(markdown.splitlines(), _kind):
        text = list(lines)
        if kind == "blank":
            continue
        if kind == "heading":
            for line in text:
                level = len(line) - len(line.lstrip("#"))
                yield f"<h{level}>{_inline(line[level:].strip())}</h{level}>"
        elif kind == "item":
            yield "<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in text) + "</ul>"
        elif kind == "table":
            yield _table(text)
        elif kind == "image":
            yield f"<figure>{chart}</figure>" if chart else ""
        else:
            # The first paragraph below the title is the verdict.
            yield f"<p{lead}>{_inline(' '.join(text))}</p>"
            lead = ""


def _kind(line: str) -> str:
    if not line.strip():
        return "blank"
    starts = {"#": "heading", "*": "item" if line.startswith("* ") else "text", "|": "table", "!": "image"}
    return starts.get(line[0], "text")


def _table(lines: list[str]) -> str:
    rows = [[_inline(cell.strip()) for cell in line.strip("|").split("|")] for line in lines if not set(line) <= set("|-: ")]
    head = "".join(f"<th>{cell}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _inline(text: str) -> str:
    marked = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", marked)
