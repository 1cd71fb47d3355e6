"""A seeded multi-turn chat workload with shared system prompts.

Conversations arrive at random (Poisson); each belongs to one of a few tenants whose system
prompt it shares, and each turn repeats all that was said before it: the traffic whose prefill
a prefix-aware picker can save. Text is made of random words, about 4 bytes per token.
"""

from __future__ import annotations

import random

import msgspec

WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member law"
).split()


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What to send. Tokens are estimates of 4 bytes each."""

    seed: int = 1
    sessions: int = 48
    turns: int = 5
    tenants: int = 12
    system_tokens: int = 3000
    user_tokens: int = 200
    output_tokens: int = 32
    arrivals_per_second: float = 3.0
    think_seconds: float = 0.6


class Session(msgspec.Struct, frozen=True):
    """One conversation, before anything is answered."""

    name: str
    starts_at: float  #: seconds after the run began
    system: str
    questions: tuple[str, ...]
    pauses: tuple[float, ...]  #: seconds before each question but the first


def sessions(workload: Workload) -> list[Session]:
    """Draw the conversations. The same workload gives the same ones, byte for byte."""
    draw = random.Random(workload.seed)
    systems = [text(draw, workload.system_tokens) for _ in range(workload.tenants)]
    made: list[Session] = []
    starts_at = 0.0
    for i in range(workload.sessions):
        starts_at += draw.expovariate(workload.arrivals_per_second)
        made.append(
            Session(
                name=f"session-{i}",
                starts_at=starts_at,
                system=draw.choice(systems),
                questions=tuple(text(draw, workload.user_tokens) for _ in range(workload.turns)),
                pauses=tuple(
                    draw.expovariate(1 / workload.think_seconds) for _ in range(workload.turns - 1)
                ),
            )
        )
    return made


def text(draw: random.Random, tokens: int) -> str:
    """Random words, ``tokens`` * 4 bytes long."""
    size = tokens * 4
    words: list[str] = []
    length = 0
    while length <= size:
        word = draw.choice(WORDS)
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:size]
