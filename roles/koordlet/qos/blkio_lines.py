"""From a block's configuration to the lines that the kernel takes, one a file (KA-BLK-01). Pure."""

from __future__ import annotations

from roles.koordlet.actuation.disklines import COST_MODEL, COST_QOS, IO_MAX, WEIGHT
from roles.koordlet.states.slo import IOCfg

THROTTLES = (
    "blkio.throttle.read_iops_device",
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_iops_device",
    "blkio.throttle.write_bps_device",
)
_, READ_BPS, _, WRITE_BPS = THROTTLES

DEFAULT_WEIGHT = 100
DEFAULT_LATENCY_PERCENT = 95
DEFAULT_LATENCY_US = 3000
#: The kernel refuses a model without one of its numbers.
DEFAULT_MODEL = 1

UNLIMITED = IOCfg()


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def group_lines(number: str, config: IOCfg) -> list[tuple[str, str]]:
    """(file, line) for a pod or a tier: limits (0 is none) by the files of v1 and the one of v2, and weight."""
    limits = [_or(limit, 0) for limit in (config.read_iops, config.read_bps, config.write_iops, config.write_bps)]
    lines = [(file, f"{number} {limit}") for file, limit in zip(THROTTLES, limits, strict=True)]
    keys = " ".join(f"{key}={limit or 'max'}" for key, limit in zip(("riops", "rbps", "wiops", "wbps"), limits, strict=True))
    weight = f"{number} {_or(config.io_weight_percent, DEFAULT_WEIGHT)}"
    return [*lines, (IO_MAX, f"{number} {keys}"), (WEIGHT, weight)]


def root_lines(number: str, config: IOCfg) -> list[tuple[str, str]]:
    """(file, line) for the whole machine: latency targets and cost model of a disk."""
    percents = (config.read_latency_percent, config.write_latency_percent)
    rpct, wpct = (_or(p, DEFAULT_LATENCY_PERCENT) for p in percents)
    rlat, wlat = _or(config.read_latency, DEFAULT_LATENCY_US), _or(config.write_latency, DEFAULT_LATENCY_US)
    lines = [(COST_QOS, f"{number} enable=1 ctrl=user rpct={rpct} rlat={rlat} wpct={wpct} wlat={wlat}")]
    if not config.enable_user_model:
        return [*lines, (COST_MODEL, f"{number} ctrl=auto")]
    fields = (
        ("rbps", config.model_read_bps),
        ("rseqiops", config.model_read_seq_iops),
        ("rrandiops", config.model_read_rand_iops),
        ("wbps", config.model_write_bps),
        ("wseqiops", config.model_write_seq_iops),
        ("wrandiops", config.model_write_rand_iops),
    )
    model = " ".join(f"{name}={_or(value, DEFAULT_MODEL)}" for name, value in fields)
    return [*lines, (COST_MODEL, f"{number} ctrl=user {model}")]


def root_off(number: str) -> list[tuple[str, str]]:
    """What a disk gets that is no longer configured for the machine."""
    return [(COST_QOS, f"{number} enable=0")]
