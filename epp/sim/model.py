"""The nouns of a simulated engine: what it is asked, what it is, what it tells; numbers only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epp.sim.offload.tiers import Offload
from epp.sim.profiles import Timing


class Request(msgspec.Struct, frozen=True):
    """One sequence to compute, as numbers only."""

    id: str  #: unique among the requests in the engine
    prompt_tokens: int  #: >= 1
    output_tokens: int  #: tokens it will make; 0 for an embedding
    blocks: Sequence[int] = ()
    """Hashes of the full blocks of prompt and output, in order; blocks without are not shared."""
    adapter: str = ""  #: LoRA adapter; "" is the base model
    reason: str = "length"  #: why it ends after ``output_tokens``: "length" or "stop"
    tokens: bytes = b""  #: ids of prompt and output, four bytes each; only if a journal tells them
    salt: str = ""  #: of the prompt's first block, likewise
    fetches: bool = False  #: its prompt's KV comes from another engine
    keeps: bool = False  #: another engine will fetch its prompt's KV


class Config(msgspec.Struct, frozen=True):
    """What an engine is started with."""

    timing: Timing
    kv_blocks: int  #: one of them is kept back, as in vLLM, and never used
    block_tokens: int = 16
    max_num_seqs: int = 256  #: sequences in the batch
    max_num_batched_tokens: int = 8192  #: token budget of a step
    max_adapters: int = 4  #: different adapters in the batch
    prefix_caching: bool = True
    jitter: float = 0.0  #: standard deviation of a step's duration, as a fraction of it
    journal: bool = False  #: keep what `Engine.news` tells
    lease_seconds: float = 30.0  #: for what ended requests leave to other engines
    offload: Offload = Offload()  #: tiers below the GPU


class Sealed(msgspec.Struct, frozen=True):
    """Blocks of one request that became full, and so can be found."""

    request: Request
    first: int  #: position among the request's blocks
    end: int  #: of the first that is not meant


class Finished(msgspec.Struct, frozen=True):
    """The whole story of a request. Times are the caller's seconds; None means never reached."""

    id: str
    reason: str  #: "length", "stop" or "abort"
    prompt_tokens: int
    output_tokens: int  #: tokens made
    cached_tokens: int  #: prompt tokens not computed but held, at the first admission
    preemptions: int
    arrived_at: float
    admitted_at: float | None
    first_token_at: float | None
    ended_at: float
    external_tokens: int = 0  #: prompt tokens fetched from another engine


class StepResult(msgspec.Struct, frozen=True):
    """What one step did, as seen at its end."""

    at: float  #: when it ended
    duration: float  #: seconds
    batched_tokens: int  #: tokens computed
    emitted: Sequence[str]  #: ids of the requests that got one more token
    finished: Sequence[Finished]  #: their last token, if any, is in ``emitted`` too
    first_token_seconds: Sequence[float]  #: arrival to first token, of those that got their first
    token_gap_seconds: Sequence[float]  #: since the token before, of the others


class Totals(msgspec.Struct):
    """Counts since the start."""

    prompt_tokens: int = 0  #: of requests whose prompt was computed
    computed_tokens: int = 0  #: part of them not found in the cache, nor fetched
    external_tokens: int = 0  #: part of them fetched from other engines, or loaded
    output_tokens: int = 0
    queried_tokens: int = 0  #: tokens looked up in the cache, at first admissions
    hit_tokens: int = 0  #: and found on the GPU
    preemptions: int = 0


class UnderWay:
    """A request in the engine, as far as it has come; only the engine writes it."""

    __slots__ = (
        "admitted_at",
        "arrived_at",
        "blocks",
        "cached",
        "computed",
        "emitted",
        "external",
        "first_at",
        "held",
        "last_at",
        "load_ends",
        "loaded",
        "preemptions",
        "request",
        "running",
        "sealed",
        "share",
    )

    def __init__(self, request: Request, at: float) -> None:
        self.request = request
        self.arrived_at = at
        self.admitted_at: float | None = None
        self.first_at: float | None = None
        self.last_at = at
        self.computed = 0  #: leading tokens whose KV is there
        self.emitted = 0  #: output tokens
        self.cached = 0  #: tokens found on the GPU or loaded
        self.loaded = 0  #: part of them loaded from a lower tier
        self.load_ends: float | None = None  #: while blocks are loaded from a lower tier
        self.external = 0  #: tokens fetched from another engine
        self.preemptions = 0
        self.running = False
        self.blocks = 0  #: blocks in use
        self.held: list[int] = []  #: those of them known by hash
        self.sealed = 0  #: full blocks already looked at
        self.share = 0  #: tokens in the step under way

    @property
    def tokens(self) -> int:
        return self.request.prompt_tokens + self.emitted

    def story(self, reason: str, at: float) -> Finished:
        """Return what became of it, as it ends."""
        return Finished(
            self.request.id,
            reason,
            self.request.prompt_tokens,
            self.emitted,
            self.cached,
            self.preemptions,
            self.arrived_at,
            self.admitted_at,
            self.first_at,
            at,
            self.external,
        )
