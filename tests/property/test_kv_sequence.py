"""Messages of an engine that restarts, over a channel that loses some, with replays that fail.

Whatever happens, what is applied between two resets is messages of the engine in order and without
a gap; and once nothing is lost any more, it is all that the engine told, or all it still remembers.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.prefix.feed.sequence import Apply, Ask, Reset, Sequence, Step

MEMORY = 6  #: messages the engine remembers


class SequenceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.process = 0
        self.told: list[tuple[int, bytes]] = []  # numbers and payloads of this process
        self.sequence = Sequence(can_ask=True)
        self.applied: list[bytes] = []  # since the last reset
        self.asked: int | None = None
        self.take(self.sequence.joined(self.now))

    def take(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, Reset):
                self.applied.clear()
            elif isinstance(step, Apply):
                self.applied.append(step.payload)
            elif isinstance(step, Ask):
                self.asked = step.start

    def at(self, payload: bytes) -> float:
        process, number = map(int, payload.split())
        return process * 1000.0 + number + 1

    def tell(self, *, arrives: bool) -> None:
        number = len(self.told)
        payload = f"{self.process} {number}".encode()
        self.told.append((number, payload))
        if arrives:
            self.take(self.sequence.live(number, payload, at=self.at(payload), now=self.now))

    def answer(self, most: int, *, ends: bool, hole: int = MEMORY) -> None:
        if self.asked is None:
            return
        start, self.asked = self.asked, None
        answer = [each for each in self.told[-MEMORY:] if each[0] >= start][:most]
        for number, payload in answer[:hole] + answer[hole + 1 :]:
            at = self.at(payload)
            self.take(self.sequence.replayed(number, payload, at=at, now=self.now))
            if self.asked is not None:
                return  # it is asked for something else already
        if ends:
            self.take(self.sequence.replay_ended(self.now))

    @rule(arrives=st.booleans(), count=st.integers(1, 4))
    def tells(self, arrives: bool, count: int) -> None:
        for _ in range(count):
            self.tell(arrives=arrives)

    @rule(most=st.integers(0, 9), ends=st.booleans(), hole=st.integers(1, MEMORY))
    def answers(self, most: int, ends: bool, hole: int) -> None:
        # An end mark ends a whole answer; what is lost on its way is never the first, there is room.
        self.answer(most, ends=ends and most > MEMORY, hole=hole)

    @rule(seconds=st.sampled_from([0.5, 2.0, 40.0]))
    def waits(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.sequence.tick(self.now))

    @rule()
    def restarts(self) -> None:
        self.process += 1
        self.told.clear()
        self.asked = None
        self.take(self.sequence.restarted(self.process * 1000.0, self.now))

    @rule()
    def connects_anew(self) -> None:
        self.take(self.sequence.joined(self.now))

    @rule()
    def is_doubted(self) -> None:
        self.take(self.sequence.doubt(self.now))

    @invariant()
    def what_is_applied_is_of_one_process_and_in_order(self) -> None:
        numbers = [tuple(map(int, payload.split())) for payload in self.applied]
        if numbers:
            assert {process for process, _ in numbers} == {self.process}
            ordered = [number for _, number in numbers]
            assert ordered == sorted(set(ordered))
            if self.sequence.whole:
                assert ordered == list(range(len(ordered)))

    @invariant()
    def whole_is_whole(self) -> None:
        if self.sequence.whole and self.applied:
            assert self.applied[0].split()[1] == b"0"

    @rule()
    def it_heals_once_nothing_is_lost(self) -> None:
        self.tell(arrives=True)
        for _ in range(8):
            self.answer(99, ends=True)
            self.now += 2.0
            self.take(self.sequence.tick(self.now))
        self.answer(99, ends=True)  # now and then it asks again, at the last moment, too
        assert not self.sequence.catching_up
        assert self.applied[-1:] == [self.told[-1][1]]
        if len(self.told) <= MEMORY and self.sequence.reason != "not_replayed":
            assert self.sequence.whole
            assert self.applied == [payload for _, payload in self.told]


TestSequence = SequenceMachine.TestCase
TestSequence.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
