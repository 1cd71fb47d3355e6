"""Token ids from a tokenizer in this process."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model import InferenceRequest, Tokens
from epp.prefix.tokens import local
from epp.prefix.tokens.backend import NoTokens
from epp.prefix.tokens.local import Local, Model
from epp.prefix.tokens.template import ChatTemplate, TemplateError
from tests.support import tiny_model


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model.make(folder)
    return folder


def request(body: Any, form: str = "chat", **more: Any) -> InferenceRequest:
    return InferenceRequest("r", {}, json.dumps(body).encode(), format=form, **more)


def told(folder: Path, asked: InferenceRequest, seconds: float = 10.0) -> Tokens:
    backend = Local(str(folder), seconds=seconds)

    async def run() -> Tokens:
        try:
            return await backend.tokens(asked, ())
        finally:
            await backend.close()

    return asyncio.run(run())


def unpacked(ids: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(ids) // 4}I", ids))


def say(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)]}


def test_a_chat_has_the_ids_of_its_rendered_text(folder: Path, tmp_path: Path) -> None:
    tokenizer = tiny_model.make(tmp_path)
    tokens = told(folder, request(say("what is the weather like today")))
    text = "<|im_start|>user\nwhat is the weather like today<|im_end|>\n<|im_start|>assistant\n"
    assert unpacked(tokens.ids) == tokenizer.encode(text, add_special_tokens=False).ids
    assert (tokens.count, tokens.source) == (len(tokens.ids) // 4, "local")


def test_a_completion_has_the_ids_of_its_text_and_all_prompts_count(folder: Path) -> None:
    one = told(folder, request({"prompt": "be kind"}, "completions"))
    two = told(folder, request({"prompt": ["be kind", "be kind"]}, "completions"))
    assert two.ids == one.ids
    assert two.count == 2 * one.count


@given(st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_pieces_remembered_have_the_ids_of_the_whole(texts: list[str]) -> None:
    text = "<|im_end|>".join(texts)
    whole = MODEL._encode(text)
    assert MODEL._pieces.split is not None
    assert MODEL._pieces.encode(text, MODEL._encode) == whole
    assert MODEL._pieces.encode(text, MODEL._encode) == whole  # and again, from memory


def test_of_a_conversation_only_the_new_tail_is_tokenized(folder: Path) -> None:
    model, asked = Model.read(str(folder)), []
    real = model._encode

    def counted(text: str) -> bytes:
        asked.append(text)
        return real(text)

    model._encode = counted  # type: ignore[method-assign]
    model.chat(say("first", "second"))
    asked.clear()
    model.chat(say("first", "second", "third"))
    assert asked == ["user\nthird"]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request({"prompt": [5]}, "completions"), "unreadable"),
        (request({}, "completions"), "unreadable"),
        (request({"messages": [5]}), "template"),
        (request(say("x"), multimodal=True), "media"),
        (request(say("x") | {"truncate_prompt_tokens": 5}), "options"),
        (request(say("x") | {"add_special_tokens": True}), "options"),
        (request(say("x") | {"continue_final_message": True}), "options"),
        (request(say("x") | {"chat_template": "{{ messages }}"}), "options"),
        (request(say("x") | {"chat_template_kwargs": {"messages": []}}), "options"),
        (request(say("x") | {"chat_template_kwargs": {"chat_template": ""}}), "options"),
        (request({"prompt": "x", "add_special_tokens": False}, "completions"), "options"),
        (request({"prompt": "x", "truncate_prompt_tokens": -1}, "completions"), "options"),
        (InferenceRequest("r", {}, b"[]", format="chat"), "unreadable"),
    ],
)
def test_what_cannot_be_tokenized_says_why(
    folder: Path, asked: InferenceRequest, reason: str
) -> None:
    with pytest.raises(NoTokens, match=reason):
        told(folder, asked)


def test_options_that_change_nothing_are_no_hindrance(folder: Path) -> None:
    usual: dict[str, Any] = {
        "add_special_tokens": False, "continue_final_message": False, "truncate_prompt_tokens": None,
        "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    assert told(folder, request(say("x") | usual)).ids == told(folder, request(say("x"))).ids
    completion = {"prompt": "x", "add_special_tokens": True}
    assert told(folder, request(completion, "completions")).count


def test_a_request_that_is_nested_too_deeply_to_read_goes_on_without(folder: Path) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    body = b'{"messages": [{"role": "user", "content": "hi"}], "tools": ' + deep + b"}"
    with pytest.raises(NoTokens, match="unreadable"):
        told(folder, InferenceRequest("r", {}, body, format="chat"))


def test_a_tokenizer_that_takes_too_long_is_not_waited_for(folder: Path) -> None:
    backend = Local(str(folder), seconds=0.05)

    async def run() -> None:
        for model in backend._models:
            model._encode = lambda _: time.sleep(0.5) or b""  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        with pytest.raises(NoTokens, match="timeout"):
            await backend.tokens(request(say("slow")), ())
        assert asyncio.get_running_loop().time() - began < 0.4
        await backend.close()

    asyncio.run(run())


def test_more_requests_than_may_wait_are_told_so(folder: Path) -> None:
    backend = Local(str(folder), seconds=5.0)

    async def run() -> None:
        backend._waiting = local.MOST_WAITING
        with pytest.raises(NoTokens, match="busy"):
            await backend.tokens(request(say("x")), ())
        await backend.close()

    asyncio.run(run())


def test_parts_of_text_are_joined_unless_the_template_reads_parts() -> None:
    parts = {"messages": [{"content": [{"type": "text", "text": "a"}, {"text": "b"}]}]}
    assert ChatTemplate("{{ messages[0].content }}", {}).render(parts) == "a\nb"
    looks = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert ChatTemplate(looks, {}).render(parts) == "[a][b]"
    assert ChatTemplate(looks, {}).render({"messages": [{"content": "a"}]}) == "[a]"


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('no') }}",
        "{{ 1 / messages | length }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_a_template_can_refuse_and_cannot_leave_its_sandbox(text: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(text, {}).render({"messages": []})


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no tokenizer"):
        Model.read(str(tmp_path))


def test_where_a_loop_runs_a_thread_reads_the_folder_and_nothing_waits(tmp_path: Path) -> None:
    tiny_model.make(tmp_path)

    async def run() -> None:
        backend = Local(str(tmp_path), seconds=5.0)
        lacking = set()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert (await backend.tokens(request(say("x")), ())).source == "local"
                    break
                except NoTokens as error:
                    lacking.add(error.reason)
                    await asyncio.sleep(0)
        assert lacking <= {"loading"}
        again = Local(str(tmp_path), seconds=5.0)  # as when a configuration is read again
        assert (await again.tokens(request(say("x")), ())).source == "local"
        await backend.close()
        await again.close()

    asyncio.run(run())


def test_a_tokenizer_found_broken_later_is_told_of_and_requests_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    async def run() -> None:
        backend = Local(str(tmp_path), seconds=5.0)
        async with asyncio.timeout(10):
            while True:
                with pytest.raises(NoTokens) as told:
                    await backend.tokens(request(say("x")), ())
                if told.value.reason == "unusable":
                    break
                await asyncio.sleep(0)
        await backend.close()

    asyncio.run(run())
    assert "holds no tokenizer" in caplog.text


def test_a_tokenizer_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model.make(tmp_path)
    real, reads = Model.read, 0

    def read(folder: str) -> Model:
        nonlocal reads
        reads += 1
        model = real(folder)
        os.utime(tmp_path / "tokenizer.json", ns=(reads, reads))
        return model

    monkeypatch.setattr(Model, "read", read)
    for _ in range(2):
        Local(str(tmp_path), seconds=5.0)
    assert reads == 2


def test_without_a_loop_or_without_the_file_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        Local(str(tmp_path), seconds=5.0)

    async def run() -> None:
        with pytest.raises(ValueError, match="holds no tokenizer"):
            Local(str(tmp_path / "none"), seconds=5.0)

    asyncio.run(run())


def _model() -> Model:
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        tiny_model.make(Path(folder))
        return Model.read(folder)


MODEL = _model()
