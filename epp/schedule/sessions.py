"""Which endpoint a client's session belongs to: what the session filter and scorer share.

``encoded_endpoint_header``: the answer carries a header that names the endpoint, and the client
sends it back. Nothing is kept here.

``session_id``: the client names its session; which endpoint served it last is kept here, for
``evictionTtlSeconds`` after its last request, for at most `MAX_SESSIONS` sessions (the least
recently used go first), and only as a digest of the client's name for it.

**Source:** parameters and token of llm-d's ``session-affinity-filter``: base64 of
``namespace/name``, where the name of an endpoint is ``pod-rank-N``.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from epp import headers, plugin
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Pick

MAX_SESSIONS = 100_000
DIGEST = 16  #: bytes of a session's digest
ATTRIBUTES = frozenset({"agent-identity", "SessionID", "session-id-producer"})
"""Names of the one request attribute there is: the session found by whichever is configured."""

Strategy = Literal["encoded_endpoint_header", "session_id"]


class EncodedHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``encoded_endpoint_header``."""

    header: Annotated[str, Meta(min_length=1)] = headers.SESSION_TOKEN  #: its name


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a session's id is read from: one of a header and a request attribute."""

    header: str = ""  #: its name
    attribute: str = ""  #: agent-identity, SessionID or session-id-producer


