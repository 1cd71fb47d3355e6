"""``precise-prefix-cache-producer``: what engines' own KV events say that they hold.

A prompt whose token ids are known (see ``token-producer``) is looked up in an index of the blocks
that engines told of, block for block as they name them. An endpoint whose events are missing, late
or have proved wrong is believed to hold what our own picks say, if that is more: the same knowledge
that ``approx-prefix-cache-producer`` has, and all that there is where no token ids are known.

**Source:** names and defaults of the parameters are those of llm-d's
``precise-prefix-cache-producer``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from epp import plugin
from epp.config.units import parse_duration
from epp.headers import RANK
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Outcome, Pick, PrefixMatch
from epp.prefix import blocks
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.prefix.exact.events import Tier
from epp.prefix.exact.index import ExactIndex, Known
from epp.prefix.exact.keys import Prompt
from epp.prefix.feed.audit import Claim, claim
from epp.prefix.feed.engine import Engine, Engines
from epp.prefix.feed.names import ModelNames
from epp.prefix.feed.ranks import Ranks, rank_of
from epp.prefix.feed.trust import EXPECTED_SECONDS, Level, Trust
from epp.prefix.precise_settings import PreciseParams, check, keys_of, weights_of


class ExactMatch(PrefixMatch, frozen=True, kw_only=True):
    """A match that engines' own events told."""

    known: Known  #: what events told, of all endpoints
    picks: PrefixMatch | None  #: what our own picks say
    guessed: frozenset[EndpointId]  #: of whom `picks` say more, and events are not all there


class _Coming(msgspec.Struct, frozen=True, array_like=True):
    """What a pick of another picker will bring to one engine."""

    chain: bytes  #: see `blocks.packed`
    held: Annotated[int, Meta(ge=0)]  #: leading blocks that it held then
    rank: Annotated[int, Meta(ge=0)]


