"""The recommender's flags, those of the manager and of a back-test alike (MGR-REC-01)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from koord.process.flags import duration_option
from roles.manager.recommender.policy import MEMORY_MODELS

_OPTIONS = (
    click.option(
        "--recommender-cpu-percentile", type=float, default=0.9, show_default=True, help="Share of CPU samples that the target covers."
    ),
    click.option(
        "--recommender-memory-percentile", type=float, default=0.9, show_default=True, help="Share of daily memory peaks it covers."
    ),
    click.option("--recommendation-margin-fraction", type=float, default=0.15, show_default=True, help="What is put on top, as a share."),
    duration_option("--recommender-half-life", default=86400.0, help="After how long a sample counts half."),
    click.option("--recommender-min-cpu-millicores", type=int, default=25, show_default=True, help="Least CPU of a pod."),
    click.option("--recommender-min-memory-mb", type=int, default=250, show_default=True, help="Least memory of a pod, MiB."),
    click.option(
        "--recommender-memory-model",
        type=click.Choice(MEMORY_MODELS),
        default="auto",
        show_default=True,
        help="How memory targets are found.",
    ),
    click.option("--recommender-kill-price", type=float, default=10.0, show_default=True, help="Cost of a kill, in days of the memory."),
    click.option(
        "--recommender-resize-cpu-percentile",
        type=float,
        default=0.97,
        show_default=True,
        help="Share of recent CPU, of pods resized in place.",
    ),
)


def policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of `Policy` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
