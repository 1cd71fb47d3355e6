"""The nouns: what an endpoint is, what a request asks for, what a pick answers.

Everything here is frozen. A fact that changes, such as an endpoint's load, is
replaced whole, so a reader never sees half an update and never needs a lock.
They are msgspec structs since the hot path makes several of them per request: a frozen
struct of ten fields is built in 0.3 us, a frozen dataclass in 2.5 us (CPython 3.11).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, NewType

import msgspec

EndpointId = NewType("EndpointId", str)
"""Unique within a pool and never reused: pod UID + port, or ``host:port`` in a static pool."""

BlockHash = NewType("BlockHash", int)
"""64-bit hash of one full block of the prompt, chained on the block before it."""

MODALITIES = frozenset({"image", "audio", "video", "document"})
OTHER_MODALITY = "other"  #: where it is not told, or is none of these

NO_LABELS: Mapping[str, str] = {}

ROLE = "llm-d.ai/role"
"""Label of a pod: which stages of a disaggregated request it serves."""

GROUP = "epp/group"
"""Label of a pod: pods with the same value are one engine, each port a rank of it, none of which
answers without all others. Without it, or if it is empty, ranks are engines of their own."""


@lru_cache(maxsize=8192)
def join_host_port(host: str, port: int) -> str:
    """``host:port``, with IPv6 hosts in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class CacheInfo(msgspec.Struct, frozen=True):
    """An engine's KV cache, as it reports it."""

    block_tokens: int  #: tokens per block
    tokens: int | None  #: capacity in tokens, of one engine; None if not told


class LoraInfo(msgspec.Struct, frozen=True):
    """LoRA adapters of an engine."""

    active: frozenset[str]
    waiting: frozenset[str]
    max_active: int


class CacheCounts(msgspec.Struct, frozen=True):
    """What an engine counted of its prefix cache since its start, in tokens of prompts."""

    queries: float  #: of all prompts
    hits: float  #: that needed not be computed, wherever they came from
    admitted: bool = False  #: counted when the engine begins with a prompt, not with its answer


class Load(msgspec.Struct, frozen=True):
    """What one scrape said about one endpoint. None means "not told", never "none"."""

    at: float  #: seconds on `Clock.now()` when the scrape was read
    queued: float | None = None  #: requests waiting outside the running batch, >= 0
    running: float | None = None  #: requests in the running batch, >= 0
    kv_usage: float | None = None  #: fraction of KV blocks in use, 0.0 to 1.0
    cache: CacheInfo | None = None
    lora: LoraInfo | None = None
    asleep: bool = False  #: the engine sleeps: requests to it hang
    attributes: Mapping[str, float] = {}  #: custom metrics, by configured key
    counts: CacheCounts | None = None


class Endpoint(msgspec.Struct, frozen=True):
    """One place a request can be sent: one port of one model server."""

    id: EndpointId
    host: str
    port: int
    name: str = ""  #: pod name, or the name in the endpoints file
    namespace: str = ""
    rank: int = 0  #: index of its port among the pod's ports (data-parallel rank)
    labels: Mapping[str, str] = NO_LABELS
    draining: bool = False  #: keeps what it has, gets nothing more
    reachable: bool = True  #: False once nothing listens there
    load: Load | None = None  #: None before the first scrape and when the last one is stale

    @property
    def address(self) -> str:
        """``host:port``, with IPv6 hosts in brackets."""
        return join_host_port(self.host, self.port)


class Arrival(msgspec.Struct, frozen=True):
    """A request as it came in, before anything is understood."""

    id: str  #: ``x-request-id``, made up if the client sent none
    headers: Mapping[str, str]  #: lower-case names, pseudo-headers included
    body: bytes = b""
    subset: tuple[str, ...] | None = None  #: ``host:port`` or ``host``; None allows the whole pool
    body_hidden: bool = False  #: a body may follow, but Envoy does not show it to us
    understood: InferenceRequest | None = None  #: as read elsewhere; None: still to be read
    patient: bool = True  #: the gateway waits for our answer to the body as long as it takes


