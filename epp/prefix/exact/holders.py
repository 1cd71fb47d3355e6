"""Which endpoints hold a block, in which tier: few distinct answers for very many blocks.

Blocks of one prompt are mostly held by the same endpoints, so the sets are kept once and numbered,
and a block's row has only the number. A set has one plane per `Tier`, a Python integer with one bit
per endpoint, so that a set operation costs the same for one endpoint and for a thousand.
"""

from __future__ import annotations

from epp.prefix.exact.events import Tier

Planes = tuple[int, int, int, int, int]
"""By `Tier`: bit i says that the endpoint in slot i holds the block there."""

NOBODY = 0  #: the number of the empty set
SET_BYTES = (
    200  #: of a set beside its bits: tuple, entry of the dictionary, counts, memory of steps
)

_TIER_BITS = 3
_MEMORY = 65_536  #: steps from set to set that are remembered
_SPARE = 1024  #: sets that nothing uses are swept when they are more, and more than those in use


def place(slot: int, tier: Tier) -> int:
    """Name a place where a block can lie: an endpoint's slot and a tier."""
    return slot << _TIER_BITS | tier


class Holders:
    """The sets in use. A set that no block has any more is dropped some time later.

    Args:
        most: sets; a block's set does not grow to one that would be beyond.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.planes: list[Planes] = [(0, 0, 0, 0, 0)]  #: by the set's number
        self._uses = [0]  # blocks that have the set
        self._numbers: dict[Planes, int] = {self.planes[0]: NOBODY}
        self._free: list[int] = []
        self._unused = 0  # sets that fell out of use since the last sweep
        self._slots = 0  # that were seen
        self._added: dict[int, int] = {}  # steps: set and place -> set
        self._removed: dict[int, int] = {}

    @property
    def count(self) -> int:
        """Distinct sets kept."""
        return len(self._numbers)

    @property
    def left(self) -> int:
        """Sets that there is room for."""
        return self._most - self.count

    @property
    def bytes(self) -> int:
        """Memory used, estimated."""
        return self.count * (SET_BYTES + self._slots // 7)

    def has(self, number: int, where: int) -> bool:
        """Whether the set ``number`` has a `place`."""
        return bool(self.planes[number][where & 7] >> (where >> _TIER_BITS) & 1)

    def added(self, number: int, where: int) -> int:
        """Return the set ``number`` with one more `place`, and count it as the block's.

        The set stays as it is if there are too many.
        """
        step = number << 32 | where
        after = self._added.get(step)
        if after is None:
            if self.count >= self._most and not self._swept():
                return number
            self._slots = max(self._slots, where >> _TIER_BITS)
            planes = list(self.planes[number])
            planes[where & 7] |= 1 << (where >> _TIER_BITS)
            after = self._remember(self._added, step, planes)
        self.move(number, after)
        return after

    def removed(self, number: int, where: int) -> int:
        """Return the set ``number`` without one `place`, and count it as the block's."""
        step = number << 32 | where
        after = self._removed.get(step)
        if after is None:
            planes = list(self.planes[number])
            planes[where & 7] &= ~(1 << (where >> _TIER_BITS))
            after = self._remember(self._removed, step, planes)
        self.move(number, after)
        return after

    def without(self, number: int, slot: int, blocks: int) -> int:
        """Return the set ``number`` without an endpoint, and count it as so many blocks'."""
        others = ~(1 << slot)
        after = self._number([plane & others for plane in self.planes[number]])
        self.move(number, after, blocks)
        return after

    def move(self, before: int, after: int, blocks: int = 1) -> None:
        """Count so many blocks as those of another set."""
        if before == after or not blocks:
            return
        uses = self._uses
        uses[after] += blocks
        if before:
            uses[before] -= blocks
            if not uses[before]:
                self._unused += 1
                if self._unused > max(_SPARE, len(self._numbers) // 2):
                    self._sweep()

    def _remember(self, steps: dict[int, int], step: int, planes: list[int]) -> int:
        if len(steps) >= _MEMORY:
            steps.clear()
        after = steps[step] = self._number(planes)
        return after

    def _number(self, planes: list[int]) -> int:
        gpu, expected, cpu, disk, shared = planes
        key = (gpu, expected, cpu, disk, shared)
        number = self._numbers.get(key)
        if number is not None:
            return number
        if self._free:
            number = self._free.pop()
            self.planes[number] = key
        else:
            number = len(self.planes)
            self.planes.append(key)
            self._uses.append(0)
        self._numbers[key] = number
        return number

    def _swept(self) -> bool:
        """Make room for other sets, if that is worth its time: 0.2 us a set."""
        if self._unused > self._most // 16:
            self._sweep()
        return self.count < self._most

    def _sweep(self) -> None:
        """Drop the sets that nothing uses; their numbers are used again."""
        for planes, number in list(self._numbers.items()):
            if number and not self._uses[number]:
                del self._numbers[planes]
                self._free.append(number)
        self._added.clear()
        self._removed.clear()
        self._unused = 0
