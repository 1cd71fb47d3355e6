"""Which bodies are read aside: those that may take longer than 5 ms, and no others."""

from __future__ import annotations

import json

import pytest

from epp.formats import FormatSet
from epp.formats.openai import OpenAIParser
from epp.formats.passthrough import PassthroughParser
from epp.formats.weight import HEAVY_BYTES, LIGHT_BYTES, is_heavy
from epp.model import Arrival

COMPLETIONS = "/v1/completions"
DEFAULT = ("openai-parser", "anthropic-parser", "vllmhttp-parser")
TEXT = "The quick brown fox, jumps over the lazy dog.\n"


def prompt(value: object) -> bytes:
    return json.dumps({"model": "m", "prompt": value}).encode()


def post(body: bytes, path: str = COMPLETIONS, kind: str = "application/json") -> Arrival:
    return Arrival("r", {":path": path, "content-type": kind}, body)


@pytest.mark.parametrize(
    ("body", "heavy"),
    [
        pytest.param(
            b'{"prompt":[' + b"[1]," * 3_000 + b"[1]]}", False, id="small, whatever it is"
        ),
        pytest.param(prompt(TEXT * 4_000), False, id="180 kB of text"),
        pytest.param(prompt(list(range(30_000))), False, id="30,000 token ids"),
        pytest.param(prompt(list(range(50_000))), True, id="50,000 token ids"),
        pytest.param(prompt([[1]] * 6_000), True, id="6,000 prompts"),
        pytest.param(
            b'{"messages":[' + b" " * LIGHT_BYTES + b"{}," * 4_990 + b"{}]}",
            False,
            id="4,991 messages",
        ),
        pytest.param(b'{"messages":[' + b"{}," * 6_000 + b"{}]}", True, id="6,001 messages"),
        pytest.param(prompt(["a"] * 6_000), True, id="6,000 texts"),
        pytest.param(prompt("a" * HEAVY_BYTES), True, id="a megabyte of anything"),
    ],
)
def test_what_is_heavy(body: bytes, heavy: bool) -> None:
    assert is_heavy(body) is heavy
    assert FormatSet().aside(post(body)) == (DEFAULT if heavy else ())


HEAVY = prompt("a" * (HEAVY_BYTES + 1))


def test_what_is_not_decoded_is_not_read_aside() -> None:
    assert FormatSet().aside(post(HEAVY, "/v1/files")) == ()
    assert FormatSet().aside(post(HEAVY, kind="multipart/form-data; boundary=b")) == ()
    assert FormatSet([PassthroughParser()]).aside(post(HEAVY)) == ()


def test_a_parser_of_a_user_reads_where_it_was_loaded() -> None:
    class Own(OpenAIParser):
        """Knows what only this process knows."""

    assert FormatSet([Own()]).aside(post(HEAVY)) == ()
    assert FormatSet([OpenAIParser()]).aside(post(HEAVY)) == ("openai-parser",)


def test_what_was_understood_is_not_read_again() -> None:
    formats = FormatSet()
    request = formats.parse(post(prompt("hello")), 1.0)
    assert formats.parse(Arrival("r", {}, b"broken", understood=request), 2.0) is request


def test_the_light_need_no_look() -> None:
    assert not is_heavy(b"," * LIGHT_BYTES)
