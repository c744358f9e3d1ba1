"""Device resources of a pod, checked and brought to one form (SCH-DEV-02). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koord.api import names

GPU = names.DEVICE_TYPE_GPU
RDMA = names.DEVICE_TYPE_RDMA
FPGA = names.DEVICE_TYPE_FPGA

WHOLE = 100
"""What a whole device counts, in percent."""

_CORE, _MEMORY, _RATIO = names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY, names.RESOURCE_GPU_MEMORY_RATIO
_SHARED = names.RESOURCE_GPU_SHARED
_NPU_CORE, _NPU_CPU, _NPU_DVPP = names.RESOURCE_HUAWEI_NPU_CORE, names.RESOURCE_HUAWEI_NPU_CPU, names.RESOURCE_HUAWEI_NPU_DVPP
_CARDS = (names.RESOURCE_NVIDIA_GPU, names.RESOURCE_AMD_GPU, names.RESOURCE_HYGON_DCU)

_TYPE_OF: dict[str, str] = {
    **dict.fromkeys((*_CARDS, names.RESOURCE_GPU, _CORE, _MEMORY, _RATIO, _SHARED, _NPU_CORE, _NPU_CPU, _NPU_DVPP), GPU),
    names.RESOURCE_RDMA: RDMA,
    names.RESOURCE_FPGA: FPGA,
}

# Which names may stand together. The last of the NPU rows is what the pod webhook makes of the one before.
_COMBINATIONS = frozenset(
    frozenset(row)
    for row in (
        *((card,) for card in _CARDS),
        (names.RESOURCE_GPU,), (_MEMORY,), (_RATIO,), (_CORE, _MEMORY), (_CORE, _RATIO),
        (_NPU_CORE, _RATIO), (_SHARED, _NPU_CORE, _RATIO),
        (_SHARED, _MEMORY), (_SHARED, _RATIO), (_SHARED, _CORE, _MEMORY), (_SHARED, _CORE, _RATIO),
        (_SHARED, _NPU_CORE, _NPU_CPU, _MEMORY), (_SHARED, _NPU_CORE, _NPU_CPU, _MEMORY, _NPU_DVPP),
        (names.RESOURCE_RDMA,), (names.RESOURCE_FPGA,),
    )
)  # fmt: skip

DEVICE_RESOURCES = frozenset(_TYPE_OF)


def types_of(resources: Iterable[str]) -> frozenset[str]:
    """The device types of some resources."""
    return frozenset(_TYPE_OF[name] for name in resources if name in _TYPE_OF)


class InvalidRequest(ValueError):
    """A pod whose device resources cannot be meant."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pod wants of a type: `count` devices with `unit` of each (sorted by name). A card may lack names in `implied`: the pod did
    not ask for them itself. `shared`: others may use the rest of the cards."""

    type: str
    count: int
    unit: tuple[tuple[str, int], ...]
    shared: bool = False
    implied: frozenset[str] = frozenset()

    def of(self, name: str) -> int:
        """How much of a resource each device must give."""
        return next((amount for key, amount in self.unit if key == name), 0)


def wanted_of(amounts: Mapping[str, int]) -> tuple[Wanted, ...]:
    """What a pod with these requests (base units) wants, by type in the order gpu, rdma, fpga. Raises InvalidRequest."""
    grouped: dict[str, dict[str, int]] = {}
    for name, amount in amounts.items():
        kind = _TYPE_OF.get(name)
        if kind is not None and amount > 0:
            grouped.setdefault(kind, {})[name] = amount
    wanted: list[Wanted] = []
    for kind in (kind for kind in (GPU, RDMA, FPGA) if kind in grouped):
        of_type = grouped[kind]
        told = f"invalid resource device requests: [{' '.join(sorted(of_type))}]"
        if frozenset(of_type) not in _COMBINATIONS:
            raise InvalidRequest(told)
        try:
            wanted.append(_gpu(of_type) if kind == GPU else _other(kind, of_type))
        except InvalidRequest as error:
            raise InvalidRequest(f"{told}: {error}") from None
    return tuple(wanted)


def filled(wanted: Wanted, memory: int) -> tuple[tuple[str, int], ...]:
    """What one unit takes of a card with so much memory (bytes): of memory and ratio whichever the pod left out follows (SCH-DEV-04)."""
    if wanted.type != GPU or memory <= 0:
        return wanted.unit
    unit = dict(wanted.unit)
    if _RATIO in unit:
        unit.setdefault(_MEMORY, unit[_RATIO] * memory // WHOLE)
    elif _MEMORY in unit:
        unit[_RATIO] = WHOLE * unit[_MEMORY] // memory
    return tuple(sorted(unit.items()))


def _check_percentage(name: str, amount: int) -> None:
    if amount > WHOLE and amount % WHOLE:
        raise InvalidRequest(f"invalid resource unit {name}: {amount}; above {WHOLE} it must be a multiple of {WHOLE}")


def _other(kind: str, of_type: Mapping[str, int]) -> Wanted:
    """RDMA and FPGA before hints: so many whole devices, or a part of one."""
    ((name, amount),) = of_type.items()
    _check_percentage(name, amount)
    if amount > WHOLE:
        return Wanted(kind, amount // WHOLE, ((name, WHOLE),))
    return Wanted(kind, 1, ((name, amount),))


def _gpu(of_type: Mapping[str, int]) -> Wanted:
    implied: frozenset[str] = frozenset()
    total = dict(of_type)
    for card in _CARDS:
        if card in total:
            cards = total[card]
            total = {_CORE: WHOLE * cards, _RATIO: WHOLE * cards}
            implied = frozenset((_CORE,))
    if names.RESOURCE_GPU in total:
        percent = total[names.RESOURCE_GPU]
        _check_percentage(names.RESOURCE_GPU, percent)
        total = {_CORE: percent, _RATIO: percent}
    shared = total.pop(_SHARED, 0)
    _check_units(total, shared)
    ratio = total.get(_RATIO, 0)
    count = shared or (ratio // WHOLE if ratio > WHOLE else 1)
    unit = {name: amount // count for name, amount in total.items()}
    return Wanted(GPU, count, tuple(sorted(unit.items())), shared=unit.get(_RATIO, 0) < WHOLE, implied=implied)


def _check_units(total: Mapping[str, int], shared: int) -> None:
    if not shared:
        for name in (_CORE, _RATIO):
            if name in total:
                _check_percentage(name, total[name])
        return
    if _NPU_CPU in total:
        if shared > 1:
            raise InvalidRequest(f"invalid resource unit {_SHARED}: {shared}; a virtual NPU is of one card")
        if total.get(_NPU_DVPP, 0) > WHOLE:
            raise InvalidRequest(f"invalid resource unit {_NPU_DVPP}: {total[_NPU_DVPP]}; at most {WHOLE}")
        return
    for name in (_CORE, _RATIO):
        amount = total.get(name, 0)
        if amount % shared or amount // shared > WHOLE:
            raise InvalidRequest(
                f"invalid resource unit {name}: {amount}; it must be a multiple of {_SHARED} ({shared}), at most {WHOLE} for each"
            )
