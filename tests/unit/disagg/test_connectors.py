"""Connectors: one body and one answer in, the bodies of both legs out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.disagg.connectors import CONNECTORS, BadAnswer, Mode, Transfer, Unsplittable

DATA = Path(__file__).parents[2] / "data" / "disagg"
VECTORS = [
    pytest.param(file.stem, vector, id=f"{file.stem}: {vector['case']}")
    for file in sorted(DATA.glob("*.json"))
    for vector in msgspec.json.decode(file.read_bytes())
]


def transfer(path: str = "/v1/completions", **told: Any) -> Transfer:
    return Transfer("t-1", path, "10.0.0.2", **told)


@pytest.mark.parametrize(("name", "vector"), VECTORS)
def test_each_body_and_answer_make_the_bodies_of_both_legs(
    name: str, vector: dict[str, Any]
) -> None:
    connector, body = CONNECTORS[name], msgspec.json.encode(vector["body"])
    this = transfer(vector["path"], **vector.get("transfer", {}))
    if "unsplittable" in vector:
        with pytest.raises(Unsplittable, match=f"^{vector['unsplittable']}$"):
            connector.prefill_body(body, this)
        return
    if "prefill" in vector:
        assert msgspec.json.decode(connector.prefill_body(body, this)) == vector["prefill"]
    answer = msgspec.json.encode(vector["answer"]) if "answer" in vector else b""
    if "bad_answer" in vector:
        with pytest.raises(BadAnswer, match=f"^{vector['bad_answer']}$"):
            connector.decode_body(body, answer, this)
    elif "decode" in vector:
        assert msgspec.json.decode(connector.decode_body(body, answer, this)) == vector["decode"]


def test_values_go_on_byte_for_byte_as_the_client_wrote_them() -> None:
    body = b'{"prompt" : "caf\\u00e9 \xc3\xa9", "temperature":1.0e-1,"seed":123456789012345678901}'
    made = CONNECTORS["nixlv2"].prefill_body(body, transfer())
    for part in (b'"caf\\u00e9 \xc3\xa9"', b"1.0e-1", b"123456789012345678901"):
        assert part in made


@pytest.mark.parametrize("answer", [b"", b"<html>", b'{"kv_transfer_params":{', b"\xff"])
def test_a_broken_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(BadAnswer, match=re.escape("not-an-object")):
        CONNECTORS["nixlv2"].decode_body(b'{"prompt":"a"}', answer, transfer())


def test_each_attempt_has_a_room_of_its_own_that_fits_63_bits() -> None:
    rooms = {Transfer(f"t-{i}", "/", "h").room for i in range(100)}
    assert len(rooms) == 100
    assert all(0 <= room < 2**63 for room in rooms)


def test_the_decode_leg_of_nixl_waits_for_the_prefill_leg() -> None:
    assert CONNECTORS["nixlv2"].mode is Mode.SEQUENTIAL