class PrefixMatch(msgspec.Struct, frozen=True):
    """What one source of prefix knowledge says about one request."""

    blocks: tuple[BlockHash, ...]  #: the prompt's full blocks, in order
    block_tokens: int  #: tokens per block
    held: Mapping[EndpointId, int]  #: leading blocks each endpoint holds; absent means 0
    source: str = "picks"  #: of the knowledge, a fixed word: "picks" of ours, or engines' "events"


class Tokens(msgspec.Struct, frozen=True):
    """A prompt as the engine will compute it. No ``repr`` shows its ids."""

    ids: bytes  #: of the first prompt, if there are several; four bytes each, little-endian
    count: int  #: of all prompts
    source: str  #: who told, a fixed word
    media: tuple[tuple[int, str], ...] = ()  #: images and the like: position, the engine's name

    def __repr__(self) -> str:
        return f"Tokens({self.count}, {self.source})"


class Medium(NamedTuple):
    """An image, a sound or the like in a request."""

    modality: str  #: one of `MODALITIES`, or `OTHER_MODALITY`
    hash: int  #: 64 bits; the same for media that the client wrote alike


class MediaMatch(msgspec.Struct, frozen=True):
    """Which endpoints have encoded the images, audio and video of one request lately."""

    items: tuple[int, ...]  #: their hashes, each once; never empty
    held: Mapping[EndpointId, int]  #: how many of them each endpoint has; absent means 0


class InferenceRequest(msgspec.Struct, frozen=True):
    """One client request, understood as far as possible."""

    id: str  #: ``x-request-id``
    headers: Mapping[str, str]  #: lower-case names, pseudo-headers included
    body: bytes  #: what will be forwarded
    path: str = "/"  #: without query string
    format: str = "opaque"  #: which API: "completions", "chat", ...; "opaque" is routed by load
    model: str = ""  #: the name the client used; "" if it gave none
    target_model: str = ""  #: the name the engine is asked for; `model` unless rewritten
    model_span: tuple[int, int] | None = None  #: where the model's JSON string stands in `body`
    prompt: bytes = b""  #: canonical prompt, about 4 bytes per token; b"" if there is none
    prompt_tokens: int = 0  #: estimated, or exact where the client sent token ids
    tokens: Tokens | None = None  #: None if nobody told
    no_tokens: str = ""  #: why nobody did, a fixed word; "" if nobody was asked
    salt: str = ""  #: vLLM's ``cache_salt``
    computed: bool = True  #: the engine will compute the prompt, not only count or render it
    streaming: bool = False  #: the client asked for an event stream
    multimodal: bool = False  #: carries images, audio or video
    media: tuple[Medium, ...] = ()  #: each of them, in order
    max_output_tokens: int | None = None  #: the client's limit
    unread: str = ""  #: why the body was not understood, a fixed word; "" if it was
    objective: str = ""
    priority: int = 0  #: higher goes first; negative may be dropped under load
    flow: str = ""  #: requests of one flow share one fair queue
    arrived_at: float = 0.0  #: seconds on `Clock.now()`
    waited: float = 0.0  #: seconds it waited until it might go on
    prefix: Mapping[str, PrefixMatch] = {}  #: by the name of the producer that knows
    media_match: MediaMatch | None = None  #: who has encoded its `media` lately; None if not asked
    session: str = ""  #: the client's session, from a header or cookie; "" if not told
    peer: Endpoint | None = None  #: chosen for the other stage, while a later one is scheduled

    def match(self, producer: str = "") -> PrefixMatch | None:
        """Return what ``producer`` knows; '' asks the first configured one."""
        if producer:
            return self.prefix.get(producer)
        return next(iter(self.prefix.values()), None)

    def uncached_tokens(self, endpoint_id: EndpointId, producer: str = "") -> int:
        """Prompt tokens that ``endpoint_id`` would have to compute; all, if nothing is known."""
        if not self.computed:
            return 0
        match = self.match(producer)
        if match is None:
            return self.prompt_tokens
        held = match.held.get(endpoint_id, 0) * match.block_tokens
        return max(self.prompt_tokens - held, 0)


