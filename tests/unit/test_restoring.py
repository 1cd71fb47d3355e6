"""The model's name in an answer, restored in what the session replies."""

from __future__ import annotations

import pytest

from epp.answering import Restoring, restoring_of
from epp.extproc.messages import Mode, PassHead, PassTrailers, Piece, Reply, Side
from epp.model import InferenceRequest
from tests.support import build

JSON = {"content-type": "application/json"}
HEAD = PassHead(Side.RESPONSE)
TRAILERS = PassTrailers(Side.RESPONSE)


def restoring(mode: Mode = Mode.FULL_DUPLEX_STREAMED, **facts: str) -> Restoring | None:
    request: InferenceRequest = build.request(model="public", target_model="private")
    return restoring_of(request, JSON | facts, mode)


def replied(*replies: Reply) -> list[Reply]:
    made = restoring()
    assert made is not None
    return [each for reply in replies for each in made.apply([reply])]


def piece(data: bytes, *, ends: bool = False) -> Piece:
    return Piece(Side.RESPONSE, data, ends)


def test_a_name_cut_in_two_is_restored() -> None:
    assert replied(piece(b'{"model":"priv'), piece(b'ate"}', ends=True)) == [
        piece(b"{"),
        piece(b'"model":"public"}', ends=True),
    ]


def test_a_piece_that_is_all_held_back_is_answered_with_an_empty_one() -> None:
    assert replied(piece(b'"mod')) == [piece(b"")]


def test_what_is_held_back_goes_before_trailers() -> None:
    assert replied(piece(b'"mod'), TRAILERS) == [piece(b""), piece(b'"mod'), TRAILERS]


def test_a_length_in_the_head_is_removed() -> None:
    assert replied(HEAD) == [PassHead(Side.RESPONSE, remove=("content-length",))]


def test_a_piece_that_grows_beyond_what_a_gateway_takes_is_cut() -> None:
    found = replied(piece(b'"model":"private",' * 3400, ends=True))
    assert [reply.ends for reply in found if isinstance(reply, Piece)] == [True]
    request = build.request(model="public-with-a-longer-name", target_model="private")
    made = restoring_of(request, JSON, Mode.FULL_DUPLEX_STREAMED)
    assert made is not None
    longer = made.apply([piece(b'"model":"private",' * 3400, ends=True)])
    assert [reply.ends for reply in longer if isinstance(reply, Piece)] == [False, True]


def test_the_requests_side_is_left_alone() -> None:
    request = Piece(Side.REQUEST, b'"model":"private"', ends=False)
    assert replied(request) == [request]


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.FULL_DUPLEX_STREAMED])
def test_in_other_modes_answers_stay_as_they_are(mode: Mode) -> None:
    assert restoring(mode) is None


def test_compressed_answers_and_unchanged_models_stay_as_they_are() -> None:
    assert restoring(**{"content-encoding": "gzip"}) is None
    same = build.request(model="m", target_model="m")
    assert restoring_of(same, JSON, Mode.FULL_DUPLEX_STREAMED) is None
