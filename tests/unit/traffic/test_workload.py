"""The seeded workload."""

from __future__ import annotations

import random

import msgspec

from epp.traffic.workload import Workload, sessions, text


def test_the_same_workload_is_the_same_byte_for_byte() -> None:
    workload = Workload(seed=3, sessions=5)
    assert sessions(workload) == sessions(workload)
    assert sessions(workload) != sessions(msgspec.structs.replace(workload, seed=4))


def test_conversations_share_the_system_prompts_of_their_tenants() -> None:
    made = sessions(Workload(seed=1, sessions=40, tenants=3))
    assert len({session.system for session in made}) == 3
    assert len({session.questions for session in made}) == 40


def test_sizes_are_four_bytes_a_token() -> None:
    assert len(text(random.Random(1), 250)) == 1000
    (session,) = sessions(Workload(sessions=1, system_tokens=10, user_tokens=5, turns=2))
    assert len(session.system) == 40
    assert [len(question) for question in session.questions] == [20, 20]
    assert len(session.pauses) == 1
