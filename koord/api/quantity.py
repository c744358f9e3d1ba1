"""Kubernetes quantities, exactly (API-QTY-01).

A quantity is a whole number of nano-units and a format (how it likes to be written). Parsing accepts every spelling that the API
server accepts; text with more than nine decimals is rounded away from zero to a nano, as there. Output is canonical: decimal SI
collapses trailing thousands into a suffix (25000 → ``25k``), binary SI the largest exact power of 1024 (1073741824 → ``1Gi``).

``milli()`` and ``value()`` round away from zero and saturate at ±(2**63 − 1), so that a column of int64 can hold any of them.
The module functions are the fast paths; text is parsed once and remembered.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache, total_ordering
from typing import Final

INT64_MAX: Final = (1 << 63) - 1
_NANO: Final = 10**9
_SUFFIXES: Final = "n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei or an exponent such as e3"
_MAX_TEXT: Final = 256  # longer text is no honest quantity, and huge integers are slow to read
_MAX_EXPONENT: Final = 60  # larger decimal exponents mean the same: more than any machine has

DECIMAL_SI: Final = "DecimalSI"
BINARY_SI: Final = "BinarySI"
DECIMAL_EXPONENT: Final = "DecimalExponent"

_TEXT = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+|)", re.ASCII)
_DECIMAL_SUFFIX: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIX.items()}
_BINARY_SUFFIX: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_BY_POWER: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class QuantityError(ValueError):
    """Text (or a number) that is no quantity. The message quotes it."""

    def __init__(self, text: object) -> None:
        shown = repr(text)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{shown} is not a quantity; accepted is a decimal number with an optional suffix ({_SUFFIXES})")
        self.text = text


def _divide_away(numerator: int, denominator: int) -> int:
    """Integer division that rounds away from zero; the denominator is positive."""
    if numerator >= 0:
        return -(-numerator // denominator)
    return numerator // denominator


def _saturate(value: int) -> int:
    if -INT64_MAX <= value <= INT64_MAX:
        return value
    return INT64_MAX if value > 0 else -INT64_MAX


@lru_cache(maxsize=16_384)
def _parse_nanos(text: str) -> tuple[int, str]:
    """Nano-units and format of a quantity's text. Raises QuantityError."""
    stripped = text.strip()
    match = _TEXT.fullmatch(stripped) if len(text) <= _MAX_TEXT else None  # blanks count: what is read is kept in caches
    if match is None:
        raise QuantityError(text)
    sign, number, suffix = match.groups()
    whole, _, decimals = number.partition(".")
    mantissa = int(whole + decimals)
    if suffix in _BINARY_SUFFIX:
        nanos = _divide_away((mantissa << _BINARY_SUFFIX[suffix]) * _NANO, 10 ** len(decimals))
        nanos = min(nanos, INT64_MAX * _NANO)
        # less than one is written in milli, as nobody reads 512/1024 from "0.5Ki"
        style = BINARY_SI if nanos >= _NANO or nanos == 0 else DECIMAL_SI
    else:
        exponent = _DECIMAL_SUFFIX.get(suffix)
        style = DECIMAL_SI
        if exponent is None:
            exponent = max(min(int(suffix[1:]), _MAX_EXPONENT), -_MAX_TEXT - _MAX_EXPONENT)
            style = DECIMAL_EXPONENT
        shift = exponent + 9 - len(decimals)
        nanos = mantissa * 10**shift if shift >= 0 else _divide_away(mantissa, 10**-shift)
    return (-nanos if sign == "-" else nanos), style


def _number_text(number: int | float) -> str:
    """A JSON number as the text that the API server would have read."""
    return repr(number)


