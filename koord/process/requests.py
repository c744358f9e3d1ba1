"""What clients ask of a role's HTTP ports and what they are answered: requests from bytes, answers into bytes; pure.

The names of `Request` and `Response` are those that aiohttp gives to the same things. What two readers could understand differently is
refused: a request is read in one way or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

from koord.kube.http1 import BODY_STEPS, MessageParser, ProtocolError

MAX_HEAD = 32_768  # bytes of request line and headers
MAX_LINE = 8192  # bytes of the request line
MAX_HEADERS = 100

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(r"[!-~]+")
# visible, blank and beyond ASCII: no NUL, no CR or LF that another reader could take for the end of the line
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(r"[0-9]{1,15}")
_ONCE = frozenset({"host", "content-length", "transfer-encoding", "authorization"})


class Refused(ProtocolError):
    """A request that is answered with `status` and not read further."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Headers(dict[str, str]):
    """Headers by name, in any case; where one came several times, its values with commas between them."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or `default`."""
        return super().get(name.lower(), default)


class Request:
    """One request. `path` and `match_info` are decoded; of a query parameter that came several times, `query` has the first."""

    def __init__(self, method: str, target: str, headers: Headers, minor: int) -> None:
        self.method = method
        self.path_qs = target
        self.headers = headers
        self.minor = minor
        self.raw_path, _, self.query_string = target.partition("?")
        self.path = unquote(self.raw_path)
        self.pairs = parse_qsl(self.query_string, keep_blank_values=True)
        self.query: dict[str, str] = dict(reversed(self.pairs))
        self.match_info: dict[str, str] = {}
        # what the connection knows: whether it is encrypted, and whether it is one too many
        self.transport: Any = None
        self.secure = False
        self.spare = False
        self.reader: Callable[[], Awaitable[bytes]] | None = None
        self._body = b""

    @property
    def host(self) -> str:
        """Whom the client meant to ask."""
        return str(self.headers.get("Host", ""))

    @property
    def cookies(self) -> dict[str, str]:
        """Cookies by name."""
        pairs = (part.strip().partition("=") for part in self.headers.get("Cookie", "").replace(",", ";").split(";"))
        return {name: value for name, equals, value in pairs if equals}

    def query_all(self, name: str) -> list[str]:
        """All values of a query parameter."""
        return [value for key, value in self.pairs if key == name]

    async def read(self) -> bytes:
        """The whole body. Raises Refused when it does not come in time, or is too large."""
        if self.reader is not None:
            self._body, self.reader = await self.reader(), None
        return self._body

    async def text(self) -> str:
        """The body as text; what is not UTF-8 is replaced."""
        return (await self.read()).decode("utf-8", "replace")


class Response:
    """An answer: `text` or `body`."""

    def __init__(
        self,
        *,
        status: int = 200,
        text: str | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        content_type: str = "",
        charset: str = "",
    ) -> None:
        self.status = status
        self.headers = dict(headers or {})
        self.body = body if text is None else text.encode()
        if text is not None:
            content_type, charset = content_type or "text/plain", charset or "utf-8"
        if content_type:
            self.headers["Content-Type"] = f"{content_type}; charset={charset}" if charset else content_type


Handler = Callable[[Request], Awaitable[Response]]
Middleware = Callable[[Request, Handler], Awaitable[Response]]


def encode(response: Response, now: float, *, keep_alive: bool, head: bool = False) -> bytes:
    """An answer as it goes out at `now` (Unix seconds). `head`: the request was a HEAD, the body stays here."""
    status, body = response.status, bytes(response.body or b"")
    lines = [f"HTTP/1.1 {status} {_reason(status)}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items() if name.lower() not in ("content-length", "connection")]
    bare = status in (204, 304)
    if not bare:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"Date: {http_date(int(now))}", f"Connection: {'keep-alive' if keep_alive else 'close'}"]
    text = "\r\n".join(lines)
    if any(mark in line for line in lines for mark in "\r\n\0"):
        raise ValueError(f"an answer's header cannot go out: {text[:200]!r}")
    return text.encode("latin-1", "replace") + b"\r\n\r\n" + (b"" if head or bare else body)