class SessionId(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``session_id``."""

    sources: Annotated[tuple[Source, ...], Meta(min_length=1)] = (Source(headers.SESSION_ID),)
    eviction_ttl_seconds: Annotated[float, Meta(gt=0)] = 300.0  #: after its last request
    eviction_sweep_seconds: Annotated[float, Meta(gt=0)] = 10.0  #: between looks for old ones


class SessionParams(plugin.Params, frozen=True):
    """Parameters of both session plugins."""

    strategy: Strategy = "encoded_endpoint_header"
    """The answer names the endpoint for the client to send back, or we remember the session."""
    encoded_endpoint_header_config: EncodedHeader = EncodedHeader()
    session_id_config: SessionId = SessionId()
    profile_name: str = ""  #: whose pick to follow: "" or "decode" the destination, else prefill
    header_name: str | UnsetType = UNSET  #: older spelling of the header, for either strategy


class Memory(Protocol):
    """One strategy."""

    def find(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int | None:
        """Position of the session's endpoint; None without a session, or if it is not there."""
        ...

    def learn(self, request: InferenceRequest, endpoint: Endpoint) -> None:
        """Note where the session was sent."""
        ...

    def name(self, request: InferenceRequest) -> bytes:
        """A digest of the session, `DIGEST` bytes; b"" if none is kept here."""
        ...

    def learn_name(self, session: bytes, endpoint: Endpoint) -> None:
        """Note where the session of that digest was sent."""
        ...

    def token(self, endpoint: Endpoint) -> Mapping[str, str]:
        """Headers that tell the client its endpoint."""
        ...

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop the sessions of an endpoint."""
        ...


class InHeader:
    """Strategy ``encoded_endpoint_header``."""

    def __init__(self, config: EncodedHeader) -> None:
        self._header = config.header.lower()

    def find(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int | None:
        """See `Memory.find`. A token that is not ours is no session."""
        token = request.headers.get(self._header)
        if not token:
            return None
        try:
            name = base64.b64decode(token, validate=True).decode()
        except (binascii.Error, ValueError):
            return None
        namespace, _, name = name.partition("/")
        for i, endpoint in enumerate(endpoints):
            own = endpoint.name or endpoint.address
            if name.startswith(own) and endpoint.namespace == namespace:
                rank = name[len(own) :]
                if rank == f"-rank-{endpoint.rank}" or (not rank and not endpoint.rank):
                    return i
        return None

    def learn(self, request: InferenceRequest, endpoint: Endpoint) -> None:
        """See `Memory.learn`."""

    def name(self, request: InferenceRequest) -> bytes:
        """See `Memory.name`. The client keeps it."""
        return b""

    def learn_name(self, session: bytes, endpoint: Endpoint) -> None:
        """See `Memory.learn_name`."""

    def token(self, endpoint: Endpoint) -> Mapping[str, str]:
        """See `Memory.token`."""
        name = f"{endpoint.namespace}/{endpoint.name or endpoint.address}"
        if endpoint.rank:
            name += f"-rank-{endpoint.rank}"
        return {self._header: base64.b64encode(name.encode()).decode()}

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `Memory.forget`."""


class InMemory:
    """Strategy ``session_id``."""

    def __init__(self, config: SessionId, tools: plugin.Tools) -> None:
        for source in config.sources:
            if bool(source.header) == bool(source.attribute):
                raise ValueError("sessionIdConfig.sources: each sets one of header and attribute")
            if source.attribute and source.attribute not in ATTRIBUTES:
                raise ValueError(
                    f"sessionIdConfig.sources: no plugin publishes attribute "
                    f"{source.attribute!r}; known: {', '.join(sorted(ATTRIBUTES))}"
                )
        self._headers = [source.header.lower() for source in config.sources]
        self._ttl = config.eviction_ttl_seconds
        self._sweep_every = config.eviction_sweep_seconds
        self._clock = tools.clock
        self._swept_at = tools.clock.now()
        self._homes: OrderedDict[bytes, tuple[EndpointId, float]] = OrderedDict()
        """Endpoint and time of the last use by session, the longest unused first."""

    def find(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int | None:
        """See `Memory.find`."""
        session = self.name(request)
        home = self._homes.get(session) if session else None
        if home is None or self._clock.now() - home[1] > self._ttl:
            return None
        return next((i for i, e in enumerate(endpoints) if e.id == home[0]), None)

    def learn(self, request: InferenceRequest, endpoint: Endpoint) -> None:
        """See `Memory.learn`."""
        session = self.name(request)
        if session:
            self.learn_name(session, endpoint)

    def learn_name(self, session: bytes, endpoint: Endpoint) -> None:
        """See `Memory.learn_name`."""
        now = self._clock.now()
        self._homes[session] = (endpoint.id, now)
        self._homes.move_to_end(session)
        if len(self._homes) > MAX_SESSIONS:
            self._homes.popitem(last=False)
        if now - self._swept_at >= self._sweep_every:
            self._swept_at = now
            self._sweep(now)

    def token(self, endpoint: Endpoint) -> Mapping[str, str]:
        """See `Memory.token`. The client has its session's id already."""
        return {}

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `Memory.forget`."""
        gone = [session for session, home in self._homes.items() if home[0] == endpoint_id]
        for session in gone:
            del self._homes[session]

    def __len__(self) -> int:
        return len(self._homes)

    def name(self, request: InferenceRequest) -> bytes:
        """See `Memory.name`: a digest of the first id found, of fixed size however long the client's is."""
        for header in self._headers:  # "" asks for the request's attribute
            name = request.headers.get(header) if header else request.session
            if name:
                return blake2b(name.encode("utf-8", "surrogateescape"), digest_size=DIGEST).digest()
        return b""

    def _sweep(self, now: float) -> None:
        while self._homes:
            oldest = next(iter(self._homes))
            if now - self._homes[oldest][1] <= self._ttl:
                return
            del self._homes[oldest]


class SessionAffinity:
    """Base of the session filter and scorer: it knows a session's endpoint and follows picks."""

    Params = SessionParams

    def __init__(self, params: SessionParams, tools: plugin.Tools) -> None:
        header = params.header_name
        self._prefill = params.profile_name not in {"", "decode"}
        self.memory: Memory
        if params.strategy == "encoded_endpoint_header":
            config = params.encoded_endpoint_header_config
            self.memory = InHeader(config if header is UNSET else EncodedHeader(header))
        else:
            self.memory = InMemory(
                params.session_id_config
                if header is UNSET
                else msgspec.structs.replace(params.session_id_config, sources=(Source(header),)),
                tools,
            )

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        endpoint = self._followed(pick, "")
        if endpoint is not None:
            self.memory.learn(request, endpoint)

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""

    def share(self, request: InferenceRequest, pick: Pick) -> bytes:
        """See `plugin.Sharer.share`: a digest of the session."""
        return b"" if self._followed(pick, "") is None else self.memory.name(request)

    def heard(self, fact: bytes, endpoint: Endpoint, prefill: Endpoint | None) -> None:
        """See `plugin.Sharer.heard`."""
        if len(fact) != DIGEST:
            raise ValueError(f"{len(fact)} bytes are no session")
        followed = prefill if self._prefill else endpoint
        if followed is not None:
            self.memory.learn_name(fact, followed)

    def answer_headers(
        self, request: InferenceRequest, pick: Pick, served: str
    ) -> Mapping[str, str]:
        """See `plugin.AnswerHeaderAdder.answer_headers`."""
        endpoint = self._followed(pick, served)
        return {} if endpoint is None else self.memory.token(endpoint)

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`."""
        self.memory.forget(endpoint_id)

    def _followed(self, pick: Pick, served: str) -> Endpoint | None:
        if self._prefill:
            return pick.prefill
        return next((e for e in pick.endpoints if e.address == served), pick.endpoints[0])
