"""What a client may not say about a KV cache's way between engines, and its removal. Pure.

Such parameters make an engine read what another one keeps, and one that is incomplete or about
another prompt stops a whole vLLM server. Only the picker, or a sidecar, may set them. It is also
only here that is known which fields those are; the headers are `headers.CONTROL`.

Engines read JSON as Python's own decoder does, which takes more than msgspec's: ``NaN``, lone
surrogates, UTF-16. A body that only Python's can read is looked at with that.

Hot path: 2 us a request, 0.3 ms for a megabyte.

**Source:** vLLM 0.32: ``kv_transfer_params`` without ``remote_*`` ends in an AssertionError of its
engine; ``vllm_xargs`` and ``sampling_params.extra_args`` become the same mapping. SGLang
``python/sglang/srt/managers/io_struct.py``; TensorRT-LLM ``disaggregated_params``.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Raw, structs

from epp.disagg import frames
from epp.errors import BadRequest
from epp.formats.prompt import ABSENT
from epp.formats.reading import without_bom
from epp.model import Arrival

FIELDS = frozenset(
    {
        "kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "bootstrap_pair_key", "disagg_prefill_dp_rank", "disaggregated_params",
    }
)  # fmt: skip
INNER = {"vllm_xargs": (), "sampling_params": ("extra_args",)}
"""Objects in which engines look for `FIELDS` too, and where in these."""

_SPACE = b" \t\r\n\0\xef\xbb\xbf\xff\xfe"  #: and byte order marks
_NAMES = re.compile("|".join(sorted(FIELDS)))
_HIDDEN = re.compile(
    r"\\u00(?:5[fF]|6[1-9a-fA-F]|7[0-9aA])"
)  #: a letter, written as none writes it

Said = msgspec.defstruct(
    "Said", [(name, Raw, ABSENT) for name in sorted({*FIELDS, *INNER})], gc=False
)
"""The fields of a body that are looked at."""
_said = msgspec.json.Decoder(Said).decode
_steps = {
    name: msgspec.json.Decoder(msgspec.defstruct("Step", [(name, Raw, ABSENT)], gc=False)).decode
    for path in INNER.values()
    for name in path
}
_NOTHING = Said()
_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def without_transfer(arrival: Arrival, *, most: int | None = None) -> Arrival:
    """Return the arrival with a `stripped` body; of gRPC requests with one that is `frames.cleared`.

    Raises:
        BadRequest: as these.
    """
    service = frames.service_of(arrival.headers.get(":path", ""))
    if service:
        body = frames.cleared(arrival.body, service, most=most)
    else:
        body = stripped(arrival.body, most=most)
    return arrival if body is arrival.body else structs.replace(arrival, body=body)


def stripped(body: bytes, *, most: int | None = None) -> bytes:
    """Return the body without `FIELDS`; the same object if it has none.

    Args:
        body: of a request.
        most: bytes of a body that is taken apart, or left to Python's decoder: 0.1 s a megabyte.
            A longer one is refused if it would have to be.

    Raises:
        BadRequest: it has some, or may have, and is too long or too deep to be taken apart.
    """
    too_long = most is not None and len(body) > most
    try:
        said = _said(without_bom(body))
    except msgspec.ValidationError:
        return body  # a list, say: no engine takes parameters from it
    except (msgspec.DecodeError, RecursionError):
        return _as_python_reads(body, too_long=too_long)
    if said == _NOTHING or not _has_some(said):
        return body
    if too_long:
        raise _too_long(body)
    fields = _fields(without_bom(body))
    for name in FIELDS & fields.keys():
        del fields[name]
    for name in INNER.keys() & fields.keys():
        fields[name] = _without(fields[name], INNER[name])
    return msgspec.json.encode(fields)


def _too_long(body: bytes) -> BadRequest:
    return BadRequest(
        f"the body of {len(body)} bytes says where a KV cache is, or may, and is too long to have "
        "that removed"
    )


def _has_some(said: Any) -> bool:
    """Whether there are `FIELDS` in a body, or where engines look for them inside it."""
    return _names_some(said) or any(
        _leads_to_some(raw, path)
        for name, path in INNER.items()
        if (raw := getattr(said, name)) is not ABSENT
    )


def _leads_to_some(raw: Raw, path: tuple[str, ...]) -> bool:
    try:
        for step in path:
            raw = getattr(_steps[step](raw), step)
        return raw is not ABSENT and _names_some(_said(raw))
    except msgspec.ValidationError:
        return False  # no object


def _names_some(said: Any) -> bool:
    return any(getattr(said, name) is not ABSENT for name in FIELDS)


def _without(raw: Raw, path: tuple[str, ...]) -> Raw:
    """Return an object without `FIELDS` where ``path`` leads; the same one if it has none."""
    try:
        fields = _fields(raw)
    except msgspec.ValidationError:
        return raw
    if path:
        if path[0] not in fields:
            return raw
        inner = _without(fields[path[0]], path[1:])
        if inner is fields[path[0]]:
            return raw
        fields[path[0]] = inner
    elif not fields.keys() & FIELDS:
        return raw
    return Raw(msgspec.json.encode({n: v for n, v in fields.items() if n not in FIELDS}))


def _as_python_reads(body: bytes, *, too_long: bool) -> bytes:
    """Return the body without `FIELDS`, if it is an object to Python's decoder."""
    if body.lstrip(_SPACE)[:1] != b"{":
        return body
    if too_long:
        raise _too_long(body)
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        if not (_NAMES.search(text) or _HIDDEN.search(text)):
            return body
        told = json.loads(text)
    except RecursionError:
        raise BadRequest(f"the body of {len(body)} bytes is nested too deep") from None
    except ValueError:
        return body  # no engine reads it either
    return json.dumps(told).encode() if isinstance(told, dict) and _cleared(told) else body


def _cleared(told: dict[str, Any]) -> bool:
    """Remove `FIELDS`; say whether there were any."""
    places: list[Any] = [told]
    for name, path in INNER.items():
        place: Any = told.get(name)
        for step in path:
            place = place.get(step) if isinstance(place, dict) else None
        places.append(place)
    found = False
    for place in places:
        for name in FIELDS & place.keys() if isinstance(place, dict) else ():
            del place[name]
            found = True
    return found