@lru_cache(maxsize=2)
def http_date(now: int) -> str:
    """Unix seconds as HTTP writes them."""
    return formatdate(now, usegmt=True)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class RequestParser(MessageParser):
    """Reads one request, of a body of at most `max_body` bytes. Feed it until `done`; `rest` then begins the next one."""

    __slots__ = ("_max_body", "_size_left", "body", "expects", "keep_alive", "request", "rest")

    def __init__(self, max_body: int) -> None:
        super().__init__()
        self.request: Request | None = None
        self.body = bytearray()
        self.rest = b""
        self.keep_alive = False
        # whether the client waits to be told that it may send the body
        self.expects = False
        self._max_body = self._size_left = max_body

    def feed(self, data: bytes) -> None:
        """More bytes. Raises Refused."""
        try:
            self.rest = self._read(data)
        except Refused:
            raise
        except ProtocolError as error:
            raise Refused(400, str(error)) from None
        if self._chunks:
            self.body += b"".join(self.drain())

    def _head(self, data: bytes, at: int) -> int:
        if data.startswith(b"\r\n", at):  # an empty line before a request counts for nothing
            at += 2
        end = data.find(b"\r\n\r\n", at)
        if (len(data) if end < 0 else end) - at > MAX_HEAD:
            raise Refused(431, f"the headers are longer than {MAX_HEAD} bytes")
        first = data.find(b"\r\n", at)
        if (len(data) if first < 0 else first) - at > MAX_LINE:
            raise Refused(414, f"the request line is longer than {MAX_LINE} bytes")
        if end < 0:
            return self._wait(data, at, MAX_HEAD, "the headers are")
        lines = data[at:end].decode("latin-1").split("\r\n")
        if len(lines) > MAX_HEADERS:
            raise Refused(431, f"there are more than {MAX_HEADERS} headers")
        headers = _headers(lines[1:])
        method, target, minor = _request_line(lines[0])
        if minor and not headers.get("Host"):
            raise Refused(400, "the header Host is missing")
        self.request = Request(method, target, headers, minor)
        options = {option.strip().lower() for option in headers.get("Connection", "").split(",")}
        self.keep_alive = "close" not in options and (minor > 0 or "keep-alive" in options)
        self._choose_body(headers, minor)
        return end + 4

    def _choose_body(self, headers: Headers, minor: int) -> None:
        length, coding = headers.get("Content-Length"), headers.get("Transfer-Encoding")
        if coding is not None:
            if length is not None or not minor or coding.lower() != "chunked":
                raise Refused(400, "Transfer-Encoding may be chunked, in HTTP/1.1, without Content-Length")
            self._mode = "size"
        else:
            if length is not None and not _LENGTH.fullmatch(length):
                raise Refused(400, f"Content-Length is {length[:40]!r}")
            self._left = int(length or 0)
            self._mode = "length" if self._left else "done"
            self._count(self._left)
        expected = headers.get("Expect")
        if expected is not None and expected.lower() != "100-continue":
            raise Refused(417, f"Expect is {expected[:40]!r}")
        self.expects = expected is not None and minor > 0 and not self.done

    def _chunk_size(self, data: bytes, at: int) -> int:
        at = self._size(data, at)
        if at >= 0:
            self._count(self._left)
        return at

    def _count(self, size: int) -> None:
        self._size_left -= size
        if self._size_left < 0:
            raise Refused(413, f"the body is larger than {self._max_body} bytes")


RequestParser._steps = BODY_STEPS | {"head": RequestParser._head, "size": RequestParser._chunk_size}


def _request_line(line: str) -> tuple[str, str, int]:
    """Method, target from its path on, and the minor version."""
    parts = line.split(" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise Refused(400, f"not a request line: {line[:80]!r}")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(505 if re.fullmatch(r"HTTP/[0-9.]+", version) else 400, f"the version is {version[:20]!r}: HTTP/1.1 is spoken here")
    if target[:7].lower() == "http://" or target[:8].lower() == "https://":  # as proxies are asked
        rest = target.partition("://")[2]
        slash = rest.find("/")
        target = rest[slash:] if slash >= 0 else "/"
    if not target.startswith("/") and not (target == "*" and method == "OPTIONS"):
        raise Refused(400, f"the target is {target[:80]!r}")
    return method, target.partition("#")[0], int(version[-1])


def _headers(lines: list[str]) -> Headers:
    headers = Headers()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Refused(400, f"not a header: {line[:80]!r}")
        key, value = name.lower(), value.strip(" \t")
        if key in headers:
            if key in _ONCE:
                raise Refused(400, f"the header {name} came twice")
            value = f"{headers[key]}, {value}"
        headers[key] = value
    return headers
