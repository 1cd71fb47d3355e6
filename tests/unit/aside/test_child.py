"""What the reading process answers, without the process: as the picker itself would read."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest

from epp.aside import child
from epp.aside.letters import LENGTHS, asked, pack, read_of, understood, with_body
from epp.errors import BadRequest
from epp.formats import FormatSet
from epp.formats.splice import rewrite_model
from epp.model import Arrival, InferenceRequest

DEFAULT = ("openai-parser", "anthropic-parser", "vllmhttp-parser")
PATHS = {
    "/v1/completions": {"model": "m", "prompt": [5, 6, 7], "cache_salt": "s", "max_tokens": 9},
    "/v1/chat/completions?a=b": {
        "model": "m", "stream": True, "messages": [{"role": "user", "content": "h\u00e9"}]},
    "/v1/messages": {"model": "m", "messages": [{"role": "user", "content": [
        {"type": "image", "source": {"data": "QUJD"}}]}]},
    "/inference/v1/generate": {"token_ids": [1, 2], "sampling_params": {"max_tokens": 3}},
    "/v1/rerank": {"model": "m", "query": "a", "documents": ["b", "c"]},
    "/v1/embeddings": {"input": 3},
    "/v1/responses": [],
}  # fmt: skip


def arrival(path: str, body: bytes) -> Arrival:
    headers = {":path": path, "content-type": "application/json", "authorization": "secret"}
    return Arrival("r", headers, body, subset=("10.0.0.1",))


def through(came: Arrival, parsers: tuple[str, ...] = DEFAULT) -> Arrival:
    """Send it to a child and back."""
    asks, answers = io.BytesIO(b"".join(pack(asked(parsers, came), came.body))), io.BytesIO()
    child.serve(asks, answers)
    answers.seek(0)
    record, size = LENGTHS.unpack(answers.read(LENGTHS.size))
    read = read_of(answers.read(record))
    if read.refused:
        raise BadRequest(read.refused)
    assert not read.failed
    assert read.request is not None
    left, prompt = with_body(read, answers.read(size), came)
    return understood(read.request, prompt, left, 7.0)


@pytest.mark.parametrize("path", PATHS)
def test_a_body_means_the_same_wherever_it_is_read(path: str) -> None:
    came = arrival(path, json.dumps(PATHS[path]).encode())
    read = through(came)
    here = FormatSet().parse(came, 7.0)
    assert read.understood is not None
    assert msgspec.structs.replace(read.understood, model_span=None) == here
    assert msgspec.structs.replace(read, understood=None) == came


def test_what_clients_say_of_a_caches_way_is_removed_there_too() -> None:
    body = b'{"prompt":"abc","kv_transfer_params":{"do_remote_prefill":true},"model":"m"}'
    read = through(arrival("/v1/completions", body))
    assert read.body == b'{"prompt":"abc","model":"m"}'
    assert read.understood is not None
    assert read.understood.body == read.body
    assert read.understood.model_span == (24, 27)
    assert read.understood == FormatSet().parse(read, 7.0)


def without_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError


def test_a_body_without_memory_to_clean_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "without_transfer", without_memory)
    with pytest.raises(BadRequest, match="the body of 2 bytes has too many parts"):
        through(arrival("/v1/completions", b"{}"))


def test_a_body_without_memory_to_read_it_is_routed_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_with_span", without_memory)
    body = b'{"prompt":"abc","kv_transfer_params":{},"model":"m"}'
    read = through(arrival("/v1/completions", body))
    assert read.understood is not None
    assert read.understood.unread == "too-large"
    assert read.body == read.understood.body == b'{"prompt":"abc","model":"m"}'


def test_a_path_may_hold_any_bytes() -> None:
    came = arrival("/v1/\udcff/completions", b'{"prompt": "a"}')
    read = through(came).understood
    assert read is not None
    assert read.path == "/v1/\udcff/completions"


def test_broken_json_is_refused_with_the_same_words() -> None:
    came = arrival("/v1/completions", b'{"prompt": ')
    with pytest.raises(BadRequest) as there:
        through(came)
    with pytest.raises(BadRequest) as here:
        FormatSet().parse(came, 0.0)
    assert str(there.value) == str(here.value)


def test_only_what_parsers_look_at_leaves_the_picker() -> None:
    letter = pack(asked(DEFAULT, arrival("/v1/completions", b"{}")), b"{}")[0]
    assert b"secret" not in letter


def test_the_models_place_comes_along() -> None:
    request = through(arrival("/v1/completions", b'{"prompt": "a", "model": "old"}')).understood
    assert isinstance(request, InferenceRequest)
    assert request.model_span == (25, 30)
    renamed = rewrite_model(request, "newer")
    assert renamed.body == b'{"prompt": "a", "model": "newer"}'


def test_one_body_after_the_other() -> None:
    asks = b""
    for text in ("a", "bb"):
        came = arrival("/v1/completions", json.dumps({"prompt": text}).encode())
        asks += b"".join(pack(asked(DEFAULT, came), came.body))
    answers = io.BytesIO()
    child.serve(io.BytesIO(asks), answers)
    answers.seek(0)
    for text in (b"a", b"bb"):
        record, size = LENGTHS.unpack(answers.read(LENGTHS.size))
        answers.read(record)
        assert answers.read(size).endswith(text)
    assert answers.read() == b""


def test_a_letter_that_breaks_off_ends_it() -> None:
    answers = io.BytesIO()
    child.serve(io.BytesIO(b"\x01"), answers)
    assert answers.getvalue() == b""