@total_ordering
class Quantity:
    """An exact amount. Equal when numerically equal, whatever the spelling; immutable and hashable."""

    __slots__ = ("_nanos", "format")
    _nanos: int
    format: str

    def __init__(self, text: str | int | float | Quantity = 0) -> None:
        """Parse ``text``. Raises QuantityError for anything that is no quantity."""
        if isinstance(text, Quantity):
            self._nanos, self.format = text._nanos, text.format
        elif isinstance(text, bool) or not isinstance(text, str | int | float):
            raise QuantityError(text)
        else:
            self._nanos, self.format = _parse_nanos(text if isinstance(text, str) else _number_text(text))

    @classmethod
    def _of(cls, nanos: int, style: str) -> Quantity:
        made = object.__new__(cls)
        made._nanos, made.format = nanos, style
        return made

    def milli(self) -> int:
        """Thousandths, rounded away from zero, saturated to int64."""
        return _saturate(_divide_away(self._nanos, 1_000_000))

    def value(self) -> int:
        """Whole units, rounded away from zero, saturated to int64."""
        return _saturate(_divide_away(self._nanos, _NANO))

    def as_fraction(self) -> Fraction:
        """The exact amount in units."""
        return Fraction(self._nanos, _NANO)

    def is_integer(self) -> bool:
        """Whether it is a whole number of units (what extended resources must be)."""
        return self._nanos % _NANO == 0

    def __str__(self) -> str:
        return _write(self._nanos, self.format)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._nanos == other._nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self._nanos < other._nanos if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._nanos)

    def __bool__(self) -> bool:
        return self._nanos != 0

    def __neg__(self) -> Quantity:
        return Quantity._of(-self._nanos, self.format)

    def __add__(self, other: Quantity) -> Quantity:
        # zero has no opinion about how a sum is written
        return Quantity._of(self._nanos + other._nanos, self.format if self._nanos else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity._of(self._nanos - other._nanos, self.format if self._nanos else other.format)

    def __mul__(self, factor: int | float | Fraction) -> Quantity:
        """Exact for integers; otherwise the exact product rounded away from zero to a nano."""
        if isinstance(factor, int):
            return Quantity._of(self._nanos * factor, self.format)
        product = self._nanos * Fraction(factor)
        return Quantity._of(_divide_away(product.numerator, product.denominator), self.format)

    __rmul__ = __mul__


def _write(nanos: int, style: str) -> str:
    if nanos == 0:
        return "0"
    if style == BINARY_SI and abs(nanos) >= 1024 * _NANO and nanos % _NANO == 0:
        return format_binary(nanos // _NANO)
    exponent = -9
    largest = _MAX_EXPONENT * 2 if style == DECIMAL_EXPONENT else 18
    while exponent < largest and nanos % 1000 == 0:
        nanos //= 1000
        exponent += 3
    if style == DECIMAL_EXPONENT:
        return f"{nanos}e{exponent}" if exponent else str(nanos)
    return f"{nanos}{_DECIMAL_BY_EXPONENT[exponent]}"


@lru_cache(maxsize=16_384)
def _text_canonical(text: str) -> str:
    return str(Quantity(text))


@lru_cache(maxsize=16_384)
def _text_milli(text: str) -> int:
    return _saturate(_divide_away(_parse_nanos(text)[0], 1_000_000))


@lru_cache(maxsize=16_384)
def _text_value(text: str) -> int:
    return _saturate(_divide_away(_parse_nanos(text)[0], _NANO))


def parse_milli(quantity: str | int | float) -> int:
    """Thousandths of a quantity, rounded away from zero (``"1.5"`` → 1500). Raises QuantityError."""
    if type(quantity) is str:
        return _text_milli(quantity)
    if type(quantity) is int:
        return _saturate(quantity * 1000)
    if type(quantity) is float:
        return _text_milli(_number_text(quantity))
    raise QuantityError(quantity)


def parse_value(quantity: str | int | float) -> int:
    """Whole units of a quantity, rounded away from zero (``"1500m"`` → 2, ``"1Gi"`` → 1073741824). Raises QuantityError."""
    if type(quantity) is str:
        return _text_value(quantity)
    if type(quantity) is int:
        return _saturate(quantity)
    if type(quantity) is float:
        return _text_value(_number_text(quantity))
    raise QuantityError(quantity)


def milli_or(quantity: str | int | float | None, default: int = 0) -> int:
    """`parse_milli`, or the default for None and for what is no quantity."""
    try:
        return default if quantity is None else parse_milli(quantity)
    except QuantityError:
        return default


def value_or(quantity: str | int | float | None, default: int = 0) -> int:
    """`parse_value`, or the default for None and for what is no quantity."""
    try:
        return default if quantity is None else parse_value(quantity)
    except QuantityError:
        return default


def format_milli(milli: int) -> str:
    """Canonical text of thousandths: 1500 → ``1500m``, 2000 → ``2``, 25_000_000 → ``25k``."""
    if milli % 1000:
        return f"{milli}m"
    return format_decimal(milli // 1000)


def format_decimal(value: int) -> str:
    """Canonical decimal-SI text of whole units: 1500 → ``1500``, 25000 → ``25k``."""
    if value % 1000 or value == 0:
        return str(value)
    exponent = 0
    while exponent < 18 and value % 1000 == 0:
        value //= 1000
        exponent += 3
    return f"{value}{_DECIMAL_BY_EXPONENT[exponent]}"


def format_binary(value: int) -> str:
    """Canonical binary-SI text of whole units: 1073741824 → ``1Gi``. Below 1024 it is written as a decimal, as the API server does."""
    if -1024 < value < 1024:
        return format_decimal(value)
    power = 0
    while power < 6 and value % 1024 == 0:
        value //= 1024
        power += 1
    return f"{value}{_BINARY_BY_POWER[power]}"


def canonical(quantity: str | int | float) -> str:
    """The canonical spelling of a quantity in its own format. Raises QuantityError."""
    return _text_canonical(quantity) if isinstance(quantity, str) else str(Quantity(quantity))


def multiply_base(base: int, factor: float) -> int:
    """``base × factor`` as the API defines it: an IEEE double product truncated toward zero.

    ``base`` is the 64-bit integer base of the resource (milli for cpu, bytes for memory). Saturates to int64; NaN gives 0.
    """
    product = float(base) * factor
    if math.isnan(product):
        return 0
    if abs(product) >= float(INT64_MAX):
        return INT64_MAX if product > 0 else -INT64_MAX
    return int(product)