class Speed(msgspec.Struct, frozen=True, gc=False):
    """How soon an endpoint's first bytes come, as learned from streamed answers."""

    per_token: float  #: seconds for each uncached prompt token, > 0
    rest: float  #: seconds that no prompt token accounts for, >= 0
    answers: int  #: of this endpoint that taught it; 0: those of others only


class Expected(msgspec.Struct, frozen=True, gc=False):
    """What was known at the pick of the work before a first byte; see `epp.ttft`.

    Tokens are uncached prompt tokens, as estimated here, of the endpoint that computes the prompt.
    """

    queued: float  #: those of other requests, computed first
    uncached: float  #: those of this request
    speed: Speed | None  #: None while nothing was learned of any endpoint
    weight: float = 1.0  #: what each token of this request costs; see `epp.ttft.work`
    way: float = 0.0  #: seconds that the cache takes to whom decodes, if that is another one


class Pick(msgspec.Struct, frozen=True):
    """Where a request goes."""

    endpoints: tuple[Endpoint, ...]  #: first choice first, then fallbacks; never empty
    headers: Mapping[str, str] = {}  #: extra request headers
    destination_override: str = ""  #: destination other than the endpoints' own addresses
    prefill: Endpoint | None = None  #: where the prefill runs, if elsewhere
    prefill_next: tuple[Endpoint, ...] = ()  #: where else it could run, best first
    stages: str = ""  #: why the prefill runs where it does, a fixed word; "" if nobody says
    encode: tuple[Endpoint, ...] = ()  #: where images, audio and video are encoded, if elsewhere
    scores: Mapping[str, float] | None = None  #: by address, all scored candidates, if wanted
    profile: str = ""  #: the profile that made the choice
    expected: Expected | None = None  #: None where no first token can be foreseen

    @property
    def destination(self) -> str:
        """The value of `headers.DESTINATION`."""
        if self.destination_override:
            return self.destination_override
        endpoints = self.endpoints
        if len(endpoints) == 1:
            return endpoints[0].address
        return ",".join(e.address for e in endpoints)


class PrefillLeg(msgspec.Struct, frozen=True):
    """What became of a prompt that we were to have computed elsewhere."""

    endpoint: Endpoint | None  #: which computed it; None: the one that decodes
    reason: str  #: why not elsewhere, or not where picked; "" if as picked. A fixed word
    at: float  #: seconds on `Clock.now()` when the request could go on
    seconds: float | None = 0.0  #: from the pick until then; None where it went on beside
    attempts: int = 0  #: endpoints that were asked
    lost: float = 0.0  #: of `seconds`, at an endpoint that was asked before


class Usage(msgspec.Struct, frozen=True):
    """Token counts the engine reported for one request. None means not reported."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Outcome(Enum):
    """How an exchange ended."""

    COMPLETED = "completed"  #: the last byte of the response passed
    FAILED = "failed"  #: the engine or the gateway answered with an error status
    ABANDONED = "abandoned"  #: the client or Envoy left before the response was whole
    UNKNOWN = "unknown"  #: nobody told us; given up by the reaper


class Ending(msgspec.Struct, frozen=True):
    """How and when an exchange ended. Times are seconds on `Clock.now()`."""

    outcome: Outcome
    at: float
    status: int | None = None  #: HTTP status, if seen
    served: str = ""  #: ``host:port`` that really served, if told
    first_byte_at: float | None = None  #: first byte of the response body, if seen
    response_bytes: int | None = None
    streamed: bool = False  #: the response was an event stream
    usage: Usage | None = None
    picked_at: float = 0.0  #: when the request was about to be forwarded
    attempts: int | None = None  #: endpoints that the gateway tried, if told
    flags: str = ""  #: why the gateway cut it off, its own words with commas; "" if it did not
    leg: PrefillLeg | None = None  #: None unless we were to have the prompt computed elsewhere
