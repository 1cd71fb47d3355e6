"""The model rewrite: one JSON string changes, nothing else does."""

from __future__ import annotations

import json

import pytest

from epp.formats.splice import model_span, rewrite_model
from tests.support.arrivals import parsed

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("body", "rewritten"),
    [
        pytest.param(b'{"model":"a","x":1}', b'{"model":"bee","x":1}', id="first"),
        pytest.param(b'{ "x" : 1.0e5,\n "model" :\t"a" }', b'{ "x" : 1.0e5,\n "model" :\t"bee" }',
                     id="spaces and numbers are kept"),
        pytest.param(b'{"model":"x","model":"a"}', b'{"model":"x","model":"bee"}',
                     id="the last of two"),
        pytest.param(b'{"y":{"model":"z"},"model":"a"}', b'{"y":{"model":"z"},"model":"bee"}',
                     id="not the nested one"),
        pytest.param(b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"bee"}', id="escaped key"),
        pytest.param(b'{"model":"\\u0061"}', b'{"model":"bee"}', id="escaped value"),
        pytest.param(b'{"x":"\\"model\\":\\"q\\"","model":"a"}',
                     b'{"x":"\\"model\\":\\"q\\"","model":"bee"}', id="not one inside a string"),
        pytest.param(b'\xef\xbb\xbf{"model":"a"}', b'\xef\xbb\xbf{"model":"bee"}', id="after a mark"),
    ],
)  # fmt: skip
def test_only_the_models_name_changes(body: bytes, rewritten: bytes) -> None:
    request = rewrite_model(parsed(CHAT, body), "bee")
    assert request.body == rewritten
    assert request.target_model == "bee"
    assert request.model != "bee"
    assert request.model_span is not None
    start, end = request.model_span
    assert request.body[start:end] == b'"bee"'


def test_a_rewritten_request_can_be_rewritten_again() -> None:
    once = rewrite_model(parsed(CHAT, b'{"model":"a"}'), "a-much-longer-name")
    twice = rewrite_model(once, "b")
    assert (twice.body, twice.target_model) == (b'{"model":"b"}', "b")


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "ü€", "\0", "</script>"], ids=repr)
def test_names_are_escaped(name: str) -> None:
    request = rewrite_model(parsed(CHAT, b'{"model":"a","x":[1, 2]}'), name)
    assert json.loads(request.body) == {"model": name, "x": [1, 2]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(CHAT, b'{"messages":[]}', id="none"),
        pytest.param(CHAT, b'{"model":null}', id="null"),
        pytest.param(CHAT, b'{"model":5}', id="number"),
        pytest.param(CHAT, b'{"model":""}', id="empty"),
        pytest.param(CHAT, b"[1]", id="no object"),
        pytest.param(CHAT, b"", id="no body"),
        pytest.param("/v1/unknown", b'{"model":"a"}', id="unknown path"),
    ],
)
def test_a_body_that_names_no_model_is_left_alone(path: str, body: bytes) -> None:
    request = parsed(path, body)
    assert rewrite_model(request, "b") is request


def test_a_form_is_left_alone() -> None:
    form = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--XX--\r\n'
    request = parsed("/v1/audio", form, content_type="multipart/form-data; boundary=XX")
    assert request.model == "a"
    assert rewrite_model(request, "b") is request


def test_a_request_of_the_wrong_shape_is_still_rewritten() -> None:
    request = parsed(CHAT, b'{"model":"a","messages":5}')
    assert request.unread == "bad-shape"
    assert rewrite_model(request, "b").body == b'{"model":"b","messages":5}'


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b'{"model":1}', b"{}", b'{"model":"\\ud800"}'], ids=len
)
def test_there_is_no_span_in_what_cannot_be_read(body: bytes) -> None:
    assert model_span(body) is None
