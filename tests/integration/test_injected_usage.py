"""``--inject-usage`` on an ext_proc stream: what the engine is sent, and what the client is shown."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from epp.exchange import Exchange
from epp.extproc.server import Settings
from epp.model import Arrival, InferenceRequest, Usage
from tests.support import ext_proc as gw

BODY = b'{"model":"public","stream":true,"messages":[]}'
ASKS = b',"stream_options":{"include_usage":true}'
EVENTS = {"content-type": "text/event-stream"}
WORDS = b'data: {"model":"public","choices":[{"delta":{"content":"a"}}]}\n\n' * 3
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":32,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


class Streams(gw.PlainFormats):
    """Takes every request for a streamed chat."""

    def __init__(self, target: str = "") -> None:
        super().__init__()
        self._target = target

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        return msgspec.structs.replace(
            super().parse(arrival, now), streaming=True, format="chat",
            model="public", target_model=self._target,
        )  # fmt: skip


def picker(*, inject: bool = True, target: str = "") -> gw.Picker:
    return gw.Picker(
        formats=Streams(target),
        settings=Settings(inject_usage=inject),
        on_answer_piece=Exchange.response_data,
    )


def answered(
    made: gw.Picker, modes: tuple[int, int] | None, head: dict[str, str], pieces: Sequence[bytes]
) -> tuple[list[Any], list[Any]]:
    """The picker's replies to the request, and to each part of its answer."""

    async def main() -> tuple[list[Any], list[Any]]:
        async with made.serving() as gateway, gateway.stream() as stream:
            length = {"content-length": str(len(BODY))}
            await stream.send(gw.request_head(length, modes=modes))
            buffered = modes is not None and modes[0] == gw.BUFFERED
            first = [await stream.read()] if buffered else []
            await stream.send(gw.request_body(BODY, ends=True))
            sent = [*first, *[await stream.read() for _ in range(1 if buffered else 2)]]
            told = []
            parts = [gw.response_head(head)]
            parts += [gw.response_body(piece, ends=piece is pieces[-1]) for piece in pieces]
            for part in parts:
                await stream.send(part)
                told.append(await stream.read())
            await stream.close()
            assert await stream.rest() == []
            return sent, told

    return asyncio.run(main())


def streamed(replies: Sequence[Any]) -> bytes:
    return b"".join(piece.body for piece in gw.pieces(replies, "response"))


def test_the_engine_is_asked_and_the_client_shown_nothing_of_it() -> None:
    made = picker()
    cuts = [WORDS, USAGE[:20], USAGE[20:] + DONE[:1], DONE[1:]]
    sent, told = answered(made, (gw.DUPLEX, gw.DUPLEX), EVENTS, cuts)
    assert [piece.body for piece in gw.pieces(sent)] == [BODY[:-1] + ASKS + b"}"]
    shown = [streamed([reply]) for reply in told[1:]]
    assert shown == [WORDS, b"", b"", DONE], "each piece is answered at once"
    assert [ending.usage for ending in made.diary.endings] == [Usage(32, 3)]


def test_a_buffered_request_is_sent_with_its_length() -> None:
    sent, told = answered(picker(), (gw.BUFFERED, gw.DUPLEX), EVENTS, [WORDS + USAGE, DONE])
    changed = gw.common(sent[1]).body_mutation.body
    assert json.loads(changed)["stream_options"] == {"include_usage": True}
    assert gw.set_headers(sent[1])["content-length"] == str(len(BODY) + len(ASKS))
    assert streamed(told[1:]) == WORDS + DONE


def test_usage_goes_and_the_model_s_name_is_restored_in_one_answer() -> None:
    answer = (WORDS + USAGE + DONE).replace(b"public", b"private")
    cuts = [answer[i : i + 7] for i in range(0, len(answer), 7)]
    _, told = answered(picker(target="private"), (gw.DUPLEX, gw.DUPLEX), EVENTS, cuts)
    assert streamed(told[1:]) == WORDS + DONE


@pytest.mark.parametrize(
    "head", [EVENTS | {"content-encoding": "gzip"}, {"content-type": "application/json"}]
)
def test_an_answer_that_cannot_be_read_passes_as_it_is(head: dict[str, str]) -> None:
    _, told = answered(picker(), (gw.DUPLEX, gw.DUPLEX), head, [WORDS + USAGE, DONE])
    assert streamed(told[1:]) == WORDS + USAGE + DONE
    assert not gw.removed(told[0])


def test_not_told_to_the_picker_asks_for_nothing() -> None:
    made = picker(inject=False)
    sent, told = answered(made, (gw.DUPLEX, gw.DUPLEX), EVENTS, [WORDS + USAGE, DONE])
    assert [piece.body for piece in gw.pieces(sent)] == [BODY]
    assert streamed(told[1:]) == WORDS + USAGE + DONE


@pytest.mark.parametrize(
    "modes",
    [
        pytest.param((gw.DUPLEX, gw.NONE), id="lean"),
        pytest.param((gw.DUPLEX, gw.STREAMED), id="streamed"),
        pytest.param((gw.DUPLEX, gw.BUFFERED), id="buffered"),
        pytest.param(None, id="not told"),
    ],
)
def test_no_usage_is_asked_for_where_it_could_not_be_taken_out_and_it_is_said_once(
    modes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = picker()
    with caplog.at_level(logging.WARNING, logger="epp"):
        for _ in range(2):
            sent, _ = answered(made, modes, EVENTS, [])
            assert [piece.body for piece in gw.pieces(sent)] == [BODY]
    (record,) = caplog.records
    assert "--inject-usage" in record.getMessage()
