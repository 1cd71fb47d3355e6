"""Text of clients on pages and in logs."""

from __future__ import annotations

import json

import pytest

from epp.telemetry.text import encode_json, printable
from tests.support import build


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "plain"), ("é", "é"), ("a\udcffb", "a\\udcffb"), ("\ud800", "\\ud800"), ("", "")],
)
def test_lone_surrogates_are_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_json_of_any_depth_and_of_structs_is_encoded() -> None:
    value = {"k\udcff": [("é", "\udcfe"), {"n": 1.5, "none": None}], "b": build.endpoint("\udcfd")}
    shown = json.loads(encode_json(value))
    assert shown["k\\udcff"] == [["é", "\\udcfe"], {"n": 1.5, "none": None}]
    assert shown["b"]["name"] == "\\udcfd"


def test_json_without_surrogates_is_as_ever() -> None:
    assert encode_json({"a": ["é", 1]}) == '{"a":["é",1]}'.encode()