class PrecisePrefixCacheProducer:
    """Knows from engines' KV events which endpoint holds how much of a prompt.

    Where token ids are not known, or an engine's events are not all there, what our own picks let us
    believe counts. Needs ``epp[precise]``; see ``docs/kv_events.md``.
    Differs from llm-d: blocks that a pick will bring are always expected, and any number of pods may
    hold a block; events before the picker's start are asked for, from the oldest that there is.
    """

    type: ClassVar[str] = "precise-prefix-cache-producer"
    stability: ClassVar[plugin.Stability] = "beta"

    Params = PreciseParams

    def __init__(self, params: PreciseParams, tools: plugin.Tools) -> None:
        check(params)
        self.params = params
        self.engines = Engines()  #: whose events come in; a collector adds them
        self.ranks = Ranks()
        self.names = ModelNames()  #: which are adapters'; a collector asks
        self.sources: Counter[tuple[str, str]] = Counter()
        """Requests by what told of them, and why nothing better did: fixed words."""
        naming, index = params.token_processor_config, params.indexer_config
        self.index = ExactIndex(
            keys_of(naming),
            block_tokens=naming.block_size_tokens,
            most_bytes=index.kv_block_index_config.max_bytes,
        )
        self._alike = bool(naming.hash_seed or naming.hash_seed_file)  #: names are others', too
        self._weights = weights_of(index.kv_cache_backend_configs)
        self._ttl = parse_duration(params.speculative_ttl) if params.speculative_ttl else None
        self._name = tools.name or self.type
        self._clock, self._ledger = tools.clock, tools.ledger
        self.computed_prompts = 0  #: whose tokens in flight were let go of, as events told so, ever
        named = msgspec.structs.replace(tools, name=self._name)
        self._picks = ApproxPrefixCacheProducer(ApproxPrefixCacheProducer.Params(), named)

    def enrich(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> InferenceRequest:
        """Add the prompt's blocks and who holds them. See `plugin.Enricher.enrich`."""
        if not request.computed or not request.prompt:
            return request
        believed = self._picks.enrich(request, endpoints).prefix.get(self._name)
        if request.tokens is None:
            self.sources["picks", request.no_tokens or "no_tokenizer"] += 1
            return self._with(request, believed)
        root = self._root_of(request, endpoints)
        if root is None:
            self.sources["picks", "unknown_model"] += 1
            return self._with(request, believed)
        prompt = Prompt(request.tokens.ids, root, salt=request.salt, media=request.tokens.media)
        known = self.index.look_up(prompt)
        if not known.chains[0]:
            return self._with(request, believed)
        match = self._match(known, believed)
        self.sources["events", "partly_picks" if match.guessed else ""] += 1
        return self._with(request, match)

    def request_headers(self, request: InferenceRequest, pick: Pick) -> Mapping[str, str]:
        """See `plugin.RequestHeaderAdder.request_headers`: the rank that holds most of the prompt.

        Not of a request in several legs, whose other engines have other ranks; nor of one that a
        fallback has not, which would refuse it.
        """
        match, target = request.prefix.get(self._name), pick.endpoints[0].id
        legs = pick.prefill is not None or pick.encode
        if legs or not isinstance(match, ExactMatch) or not self.params.rank_header:
            return {}
        count = self.engines.ranks_heard(target)
        if count < 2:
            return {}
        told = self.index.by_rank(target, range(count), match.known.chain_of(target))
        in_flight = self._ledger.get(target).requests
        rank = self.ranks.choose(target, told, in_flight=in_flight)
        if rank is None or any(rank >= self.engines.ranks_heard(e.id) for e in pick.endpoints[1:]):
            return {}
        return {RANK: str(rank)}

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`: the endpoint will hold the prompt, and so will the prefill's."""
        match = request.prefix.get(self._name)
        if isinstance(match, ExactMatch):
            rank = rank_of(pick)
            if rank is not None:
                self.ranks.begin(pick.endpoints[0].id, rank)
            for endpoint in filter(None, (pick.endpoints[0], pick.prefill)):
                self._expect(request, endpoint, match.known, rank=rank)
            engine = self._witness(request, pick, match.known)
            if engine is not None:
                engine.audit.picked(self._claim(request, match.known, engine))
        self._picks.picked(_believed(request, self._name), pick)

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`: compare what was known with what the engine found."""
        self._picks.ended(_believed(request, self._name), pick, ending)
        match = request.prefix.get(self._name)
        if not isinstance(match, ExactMatch):
            return
        rank = rank_of(pick)
        if rank is not None:
            self.ranks.end(pick.endpoints[0].id, rank)
        for each in filter(None, (pick.endpoints[0], pick.prefill)):
            sent = match.known.ranks.get(each.id, 0) if rank is None else rank
            self.index.answered(each.id, request.id, rank=sent)
        moved = bool(ending.served) and ending.served != pick.endpoints[0].address
        computed = not moved and ending.outcome is Outcome.COMPLETED
        engine = self._witness(request, pick, match.known)
        if engine is not None:
            made = self._claim(request, match.known, engine)
            self._compare(made, engine, ending if computed else None)
        if computed:
            self._owe(match.known, pick.prefill or pick.endpoints[0], ending.picked_at)

    def share(self, request: InferenceRequest, pick: Pick) -> bytes:
        """See `plugin.Sharer.share`: what the pick will bring, and what picks let believe.

        Names of blocks that are made with a secret of this process alone tell others nothing.
        """
        match = request.prefix.get(self._name)
        believed = self._picks.share(_believed(request, self._name), pick)
        told: list[_Coming] = []
        if isinstance(match, ExactMatch) and self._alike:
            named = rank_of(pick)
            for each in filter(None, (pick.endpoints[0], pick.prefill)):
                best = match.known.ranks.get(each.id, 0)
                chain = blocks.packed(match.known.chain_of(each.id), self.index.block_tokens)
                held = match.known.blocks.get(each.id, 0) if named in (None, best) else 0
                told.append(_Coming(chain, held, best if named is None else named))
        return msgspec.msgpack.encode((believed, told)) if believed or told else b""

    def heard(self, fact: bytes, endpoint: Endpoint, prefill: Endpoint | None) -> None:
        """See `plugin.Sharer.heard`. Until an engine's events tell, its blocks are expected."""
        believed, told = msgspec.msgpack.decode(fact, type=tuple[bytes, list[_Coming]])
        if believed:
            self._picks.heard(believed, endpoint, prefill)
        for each, coming in zip(filter(None, (endpoint, prefill)), told, strict=False):
            chain, block_tokens = blocks.unpacked(coming.chain)
            if block_tokens == self.index.block_tokens:
                self.index.expect(
                    each.id, chain, until=self._until(each.id, coming.rank), rank=coming.rank,
                    held=min(coming.held, len(chain)),
                )  # fmt: skip

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`; of events, the collector knows better."""
        self._picks.forget(endpoint_id)

    def computed(self, endpoint_id: EndpointId, rank: int) -> None:
        """Let go of the tokens in flight of prompts whose last block a rank has just told.

        Nothing else tells before the answer begins, and nothing at all where answers pass us by.
        """
        for request in self.index.computed(endpoint_id, rank=rank):
            self.computed_prompts += self._ledger.computed(endpoint_id, request)

    def rotate(self) -> bool:
        """Read the file of secrets again; say whether others name blocks from now on.

        Raises:
            ValueError: it cannot be used; nothing has changed.
        """
        keys = keys_of(self.params.token_processor_config)
        changed = keys != self.index.keys
        if changed:
            self.index.rotate(keys)
        return changed

    def trust(self, endpoint_id: EndpointId, rank: int = 0) -> Trust:
        """Return how far what an endpoint told may be believed."""
        engine = self.engines.get(endpoint_id, rank)
        if engine is None:
            return Trust(Level.PRIOR, "not_connected")
        return engine.confidence.trust(self._clock.now())

    def dump_state(self) -> Mapping[str, Any]:
        """See `plugin.StateDumper.dump_state`."""
        now = self._clock.now()
        return {
            "index": self.index.figures(),
            "computedPrompts": self.computed_prompts,
            "sentToOneRank": self.ranks.sent,
            "requests": {" ".join(filter(None, key)): n for key, n in self.sources.items()},
            "modelsListed": len(self.names.models),
            "adaptersListed": len(self.names.adapters),
            "engines": [_shown(each, now) for each in self.engines],
            "picks": self._picks.dump_state(),
        }

    def _root_of(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> str | None:
        """Return the adapter that is asked for; "" for a base model, by whatever name; else None."""
        name = request.target_model
        root = name if name in self.engines.adapters else self.names.root_of(name)
        if root or name in self.names.models:
            return root
        for endpoint in endpoints:
            lora = endpoint.load.lora if endpoint.load else None
            if lora is not None and (name in lora.active or name in lora.waiting):
                return name
        return root

    def _match(self, known: Known, believed: PrefixMatch | None) -> ExactMatch:
        chain, guessed = known.chains[0], set()
        held = dict(known.blocks)
        for endpoint_id, tiers in known.lower.items():
            weighted = sum(n * w for n, w in zip(tiers, self._weights, strict=True))
            held[endpoint_id] = int(weighted)
        if believed is not None:
            # Sizes differ and so do counts of tokens: what is shared is a part of the prompt.
            scale = len(chain) / len(believed.blocks)
            for endpoint_id, blocks in believed.held.items():
                more = int(blocks * scale)
                if more > held.get(endpoint_id, 0) and not self._is_exact(endpoint_id, known):
                    held[endpoint_id] = more
                    guessed.add(endpoint_id)
        return ExactMatch(
            chain, self.index.block_tokens, held, "events",
            known=known, picks=believed, guessed=frozenset(guessed),
        )  # fmt: skip

    def _is_exact(self, endpoint_id: EndpointId, known: Known) -> bool:
        return self.trust(endpoint_id, known.ranks.get(endpoint_id, 0)).level is Level.EXACT

    def _with(self, request: InferenceRequest, match: PrefixMatch | None) -> InferenceRequest:
        if match is None:
            return request
        count = request.prompt_tokens if request.tokens is None else request.tokens.count
        prefix = {**request.prefix, self._name: match}
        return msgspec.structs.replace(request, prefix=prefix, prompt_tokens=count)

    def _expect(
        self, request: InferenceRequest, endpoint: Endpoint, known: Known, *, rank: int | None
    ) -> None:
        chain, held = known.chain_of(endpoint.id), known.blocks.get(endpoint.id, 0)
        best = known.ranks.get(endpoint.id, 0)
        if rank is None:
            rank = best
        elif rank != best:
            held = self.index.by_rank(endpoint.id, (rank,), chain)[rank]
        self.index.expect(
            endpoint.id, chain, until=self._until(endpoint.id, rank), rank=rank,
            held=held, request=request.id,
        )  # fmt: skip

    def _until(self, endpoint_id: EndpointId, rank: int) -> float:
        """Return when to expect no more what a pick was to bring."""
        if self._ttl is None:
            seconds = EXPECTED_SECONDS[self.trust(endpoint_id, rank).level]
        else:
            seconds = self._ttl
        return self._clock.now() + seconds

    def _witness(self, request: InferenceRequest, pick: Pick, known: Known) -> Engine | None:
        """Return the engine whose own count can be compared; None if it counts something else.

        A decoding engine's cache is filled by the prefill's; of several prompts only the first is
        known; and which of several ranks answers is the pod's own choice, unless we named the one
        that is known best.
        """
        target, tokens = pick.endpoints[0].id, request.tokens
        if pick.prefill is not None or tokens is None or len(tokens.ids) != 4 * tokens.count:
            return None
        ranks, rank = self.engines.of(target), rank_of(pick)
        if rank is not None and rank == known.ranks.get(target, 0):
            return self.engines.get(target, rank)
        return ranks[0] if len(ranks) == 1 else None

    def _claim(self, request: InferenceRequest, known: Known, engine: Engine) -> Claim:
        lower = known.lower.get(engine.endpoint_id)
        expected = 0 if lower is None else lower[Tier.EXPECTED]
        held, size = known.blocks.get(engine.endpoint_id, 0), self.index.block_tokens
        return claim(
            request.prompt_tokens, (held - expected) * size, expected * size,
            block=self.index.largest_block(engine.endpoint_id, rank=engine.rank),
        )  # fmt: skip

    def _compare(self, made: Claim, engine: Engine, ending: Ending | None) -> None:
        """Compare a claim with an answer; None if the engine did not give it."""
        engine.audit.ended(made, computed=ending is not None)
        usage = None if ending is None else ending.usage
        if usage is not None and usage.cached_tokens is not None:
            block = self.index.largest_block(engine.endpoint_id, rank=engine.rank)
            engine.audit.answered(made, usage.cached_tokens, block=block)

    def _owe(self, known: Known, endpoint: Endpoint, picked_at: float) -> None:
        """Note that an endpoint computed a prompt: some rank of it has something to tell."""
        size, ours = self.index.largest_block(endpoint.id), self.index.block_tokens
        if len(known.chains[0]) * ours // size * size > known.blocks.get(endpoint.id, 0) * ours:
            witnesses = [each.confidence for each in self.engines.of(endpoint.id)]
            told = any(each.told_since(picked_at) for each in witnesses)
            for each in witnesses:
                each.computed(self._clock.now(), told=told)


def _believed(request: InferenceRequest, name: str) -> InferenceRequest:
    """Return the request as it is for who knows our own picks only."""
    match = request.prefix.get(name)
    if not isinstance(match, ExactMatch):
        return request
    prefix = {} if match.picks is None else {name: match.picks}
    return msgspec.structs.replace(request, prefix=prefix)


def _shown(engine: Engine, now: float) -> Mapping[str, Any]:
    trust = engine.confidence.trust(now)
    return {
        "endpoint": engine.endpoint_id,
        "rank": engine.rank,
        "trust": trust.level.value,
        "reason": trust.reason,
        "messages": engine.messages,
        "bytes": engine.bytes,
        "gaps": engine.sequence.gaps,
        "lost": engine.sequence.lost,
        "restarts": engine.sequence.restarts,
        "replays": engine.replays,
        "unread": engine.unread,
        "unopened": engine.unopened,
        "overestimated": engine.audit.over,
        "underestimated": engine.audit.under,
        "lagSeconds": engine.lag,
    }
