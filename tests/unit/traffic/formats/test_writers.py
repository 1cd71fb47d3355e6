"""What is written for other tools, and that nothing is lost on the way."""

from __future__ import annotations

import msgspec

from epp.recording.record import Record
from epp.traffic.formats import aiperf, inference_perf, mooncake
from epp.traffic.formats.reading import Source
from epp.traffic.trace import Trace

FULL = Record(
    at=1.25, input_tokens=1030, output_tokens=7, runs=((4, 2), (9, 1)), id="b", parent="a",
    session="s", business="chat", tenant="t", family="f", think=0.25, ttft=0.04, duration=0.09,
    cached_tokens=64, predicted_tokens=32, slot=0, reason="longest", outcome="failed",
)  # fmt: skip
PLAIN = Record(at=0.0, input_tokens=600, output_tokens=5, runs=((4, 1),), session="s")
TRACE = Trace((PLAIN, FULL), 512)


def test_nothing_is_lost_from_record_to_mooncake_line_and_back() -> None:
    for runs in (False, True):
        lines = list(mooncake.write(TRACE, runs=runs))
        assert list(mooncake.read(Source("f", lines, 512))) == [PLAIN, FULL]


def test_a_mooncake_line_has_mooncakes_own_fields() -> None:
    first = msgspec.json.decode(next(mooncake.write(Trace((PLAIN,), 512))))
    assert first["hash_ids"] == [4]
    assert (first["timestamp"], first["input_length"], first["output_length"]) == (0.0, 600, 5)


def test_aiperf_gets_only_fields_it_knows_and_delays_inside_sessions() -> None:
    first, second = (msgspec.json.decode(line) for line in aiperf.write(TRACE))
    assert first == {
        "timestamp": 0.0, "input_length": 600, "output_length": 5, "hash_ids": [4],
        "session_id": "s",
    }  # fmt: skip
    assert second == {
        "delay": 250.0, "input_length": 1030, "output_length": 7, "hash_ids": [4, 5, 9],
        "session_id": "s",
    }  # fmt: skip


def test_inference_perf_gets_the_shared_prefixes_of_single_turns() -> None:
    records = [
        Record(
            at=float(i), input_tokens=1200, output_tokens=10, runs=((i % 2 * 100, 2), (900 + i, 1))
        )
        for i in range(120)
    ]
    config = msgspec.yaml.decode(inference_perf.write(Trace(tuple(records), 512)))
    assert config["data"]["shared_prefix"] == {
        "num_groups": 2, "num_prompts_per_group": 60, "system_prompt_len": 1024,
        "question_len": 176, "output_len": 10, "enable_multi_turn_chat": False,
    }  # fmt: skip
    assert config["load"]["stages"] == [{"rate": 1.0, "duration": 60}] * 2


def test_inference_perf_gets_conversations_of_several_turns() -> None:
    records = [
        Record(at=talk + turn * 10.0, input_tokens=1000 + turn * 300, output_tokens=100,
               session=str(talk), think=4.0 if turn else None)
        for talk in range(4) for turn in range(3)
    ]  # fmt: skip
    records.sort(key=lambda record: record.at)
    config = msgspec.yaml.decode(inference_perf.write(Trace(tuple(records), 512)))
    replay = config["data"]["conversation_replay"]
    assert (replay["num_conversations"], replay["turns_per_conversation"]["mean"]) == (4, 3)
    assert replay["input_tokens_per_turn"]["mean"] == 200  # 300 more, of which 100 were the answer
    assert replay["tool_call_latency_sec"]["mean"] == 4.0
    # Four talks of 20 s within 23 s.
    assert config["load"]["stages"] == [{"concurrent_sessions": 3, "num_sessions": 4}]


def test_inference_perf_gets_as_system_prompt_what_most_conversations_begin_with() -> None:
    def of(talk: int, turn: int, system: int) -> Record:
        return Record(
            at=talk + turn * 10.0, input_tokens=2100 + turn * 300, output_tokens=100,
            runs=((system, 2), (1000 * (talk + 1), 3)), session=str(talk),
        )  # fmt: skip

    records = [of(talk, turn, 500 if talk else 900) for turn in range(2) for talk in range(4)]
    config = msgspec.yaml.decode(inference_perf.write(Trace(tuple(records), 512)))
    replay = config["data"]["conversation_replay"]
    assert replay["shared_system_prompt_len"] == 1024
    assert replay["dynamic_system_prompt_len"]["mean"] == 2100 - 1024
