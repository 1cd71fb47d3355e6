"""Numbers about a whole answer reach the gateway on the answer's last message, in every mode."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from epp.answering import Answering
from epp.exchange import Exchange
from epp.model import InferenceRequest, Pick, Usage
from epp.pipeline import Pipeline
from tests.support import ext_proc as gw

USAGE = b'{"usage":{"prompt_tokens":32,"completion_tokens":10,"total_tokens":42}}'


class Cost:
    """Reports what the completion cost."""

    def report(
        self, request: InferenceRequest, pick: Pick, usage: Usage
    ) -> dict[str, dict[str, float]]:
        if usage.completion_tokens is None:
            return {}
        return {"envoy.lb": {"cost": float(usage.completion_tokens)}}


class Other:
    """Reports to the same namespace and to one more."""

    def report(
        self, request: InferenceRequest, pick: Pick, usage: Usage
    ) -> dict[str, dict[str, float]]:
        return {"envoy.lb": {"answers": 1.0}, "mine": {"half": 0.5}}


def picker(*reporters: Any) -> gw.Picker:

    made = gw.Picker(on_answer_piece=Exchange.response_data)
    line: Pipeline = msgspec.structs.replace(made.router.pipeline, reporters=reporters)
    made.router.reload(line)
    made.service.answer_metadata = Answering(lambda: made.router.pipeline).metadata
    return made


def answered(made: gw.Picker, modes: tuple[int, int], *answer: Any) -> list[Any]:
    """The picker's replies to an answer's parts."""

    async def main() -> list[Any]:
        async with made.serving() as gateway, gateway.stream() as stream:
            await stream.send(gw.request_head(modes=modes, ends=True))
            await stream.read()
            await stream.send(*answer)
            await stream.close()
            return await stream.rest()

    return asyncio.run(main())


def told(reply: Any) -> dict[str, dict[str, float]]:
    return {
        namespace: {name: each.number_value for name, each in value.struct_value.fields.items()}
        for namespace, value in reply.dynamic_metadata.fields.items()
    }


@pytest.mark.parametrize("mode", [gw.STREAMED, gw.BUFFERED, gw.DUPLEX])
def test_the_last_message_alone_carries_the_numbers(mode: int) -> None:
    replies = answered(
        picker(Cost()),
        (gw.DUPLEX, mode),
        gw.response_head({"content-type": "application/json"}),
        *([] if mode == gw.BUFFERED else [gw.response_body(USAGE[:20])]),
        gw.response_body(USAGE if mode == gw.BUFFERED else USAGE[20:], ends=True),
    )
    assert [told(reply) for reply in replies[:-1]] == [{}] * (len(replies) - 1)
    assert told(replies[-1]) == {"envoy.lb": {"cost": 10.0}}
    assert replies[-1].WhichOneof("response") == "response_body"
    if mode == gw.DUPLEX:
        assert b"".join(piece.body for piece in gw.pieces(replies, "response")) == USAGE


def test_trailers_that_end_an_answer_carry_them() -> None:
    replies = answered(
        picker(Cost()),
        (gw.DUPLEX, gw.DUPLEX),
        gw.response_head(),
        gw.response_body(USAGE),
        gw.response_trailers(),
    )
    assert replies[-1].WhichOneof("response") == "response_trailers"
    assert [told(reply) for reply in replies] == [{}, {}, {"envoy.lb": {"cost": 10.0}}]


def test_a_large_last_piece_carries_them_once_on_its_own_last_piece() -> None:
    body = b" " * 200_000 + USAGE
    replies = answered(
        picker(Cost()),
        (gw.DUPLEX, gw.DUPLEX),
        gw.response_head(),
        gw.response_body(body, ends=True),
    )
    assert len(replies) > 3
    assert [bool(told(reply)) for reply in replies] == [False] * (len(replies) - 1) + [True]
    assert gw.pieces(replies, "response")[-1].end_of_stream


def test_an_answer_without_a_body_carries_what_there_is_on_its_head() -> None:
    (reply,) = answered(
        picker(Cost(), Other()), (gw.DUPLEX, gw.DUPLEX), gw.response_head(ends=True)
    )
    assert told(reply) == {"envoy.lb": {"answers": 1.0}, "mine": {"half": 0.5}}


def test_reporters_share_a_namespace() -> None:
    replies = answered(
        picker(Cost(), Other()),
        (gw.DUPLEX, gw.DUPLEX),
        gw.response_head(),
        gw.response_body(USAGE, ends=True),
    )
    assert told(replies[-1]) == {"envoy.lb": {"cost": 10.0, "answers": 1.0}, "mine": {"half": 0.5}}


@pytest.mark.parametrize("reporters", [(), (Cost(),)])
def test_without_reporters_or_usage_nothing_is_told(reporters: tuple[Any, ...]) -> None:
    replies = answered(
        picker(*reporters),
        (gw.DUPLEX, gw.DUPLEX),
        gw.response_head(),
        gw.response_body(b"no usage", ends=True),
    )
    assert [told(reply) for reply in replies] == [{}, {}]
