"""What a picker tells of its decisions: pages on the admin port, a header on answers."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support import http1
from tests.support.backend import wanted
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"SECRET words " * 200)


def page(stack: Stack, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{stack.ports.admin}{path}") as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def ask(stack: Stack, request_id: str) -> http1.Answer:
    headers = wanted(kind="echo", headers={"content-type": "application/json"})
    sent = {**headers, "x-request-id": request_id, "authorization": "Bearer KEY"}
    return asyncio.run(http1.request(stack.port, "POST", CHAT, sent, BODY))


@pytest.mark.parametrize("mode", ["stock", "lean"])
def test_a_request_can_be_explained_by_its_id_while_its_receipt_is_kept(
    tmp_path: Path, mode: Any
) -> None:
    with Stack(tmp_path, mode=mode, serve=("--receipts=3", "--decision-header")) as stack:
        answers = [ask(stack, f"r-{i}") for i in range(4)]
        stack.wait_idle()
        status, told = page(stack, "/debug/explain?request_id=r-3")
        assert status == 200
        assert (told["request_id"], told["model"], told["format"]) == ("r-3", "m", "chat")
        assert (told["ended"]["outcome"], told["ended"]["status"]) == ("completed", 200)
        assert told["picked"] == told["ended"]["served"] or mode == "stock"
        assert told["predicted_cached_tokens"] > 500  # it went where the like of it went before
        assert told["profiles"][0]["candidates"] == 2
        assert len(told["profiles"][0]["endpoints"][0]["scores"]) == len(
            told["profiles"][0]["scorers"]
        )
        _, last = page(stack, "/debug/decisions")
        assert [each["request_id"] for each in last] == ["r-3", "r-2", "r-1"]
        assert len(page(stack, "/debug/decisions?limit=1")[1]) == 1
        assert "SECRET" not in json.dumps(last)
        assert "KEY" not in json.dumps(last)
        status, error = page(stack, "/debug/explain?request_id=r-0")
        assert (status, error) == (404, {"error": "no decision about r-0 is kept"})
        assert page(stack, "/debug/explain")[0] == 400
        assert page(stack, "/debug/decisions?limit=-1")[0] == 400
        said = answers[3].headers.get("x-epp-decision", "")
        assert said.startswith(f"picked={told['picked']}; candidates=2;" if mode == "stock" else "")


def test_without_receipts_nothing_is_kept_nor_said(tmp_path: Path) -> None:
    with Stack(tmp_path, mode="stock", serve=("--receipts=0", "--decision-header")) as stack:
        answer = ask(stack, "r-1")
        assert "x-epp-decision" not in answer.headers
        assert page(stack, "/debug/decisions") == (200, [])
        status, error = page(stack, "/debug/explain?request_id=r-1")
        assert (status, error["error"]) == (404, "decisions are not kept: see --receipts")


def test_the_header_is_off_unless_asked_for(tmp_path: Path) -> None:
    with Stack(tmp_path, mode="stock") as stack:
        assert "x-epp-decision" not in ask(stack, "r-1").headers
        assert page(stack, "/debug/explain?request_id=r-1")[0] == 200


# --- both ways of hearing tell the same --------------------------------------------------------

COUNT = 200
AT_ONCE = 6
CLOSE_SECONDS = 0.02  #: between what the two saw of the same model servers, in most cases
BUSY_SECONDS = 0.12  #: the same in nine of ten cases: these are two runs on a busy machine

USAGE = (
    '"usage":{"prompt_tokens":%d,"completion_tokens":7,"prompt_tokens_details":'
    '{"cached_tokens":%d}}'
)
CHUNK = 'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
STREAM = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


def answer_of(i: int) -> dict[str, Any]:
    """What request ``i`` is answered: streams, whole answers, errors, and those clients leave."""
    usage = USAGE % (900 + i, 16 * i)
    events = f"{CHUNK * 5}data: {{{usage}}}\n\ndata: [DONE]\n\n"
    slow = {"wait": 0.005 * (1 + i % 9), "chunked": True}
    return [
        {"text": events, "pieces": 6, "headers": STREAM, **slow},
        {"text": CHUNK * 6, "pieces": 4, "headers": STREAM, **slow},
        {"text": f'{{"choices":[],{usage}}}', "headers": JSON, "wait": 0.005 * (1 + i % 9)},
        {"text": f'{{"choices":[],{usage}}}', "pieces": 3, "headers": JSON, **slow},
        {"text": '{"error":{}}', "status": 500, "headers": JSON},
        {"text": '{"error":{}}', "status": 429, "headers": JSON},
        {"kind": "bytes", "size": 100_000, "pieces": 1000, "wait": 0.05, "chunked": True,
         "headers": STREAM},
        {"kind": "hang"},
    ][i % 8]  # fmt: skip


async def send(port: int, i: int) -> None:
    headers = {
        **wanted(**answer_of(i)),
        "x-request-id": f"r-{i}",
        "content-type": "application/json",
    }
    if i % 8 < 6:
        await http1.request(port, "POST", CHAT, headers, BODY)
        return
    async with asyncio.timeout(30), http1.Connection(port) as connection:
        await connection.send_head("POST", CHAT, {**headers, "content-length": str(len(BODY))})
        await connection.send(BODY)
        if i % 8 == 6:
            await anext(connection.pieces(await connection.read_head()))
        else:
            await asyncio.sleep(0.3)  # long enough to have been forwarded: nobody answers


async def send_all(port: int) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(i: int) -> None:
        async with turns:
            await send(port, i)

    async with asyncio.TaskGroup() as group:
        for i in range(COUNT):
            group.create_task(one(i))


def records(folder: Path, mode: Any, **gateway: Any) -> dict[str, Any]:
    """What the picker knows of each request after all have ended, by id."""
    folder.mkdir()
    with Stack(folder, mode=mode, gateway=gateway) as stack:
        ask(stack, "first")  # Envoy opens its log with the first one's end
        stack.wait_idle()
        asyncio.run(send_all(stack.port))
        stack.wait_idle()
        _, told = page(stack, "/debug/decisions?limit=1000")
        assert "script log" not in stack.envoy.tail()  # what a script of ours died of
    return {each["request_id"]: each for each in told if each["request_id"] != "first"}


def test_an_answer_seen_and_an_answer_told_of_give_the_same_records(tmp_path: Path) -> None:
    seen = records(tmp_path / "stock", "stock")
    told = records(tmp_path / "lean", "lean", lean_usage=True, lean_ttft=True)
    assert len(seen) == len(told) == COUNT
    counted: dict[str, int] = {}
    apart: list[float] = []
    for name, stock in seen.items():
        number, one, other = int(name[2:]), stock["ended"], told[name]["ended"]
        exact = ["outcome", "status", "prompt_tokens", "completion_tokens", "cached_tokens"]
        exact += ["streamed", "response_bytes"] if number % 8 < 6 else []
        assert [one[key] for key in exact] == [other[key] for key in exact], name
        assert other["served"] == told[name]["picked"], name
        counted[one["outcome"]] = counted.get(one["outcome"], 0) + 1
        if number % 8 in (0, 2, 3):
            assert (one["prompt_tokens"], one["cached_tokens"]) == (900 + number, 16 * number)
        if number % 8 == 7:
            assert (one["ttft_seconds"], other["ttft_seconds"]) == (None, None)
            continue
        apart += [abs(one[key] - other[key]) for key in ("ttft_seconds", "duration_seconds")]
        if number % 8 < 4:
            assert other["ttft_seconds"] >= 0.005 * (1 + number % 9) - 0.002, name
    assert counted == {"completed": 100, "failed": 50, "abandoned": 50}
    apart.sort()
    assert apart[len(apart) // 2] < CLOSE_SECONDS
    assert apart[len(apart) * 9 // 10] < BUSY_SECONDS
