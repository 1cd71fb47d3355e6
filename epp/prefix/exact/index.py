"""The index of what engines told: feed it events, ask it who holds a prompt.

Each data-parallel rank of an endpoint has a cache of its own and is a source of its own. Dropping
one, because its pod is gone, restarted, or cleared its cache, masks its bit out of every answer
at once; its rows are swept later, a bounded slice each time something is written, and the bit is
used again only after that. So news that come late can add nothing to a dropped source.

Memory is bounded: rows are handed out from tables of fixed size, and what finds no room is refused
and counted. An answer may then be shorter than the truth, never longer.

Measured (CPython 3.11, one of two busy cores): 5 us to read and take in a block, 0.2 ms for a
look-up of 8k tokens among 1,000 endpoints, 1 ms for 128k tokens; see ``kv_ingest``,
``kv_lookup_8k_1000`` and ``kv_lookup_128k`` of ``epp bench``. Ten million blocks held by one
endpoint each take 685 MB, and ten million entries of a million blocks held by ten each take 507 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from epp.model import BlockHash, EndpointId
from epp.prefix.blocks import Runs
from epp.prefix.exact import held, source
from epp.prefix.exact.events import Cleared, Event, Stored, Tier
from epp.prefix.exact.held import Blocks
from epp.prefix.exact.keys import Keys, Prompt, chain
from epp.prefix.exact.match import Slots, TierCounts, bits, match
from epp.prefix.exact.shelf import Shelf
from epp.prefix.exact.source import Source
from epp.prefix.exact.table import Slab
from epp.prefix.exact.waiting import Room

BLOCK_TOKENS = 16
SMALLEST = 8  #: tokens a block; below it the index is larger than what it describes
MOST_BYTES = 1_500_000_000
MOST_BLOCKS = 1 << 17  #: of one prompt that are looked up
BYTES_PER_SET = 4096  #: of the bound, there may be a set of holders: an eighth of it is sets
MOST_NAMED, FEW = 128, 16  #: sets of endpoints whose names are kept, and how large they are
RUN = 64  #: blocks whose names are remembered together; all that are take 23 MB at most
SWEEP = 1  #: segments of dropped sources swept with each write, 0.2 ms each

NO_RANKS: Mapping[EndpointId, int] = {}


Chains = tuple[tuple[BlockHash, ...], ...]


class Known(msgspec.Struct, frozen=True):
    """Who holds how much of one prompt."""

    chains: Chains  #: the prompt's blocks, by every secret
    blocks: Mapping[EndpointId, int]  #: leading blocks each endpoint holds; absent means 0
    lower: Mapping[EndpointId, TierCounts] = {}  #: of these, by tier, where some are not on the GPU
    ranks: Mapping[EndpointId, int] = NO_RANKS
    """Which rank holds them, of endpoints that have several."""
    by: Mapping[EndpointId, int] = NO_RANKS
    """Which of `chains` they are named by; absent means the first."""

    def chain_of(self, endpoint_id: EndpointId) -> tuple[BlockHash, ...]:
        """Return the names by which an endpoint goes on with the prompt."""
        return self.chains[self.by.get(endpoint_id, 0)]


class ExactIndex:
    """Who holds what, as told.

    Args:
        keys: secrets that name blocks.
        block_tokens: tokens of a block; at least `SMALLEST` are used.
        most_bytes: memory for rows, a hard bound; sets of holders may take an eighth more.
        room: for blocks whose parent is not known yet.
    """

    def __init__(
        self, keys: Keys, *, block_tokens: int = BLOCK_TOKENS, most_bytes: int = MOST_BYTES,
        room: Room | None = None,
    ) -> None:  # fmt: skip
        self.block_tokens = max(block_tokens, SMALLEST)
        # Where no block is held twice there are as many rows of one kind as of the other.
        segment = source.ROWS * (source.ROW_BYTES + held.ROW_BYTES)
        segments = max(most_bytes // segment, 2)
        self._slab = Slab(segments, source.ROWS, source.COLUMNS)
        self._blocks = Blocks(
            max(segments * source.ROWS // held.ROWS, 2), max(most_bytes // BYTES_PER_SET, 1024)
        )
        self._room = room or Room()
        self._shelf = Shelf(
            self._blocks, self._slab, keys=keys, block_tokens=self.block_tokens, room=self._room
        )
        self._runs = Runs(length=RUN)
        self._sources: dict[tuple[EndpointId, int], Source] = {}
        self._ranked: set[EndpointId] = set()  # endpoints with several sources
        self._endpoints: list[EndpointId] = []  # by slot; the last that had it, if it is free
        self._ranks: list[int] = []  # by slot
        self._names: dict[int, list[EndpointId]] = {}  # of sets of slots
        self._counts: dict[tuple[int, int], dict[EndpointId, int]] = {}  # by set and blocks held
        self._live = 0  # bits of slots in use
        self._free: list[int] = []
        self._dropped: list[Source] = []

    @property
    def keys(self) -> Keys:
        """The secrets that name blocks."""
        return self._shelf.keys

    def join(self, endpoint_id: EndpointId, rank: int = 0, *, model: str = "") -> None:
        """Begin to hold what a rank of an endpoint tells; it holds nothing from now on.

        ``model`` is what requests for the engine call its model, where they name no adapter.
        """
        self._drop(endpoint_id, rank)
        self.sweep(SWEEP)  # one that joins again and again takes no bit after the other
        if not self._free:
            self._free.append(len(self._endpoints))
            self._endpoints.append(endpoint_id)
            self._ranks.append(rank)
        slot = self._free.pop()
        self._endpoints[slot], self._ranks[slot] = endpoint_id, rank
        self._names.clear()
        self._counts.clear()
        self._live |= 1 << slot
        self._sources[endpoint_id, rank] = Source(self._shelf, slot, model=model)
        if rank:
            self._ranked.add(endpoint_id)

    def apply(self, endpoint_id: EndpointId, events: Iterable[Event], *, rank: int = 0) -> None:
        """Take in what a rank told. One that has not joined, or is dropped, can tell nothing."""
        for event in events:
            teller = self._sources.get((endpoint_id, rank))
            if teller is None:
                return
            if isinstance(event, Stored):
                teller.store(event)
            elif isinstance(event, Cleared):
                self.join(endpoint_id, rank, model=teller.model)
            else:
                teller.remove(event)
        self.sweep(SWEEP)

    def is_behind(self, endpoint_id: EndpointId, *, rank: int = 0) -> bool:
        """Whether a rank told what makes others of its blocks known, see `resume`."""
        teller = self._sources.get((endpoint_id, rank))
        return teller is not None and teller.is_behind

    def resume(self, endpoint_id: EndpointId, *, rank: int = 0) -> None:
        """Take in a bounded part of what waited for what a rank has told by now."""
        teller = self._sources.get((endpoint_id, rank))
        if teller is not None:
            teller.resume()

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop an endpoint with all its ranks. One that is not known is no error."""
        for rank in [rank for owner, rank in self._sources if owner == endpoint_id]:
            self._drop(endpoint_id, rank)
        self._ranked.discard(endpoint_id)
        self.sweep(SWEEP)

    def sweep(self, segments: int) -> None:
        """Remove up to ``segments`` segments of what dropped sources held."""
        if self._dropped and self._dropped[-1].drain(segments):
            self._free.append(self._dropped.pop().slot)

    @property
    def sweeping(self) -> bool:
        """Whether rows of dropped sources are left."""
        return bool(self._dropped)

    def look_up(self, prompt: Prompt) -> Known:
        """Return who holds how much of ``prompt``."""
        chains = tuple([
            chain(prompt, root, block_tokens=self.block_tokens, most=MOST_BLOCKS, runs=self._runs)
            for root in self._shelf.keys.roots(prompt.model, prompt.salt)
        ])  # fmt: skip
        found = [match(self._blocks, each, self._live) for each in chains]
        if len(found) == 1 and not self._ranked:
            return self._named(chains, found[0])
        return self._best(chains, found)

    def by_rank(
        self, endpoint_id: EndpointId, ranks: Iterable[int], blocks: Sequence[int]
    ) -> dict[int, int]:
        """Return how many leading ``blocks`` each of an endpoint's ``ranks`` told; none expected."""
        told = dict.fromkeys(ranks, 0)
        tellers = {rank: self._sources.get((endpoint_id, rank)) for rank in told}
        of = {teller.slot: rank for rank, teller in tellers.items() if teller is not None}
        live = sum(1 << slot for slot in of)
        found = match(self._blocks, blocks, live)
        for members, count in found.groups:
            for slot in bits(members):
                lower = found.lower.get(slot)
                told[of[slot]] = count - (lower[Tier.EXPECTED] if lower else 0)
        return told

    def expect(
        self, endpoint_id: EndpointId, blocks: Sequence[int], *, until: float, held: int = 0,
        request: str = "", rank: int = 0,
    ) -> None:  # fmt: skip
        """Believe that a rank will hold all ``blocks`` of a prompt; it has the first ``held``.

        It ends at ``until``, in seconds on the caller's clock, see `expire`. `computed` tells of
        ``request`` once the last block was told, if that is one that it does not have, however late
        that is; until `answered`.
        """
        teller = self._sources.get((endpoint_id, rank))
        if teller is not None:
            teller.expect(blocks, until, held=held, request=request)

    def answered(self, endpoint_id: EndpointId, request: str, *, rank: int = 0) -> None:
        """Note that a request that was expected is over."""
        teller = self._sources.get((endpoint_id, rank))
        if teller is not None:
            teller.expected.answered(request)

    def expire(self, now: float) -> None:
        """End what was expected in vain. To be called some times a second.

        Lost blocks can be found out by what is expected for so much time as each call allows.
        """
        self._shelf.tries.renew()
        for teller in self._sources.values():
            teller.expected.expire(now)

    def computed(self, endpoint_id: EndpointId, *, rank: int = 0) -> list[str]:
        """Return the requests whose last block was told since this was last asked."""
        teller = self._sources.get((endpoint_id, rank))
        if teller is None or not teller.expected.computed:
            return []
        done, teller.expected.computed = teller.expected.computed, []
        return done

    def largest_block(self, endpoint_id: EndpointId, *, rank: int = 0) -> int:
        """Return the tokens of a block of the engine, as it told, or of ours if that is larger."""
        teller = self._sources.get((endpoint_id, rank))
        return self.block_tokens if teller is None else teller.largest_block

    def refused(self, endpoint_id: EndpointId, *, rank: int = 0) -> int:
        """Return how many blocks a rank told, since it joined, that there was no room for."""
        teller = self._sources.get((endpoint_id, rank))
        return 0 if teller is None else teller.refused

    def rotate(self, keys: Keys) -> None:
        """Name blocks by other secrets from now on; what is named keeps its name.

        Blocks of a secret that is not among them are found no more, and go as engines evict them.
        """
        self._shelf.keys = keys

    def figures(self) -> Mapping[str, int]:
        """Return what there is to know about size and losses, for metrics."""
        shelf, room = self._shelf, self._room
        return {
            "blocks": self._blocks.count,
            "sources": len(self._sources),
            "bytes": self._slab.bytes + self._blocks.bytes + room.bytes,
            "sets": self._blocks.holders.count,
            "stored": shelf.stored,
            "removed": shelf.removed,
            "refused": shelf.refused,
            "uneven": shelf.uneven,
            "mended": shelf.mended,
            "waiting_events": room.events,
            "waiting_dropped": room.dropped,
        }

    def _drop(self, endpoint_id: EndpointId, rank: int) -> None:
        teller = self._sources.pop((endpoint_id, rank), None)
        if teller is None:
            return
        self._live &= ~(1 << teller.slot)
        self._dropped.append(teller)

    def _named(self, chains: Chains, found: Slots) -> Known:
        """Name what was found, where each endpoint has one slot."""
        blocks: dict[EndpointId, int] = {}
        for members, count in sorted(found.groups, key=_size, reverse=True):
            named = self._counted(members, count)
            if blocks:
                blocks.update(named)
            else:
                blocks = named
        name = self._endpoints.__getitem__
        return Known(chains, blocks, {name(slot): own for slot, own in found.lower.items()})

    def _counted(self, members: int, count: int) -> dict[EndpointId, int]:
        """Return the blocks held by each endpoint of a set, a dictionary of the caller's own.

        Large sets come again and again, as those that hold a system prompt: to copy a dictionary
        takes 5 ns an endpoint, to make one of names 20 to 30 ns, and to name slots 120 ns.
        """
        key = (members, count)
        counted = self._counts.get(key)
        if counted is not None:
            return counted.copy()
        counted = dict.fromkeys(self._names_of(members), count)
        if len(counted) < FEW:
            return counted
        if len(self._counts) >= MOST_NAMED:
            self._counts.clear()
        self._counts[key] = counted
        return counted.copy()

    def _names_of(self, members: int) -> Sequence[EndpointId]:
        names = self._names.get(members)
        if names is None:
            if len(self._names) >= MOST_NAMED:
                self._names.clear()
            names = [self._endpoints[slot] for slot in bits(members)]
            if len(names) >= FEW:
                self._names[members] = names
        return names

    def _best(self, chains: Chains, found: Sequence[Slots]) -> Known:
        """Name what was found, of each endpoint the longest by any chain and rank."""
        blocks: dict[EndpointId, int] = {}
        lower: dict[EndpointId, TierCounts] = {}
        ranks: dict[EndpointId, int] = {}
        by: dict[EndpointId, int] = {}
        for number, slots in enumerate(found):
            for members, count in slots.groups:
                for slot in bits(members):
                    endpoint_id = self._endpoints[slot]
                    if count <= blocks.get(endpoint_id, 0):
                        continue
                    blocks[endpoint_id], by[endpoint_id] = count, number
                    lower.pop(endpoint_id, None)
                    if slot in slots.lower:
                        lower[endpoint_id] = slots.lower[slot]
                    if endpoint_id in self._ranked:
                        ranks[endpoint_id] = self._ranks[slot]
        return Known(chains, blocks, lower, ranks, by)


def _size(group: tuple[int, int]) -> int:
    return group[0].bit_count()
