"""What every format does alike: is this JSON, what if it is broken, and the request built of it.

A request is never refused for its form. What cannot be understood is routed by load, with a
fixed word in ``unread`` that says why. One thing is refused: a body that says it is JSON, on the
path of an API that takes JSON, and is not.

msgspec decodes only the fields that are asked for, checks its recursion, and skips the rest at
about 1 GB/s, so deep or huge bodies neither crash nor stall the process.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from typing import ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Raw

from epp import plugin
from epp.errors import BadRequest
from epp.formats.prompt import ABSENT, Unreadable
from epp.model import Arrival, InferenceRequest, Medium

MAX_JSON_BYTES = 64 * 1024 * 1024  #: a larger body is not looked at

Scalar = str | bool | int | float | None


class Parser(Protocol):
    """Reads the requests of one family of APIs. A plugin: also has ``type`` and ``Params``."""

    def claims(self, path: str) -> int:
        """Return the length of the longest suffix of ``path`` that this parser reads; 0 if none."""
        ...

    def parse(self, arrival: Arrival, path: str, now: float) -> InferenceRequest:
        """Return the request understood as far as possible.

        Raises:
            errors.BadRequest: the body claims to be JSON and is not.
        """
        ...


LONGEST_KNOWN = 256  #: characters of a path that is worth remembering
T = TypeVar("T")

Decode = Callable[[bytes | memoryview], "Facts"]
Reads = Mapping[str, tuple[str, Decode]]
"""By the suffix of the path, without its first slash: the format's name and its reader."""


HTTP, H2C = "http", "kubernetes.io/h2c"  #: protocols of a pool, as Kubernetes names them


class PathParser:
    """A parser that knows its requests by the end of their path. Its parameters: none."""

    type: ClassVar[str]
    protocols: ClassVar[tuple[str, ...]] = (HTTP, H2C)  #: over which its requests come; (): any
    stability: ClassVar[plugin.Stability]
    reads: ClassVar[Reads]

    class Params(plugin.Params, frozen=True):
        """None."""

    def __init__(self, params: Params | None = None, tools: plugin.Tools | None = None) -> None:
        self._suffix_of = remembered(partial(longest_suffix, suffixes=self.reads))

    def claims(self, path: str) -> int:
        """See `Parser.claims`."""
        return len(longest_suffix(path, self.reads))

    def parse(self, arrival: Arrival, path: str, now: float) -> InferenceRequest:
        """See `Parser.parse`."""
        suffix = self._suffix_of(path)
        if not suffix:
            return opaque(arrival, path, now, "no-parser")
        format, decode = self.reads[suffix]
        return self.read(arrival, path, now, format, decode)

    def read(
        self, arrival: Arrival, path: str, now: float, format: str, decode: Decode
    ) -> InferenceRequest:
        """Read one body. See `read_json`."""
        return read_json(arrival, path, now, format, decode)


class Facts(msgspec.Struct, gc=False):
    """What a body says. The fields mean the same as in `InferenceRequest`."""

    model: str
    prompt: bytes = b""
    prompt_tokens: int = 0
    salt: str = ""
    streaming: bool = False
    media: tuple[Medium, ...] = ()
    max_output_tokens: int | None = None
    unread: str = ""


class Body(msgspec.Struct, gc=False):
    """The fields that all APIs have. An API's own struct adds the prompt's."""

    model: Scalar = None
    stream: Scalar = None
    cache_salt: str | None = None

    def facts(
        self, limit: Scalar, *, prompt: bytes, tokens: int, media: Iterable[Medium] = ()
    ) -> Facts:
        """Return the facts, given the prompt; ``limit`` is the output limit as written."""
        return Facts(
            name(self.model),
            prompt,
            tokens,
            self.cache_salt or "",
            truth(self.stream),
            tuple(media),
            whole(limit),
        )


class _Outline(msgspec.Struct, gc=False):
    """A body whose shape is wrong: each field is looked at by itself."""

    model: Raw = ABSENT
    stream: Raw = ABSENT


_outline = msgspec.json.Decoder(_Outline).decode
_string = msgspec.json.Decoder(str).decode
_BAD_TEXT = re.compile("UTF-8|surrogate|end of hex escape")
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB]")  #: this close to the end it is called truncated
_POSITION = re.compile(r"\(byte (\d+)\)$")
_JSON = re.compile(r"application/(?:[\w.!#$&^+-]+\+)?json\Z", re.ASCII)
_MAY_BE_UTF8 = frozenset({"", "utf-8", "utf8", "us-ascii"})


def name(value: Scalar) -> str:
    """Return a model's name; '' for anything that is not a string."""
    return value if isinstance(value, str) else ""


def truth(value: Scalar) -> bool:
    """Return a flag as the engines' validation reads it."""
    return value.lower() in {"true", "1", "yes", "on"} if isinstance(value, str) else bool(value)


