"""Where an endpoint publishes its KV events: as it says itself, or as configured.

**Source:** vLLM's ``/kv_event_sources`` (since 0.31): by data-parallel rank, or a list of what each
tells, with addresses as they were bound, ``tcp://*:5557``. An engine that connects to a subscriber tells
that one's address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from epp.collect.kv.link import Where
from epp.collect.parse.endpoints import engine_rank
from epp.model import Endpoint
from epp.prefix.precise_settings import PodDiscoveryConfig

PATH = "/kv_event_sources"
ANY = ("*", "0.0.0.0", "[::]", "::")
MOST_RANKS = 1024
MOST_PORT = 65_535


class _Source(msgspec.Struct, frozen=True):
    endpoint: str | None = None
    replay_endpoint: str | None = None
    enable_kv_cache_events: bool = True
    data_parallel_rank: int = 0  #: told in a list only


_read = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw]).decode
_read_source = msgspec.json.Decoder(_Source).decode


def configured(endpoint: Endpoint, ports: PodDiscoveryConfig) -> Mapping[int, Where]:
    """Return the addresses by rank, as the configuration says: of an endpoint one rank."""
    replay, rank = ports.replay_socket_port, engine_rank(endpoint)
    events = _tcp(endpoint.host, ports.socket_port + rank) if ports.socket_port else ""
    return {0: Where(events, _tcp(endpoint.host, replay + rank) if replay else "")}


def told(endpoint: Endpoint, page: bytes) -> Mapping[int, Where]:
    """Return the addresses by rank, as the engine says; empty if it publishes nothing here.

    An endpoint that is one rank of its pod has that one only.

    Raises:
        ValueError: the page says nothing that can be understood.
    """
    try:
        sources = _read(page)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{PATH}: {error}") from error
    ranks = dict(_understood(sources))
    if sources and not ranks:
        raise ValueError(f"{PATH}: none of {len(sources)} ranks can be understood")
    own = next((rank for rank in (engine_rank(endpoint), endpoint.rank) if rank in ranks), 0)
    if own:
        ranks = {0: ranks[own]}
    if len(ranks) == 1:
        ranks = dict.fromkeys([0], next(iter(ranks.values())))
    found = {}
    for rank, source in list(ranks.items())[:MOST_RANKS]:
        events = _reachable(endpoint.host, source.endpoint or "")
        if source.enable_kv_cache_events and events:
            found[rank] = Where(events, _reachable(endpoint.host, source.replay_endpoint or ""))
    return found


def _understood(
    sources: Mapping[str, msgspec.Raw] | Sequence[msgspec.Raw],
) -> Iterator[tuple[int, _Source]]:
    """Yield ranks with what they say; those that cannot be understood are left out."""
    named = sources.items() if isinstance(sources, Mapping) else (("", raw) for raw in sources)
    for rank, raw in named:
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            source = _read_source(raw)
            yield (int(rank) if rank else source.data_parallel_rank), source


def _reachable(host: str, bound: str) -> str:
    """Return where a socket that was bound is reached; "" if it is not the engine's own.

    Bound to a port of the system's choice (``tcp://*:0``), vLLM tells its node's own address.
    """
    scheme, _, where = bound.partition("://")
    if scheme == "ipc":
        return bound
    name, _, port = where.rpartition(":")
    own = name in ANY or name.strip("[]") == host
    reachable = scheme == "tcp" and own and port.isdecimal() and 0 < int(port) <= MOST_PORT
    return _tcp(host, int(port)) if reachable else ""


def _tcp(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
