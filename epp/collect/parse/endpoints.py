"""Endpoints as an operator writes them: a list of addresses, or a YAML file. Pure.

Addresses are normalised, so that one endpoint has one spelling: ``fd00:0::1`` is ``fd00::1``. The
endpoint's id is its normalised ``host:port``.

One bad entry of a file does not spoil the others: `parse_file` returns the good ones and says
what is wrong with the rest. Whoever reads the file decides whether that is an error.

**Source:** the shape of llm-d's ``file-discovery``: ``endpoints[]`` of ``name``, ``namespace``,
``address``, ``port``, ``labels``; here also IPv6, host names, ``draining``, a number as port.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from epp.model import Endpoint, EndpointId, join_host_port

MAX_FILE_BYTES = 1024 * 1024
MAX_RANK_DIGITS = 4
DRAINING_LABEL = "epp/draining"  #: label or annotation; "true" gives an endpoint nothing new
FIRST_RANK_LABEL = "epp/first-rank"
"""Label or annotation: the data-parallel rank of a pod's first port, where ranks are counted over
several pods."""

_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\.?$)(?:{_LABEL}\.)*{_LABEL}\.?")
_LOOKS_NUMERIC = re.compile(r"[0-9.]+")


def engine_rank(endpoint: Endpoint) -> int:
    """The rank that an endpoint's engine has by its own count; one that cannot be read adds nothing."""
    first = endpoint.labels.get(FIRST_RANK_LABEL, "")
    return endpoint.rank + (int(first) if is_rank(first) else 0)


def is_rank(text: str) -> bool:
    """Whether ``text`` is a whole number, of four digits at most."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_RANK_DIGITS


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One endpoint of the file."""

    name: str
    address: str  #: IPv4, IPv6 or host name
    port: str | int
    namespace: str = "default"
    labels: dict[str, str] | None = None
    draining: bool = False  #: it keeps what it has and gets nothing more


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file; its entries are checked one by one."""

    endpoints: list[Any]


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with one entry."""

    text: str  #: what and where
    name: str = ""  #: of the entry, as far as it can be read
    namespace: str = ""


class Parsed(msgspec.Struct, frozen=True):
    """A file's endpoints."""

    endpoints: tuple[Endpoint, ...]
    problems: tuple[Problem, ...]


def parse_addresses(text: str) -> tuple[Endpoint, ...]:
    """Read ``host:port,[v6]:port,name:port``.

    Raises:
        ValueError: it is empty, an address is malformed, or one is there twice.
    """
    found: dict[EndpointId, Endpoint] = {}
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            continue
        host, port = _split(part)
        endpoint = _endpoint(host, port)
        if endpoint.id in found:
            raise ValueError(f"endpoint {part!r} is listed twice")
        found[endpoint.id] = endpoint
    if not found:
        raise ValueError(f"expected host:port,..., got {text!r}")
    return tuple(found.values())


def parse_file(text: bytes) -> Parsed:
    """Read the YAML file.

    Raises:
        ValueError: it is too large, not YAML, or not of the shape at all.
    """
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"{len(text)} bytes are over the limit of {MAX_FILE_BYTES}")
    try:
        entries = msgspec.yaml.decode(text, type=File).endpoints
    except (msgspec.DecodeError, RecursionError) as error:  # a ValidationError is a DecodeError
        raise ValueError(str(error) or "nested too deep") from error
    endpoints: dict[EndpointId, Endpoint] = {}
    problems: list[Problem] = []
    for index, raw in enumerate(entries):
        where = f"$.endpoints[{index}]"
        try:
            endpoint = _read_entry(raw, where)
        except ValueError as error:
            problems.append(_problem(raw, str(error)))
            continue
        if endpoint.id in endpoints:
            twice = f"{endpoint.address} is listed twice - at `{where}.address`"
            problems.append(_problem(raw, twice))
        else:
            endpoints[endpoint.id] = endpoint
    return Parsed(tuple(endpoints.values()), tuple(problems))


def normalise_host(text: str) -> str:
    """Return the one spelling of an IP address or host name.

    Raises:
        ValueError: it is neither.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        name = bare.lower()
        if _HOST_NAME.fullmatch(name) and not _LOOKS_NUMERIC.fullmatch(name):
            return name.removesuffix(".")
        raise ValueError(f"{text!r} is neither an IP address nor a host name") from None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        raise ValueError(f"{text!r} has a zone, which no gateway can use")
    return str(address)


def normalise_port(value: str | int) -> int:
    """Return a port, 1 to 65535.

    Raises:
        ValueError: it is none.
    """
    text = str(value)
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 65_535:
        return int(text)
    raise ValueError(f"expected a port from 1 to 65535, got {value!r}")


def _split(part: str) -> tuple[str, str]:
    host, colon, port = part.rpartition(":")
    if not colon or not host:
        raise ValueError(f"expected host:port, got {part!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"expected [IPv6]:port with brackets, got {part!r}")
    return host, port


def _endpoint(address: str, port: str | int) -> Endpoint:
    try:
        host, number = normalise_host(address), normalise_port(port)
    except ValueError as error:
        raise ValueError(f"endpoint '{address}:{port}': {error}") from error
    at = join_host_port(host, number)
    return Endpoint(EndpointId(at), host, number, name=at)


def _read_entry(raw: Any, where: str) -> Endpoint:
    try:
        entry = msgspec.convert(raw, Entry)
    except msgspec.ValidationError as error:
        text = str(error)
        raise ValueError(text.replace("`$", f"`{where}") if "`$" in text else
                         f"{text} - at `{where}`") from error  # fmt: skip
    if not entry.name:
        raise ValueError(f"an endpoint needs a name - at `{where}.name`")
    field = "address"
    try:
        host = normalise_host(entry.address)
        field = "port"
        port = normalise_port(entry.port)
    except ValueError as error:
        raise ValueError(f"{error} - at `{where}.{field}`") from error
    labels = entry.labels or {}
    return Endpoint(
        EndpointId(join_host_port(host, port)),
        host,
        port,
        name=entry.name,
        namespace=entry.namespace,
        labels=labels,
        draining=entry.draining or labels.get(DRAINING_LABEL) == "true",
    )


def _problem(raw: Any, text: str) -> Problem:
    def word(key: str, default: str) -> str:
        value = raw.get(key, default) if isinstance(raw, dict) else ""
        return value if isinstance(value, str) else ""

    return Problem(text, word("name", ""), word("namespace", "default"))


def kept(before: Sequence[Endpoint], parsed: Parsed) -> tuple[Endpoint, ...]:
    """The good entries, and for each bad one what ``before`` had under its name."""
    bad = {(problem.namespace, problem.name) for problem in parsed.problems if problem.name}
    taken = {endpoint.id for endpoint in parsed.endpoints}
    named = {(endpoint.namespace, endpoint.name) for endpoint in parsed.endpoints}
    stay = (
        endpoint
        for endpoint in before
        if (key := (endpoint.namespace, endpoint.name)) in bad
        and key not in named
        and endpoint.id not in taken
    )
    return (*parsed.endpoints, *stay)