def whole(*values: Scalar) -> int | None:
    """Return the first of ``values`` that is a count."""
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def remembered(of_path: Callable[[str], T]) -> Callable[[str], T]:
    """Return ``of_path`` with a memory: few paths make up the traffic.

    It is bounded against a client that makes paths up, which costs 5 us a request.
    """
    known = lru_cache(maxsize=256)(of_path)
    return lambda path: known(path) if len(path) <= LONGEST_KNOWN else of_path(path)


def longest_suffix(path: str, suffixes: Collection[str]) -> str:
    """Return the longest of ``suffixes`` that ends ``path`` at a segment; '' if none does."""
    bare = path.rstrip("/")
    claimed = (s for s in suffixes if bare.endswith(s) and ("/" + bare).endswith("/" + s))
    return max(claimed, key=len, default="")


NOT_COMPUTED = frozenset({"count-tokens", "completions-render", "chat-render"})
"""Formats whose prompt is read by the server and not by the model: nothing of it gets cached."""


def opaque(
    arrival: Arrival, path: str, now: float, unread: str, *, format: str = "opaque", model: str = ""
) -> InferenceRequest:
    """Return a request that is routed by load, and the word for why."""
    return InferenceRequest(
        id=arrival.id,
        headers=arrival.headers,
        body=arrival.body,
        path=path,
        format=format,
        model=model,
        target_model=model,
        unread=unread,
        arrived_at=now,
    )


def read_json(
    arrival: Arrival, path: str, now: float, format: str, decode: Decode
) -> InferenceRequest:
    """Read a JSON body with ``decode``, which may raise `Unreadable` or a msgspec error.

    Raises:
        errors.BadRequest: the body claims to be JSON and is not; the message has the position.
    """
    word = why_not_json(arrival)
    if word:
        return opaque(arrival, path, now, word, format=format)
    body = arrival.body
    try:
        try:
            facts = decode(without_bom(body))
        except (msgspec.ValidationError, Unreadable) as error:
            facts = outlined(body, error)
    except msgspec.DecodeError as error:
        word = _why_broken(arrival, error)
        return opaque(arrival, path, now, word, format=format)
    except RecursionError:
        return opaque(arrival, path, now, "too-deep", format=format)
    return understood(arrival, path, now, format, facts)


def understood(
    arrival: Arrival, path: str, now: float, format: str, facts: Facts
) -> InferenceRequest:
    """Return the request that a body's facts make."""
    return InferenceRequest(
        id=arrival.id,
        headers=arrival.headers,
        body=arrival.body,
        path=path,
        format=format,
        model=facts.model,
        target_model=facts.model,
        prompt=facts.prompt,
        prompt_tokens=facts.prompt_tokens,
        salt=facts.salt,
        computed=format not in NOT_COMPUTED,
        streaming=facts.streaming,
        multimodal=bool(facts.media),
        media=facts.media,
        max_output_tokens=facts.max_output_tokens,
        unread=facts.unread,
        arrived_at=now,
    )


def why_not_json(arrival: Arrival) -> str:
    """Return the word for why a body is not decoded as JSON; '' if it may be."""
    body = arrival.body
    if not body or len(body) > MAX_JSON_BYTES:
        return "hidden" if arrival.body_hidden else "too-large" if body else "empty"
    if arrival.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}:
        return "encoded"
    kind, charset = content_type(arrival.headers)
    if kind and not _JSON.match(kind):
        return "content-type"
    if charset not in _MAY_BE_UTF8 or 0 in body[:2] or body[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return "charset"
    return ""


def without_bom(body: bytes) -> bytes | memoryview:
    """Return the body without a UTF-8 byte order mark, not copied."""
    return memoryview(body)[3:] if body.startswith(codecs.BOM_UTF8) else body


def content_type(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return media type and charset, both in lower case and '' if not told."""
    value = headers.get("content-type", "")
    if value == "application/json":
        return value, ""
    kind, _, rest = value.lower().partition(";")
    _, _, charset = rest.partition("charset=")
    return kind.strip(), charset.partition(";")[0].strip(' "')


def outlined(body: bytes, error: Exception) -> Facts:
    """Read what little a body of the wrong shape tells."""
    word = str(error) if isinstance(error, Unreadable) else "bad-shape"
    try:
        outline = _outline(without_bom(body))
    except msgspec.ValidationError:
        return Facts("", unread="not-an-object")
    try:
        model = _string(outline.model)
    except msgspec.DecodeError:  # no string, or none at all
        model = ""
    return Facts(model, streaming=bytes(outline.stream) == b"true", unread=word)


def _why_broken(arrival: Arrival, error: msgspec.DecodeError) -> str:
    """Return the word for JSON that only some decoders take; refuse what none takes."""
    said = str(error)
    if _BAD_TEXT.search(said) or _HALF_PAIR.search(arrival.body[-16:]):
        return "bad-text"  # lone surrogates are valid JSON, and Python's decoder takes them
    if not content_type(arrival.headers)[0]:
        return "bad-json"
    where = _POSITION.search(said)
    at = f"at byte {where[1]}" if where else "at its end"
    raise BadRequest(f"the body is not valid JSON: error {at} of {len(arrival.body)}") from None
