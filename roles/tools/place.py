"""Which cluster, where koord lives in it, and the flags that say so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

SYSTEM_NAMESPACE = "koordinator-system"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class NamespaceType(click.ParamType[str]):
    """The name of a namespace: a label as of RFC 1123."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, unchanged."""
        if not _LABEL.fullmatch(value):
            self.fail(f"{value!r} is no name of a namespace: at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit")
        return str(value)


def system_option(name: str = "--koord-namespace", help: str = "Where koord lives in the cluster.") -> Callable[[Any], Any]:
    """The flag."""
    return click.option(name, type=NamespaceType(), default=SYSTEM_NAMESPACE, show_default=True, metavar="NAME", help=help)


def cluster_options(function: click.decorators.FC) -> click.decorators.FC:
    """The flags that name a cluster, for commands that find a running sandbox, too."""
    function = click.option("--context", metavar="NAME", help="Context of the kubeconfig.")(function)
    which = "Which cluster (default: KUBECONFIG, a running sandbox, in-cluster, ~/.kube/config)."
    return click.option("--kubeconfig", metavar="FILE", help=which)(function)
