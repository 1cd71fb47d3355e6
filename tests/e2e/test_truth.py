"""What a picker tells of its decisions: pages on the admin port, a header on answers."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from epp.cli import main
from tests.support import http1
from tests.support.backend import wanted
from tests.support.process import eventually
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


def ask(stack: Stack, request_id: str, **more: str) -> http1.Answer:
    headers = wanted(kind="echo", headers={"content-type": "application/json"})
    sent = {**headers, "x-request-id": request_id, "authorization": "Bearer KEY", **more}
    return asyncio.run(http1.request(stack.port, "POST", CHAT, sent, BODY))


@pytest.mark.parametrize("mode", ["stock", "lean"])
def test_a_request_can_be_explained_by_its_id_while_its_receipt_is_kept(
    tmp_path: Path, mode: Any, capsys: pytest.CaptureFixture[str]
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
        assert main(["explain", "r-3", f"--admin=http://127.0.0.1:{stack.ports.admin}"]) == 0
        text = capsys.readouterr().out
        assert text.startswith("request r-3  model m  format chat")
        assert f"picked {told['picked']} by profile default" in text
        assert "ended completed 200" in text
        said = answers[3].headers.get("x-epp-decision", "")
        assert said.startswith(f"picked={told['picked']}; candidates=2;" if mode == "stock" else "")


def test_without_receipts_nothing_is_kept_nor_said(tmp_path: Path) -> None:
    with Stack(tmp_path, mode="stock", serve=("--receipts=0", "--decision-header")) as stack:
        answer = ask(stack, "r-1")
        assert "x-epp-decision" not in answer.headers
        assert page(stack, "/debug/decisions") == (200, [])
        status, error = page(stack, "/debug/explain?request_id=r-1")
        assert (status, error["error"]) == (404, "decisions are not kept: see --receipts")


def test_the_header_is_off_unless_asked_for(stack: Stack) -> None:
    assert "x-epp-decision" not in ask(stack, "r-asked").headers
    assert page(stack, "/debug/explain?request_id=r-asked")[0] == 200


def test_the_header_may_be_for_callers_with_a_key_which_goes_no_further(tmp_path: Path) -> None:
    key = "0123456789abcdef"
    (tmp_path / "key").write_text(key)
    with Stack(tmp_path, mode="stock", serve=(f"--decision-key-file={tmp_path}/key",)) as stack:
        assert "x-epp-decision" not in ask(stack, "r-1").headers
        answer = ask(stack, "r-2", **{"x-epp-decision": key}, **wanted(kind="seen"))
        assert answer.headers["x-epp-decision"].startswith("picked=")
        assert b'"x-request-id"' in answer.body  # the headers that the engine was sent
        assert key.encode() not in answer.body


# --- both ways of hearing tell the same --------------------------------------------------------

SEED = 11
KINDS = 10
COUNT = 50 * KINDS
AT_ONCE = 8
CLOSE_SECONDS = 0.02  #: between what the two saw of the same model servers
CLOCK_SECONDS = 0.003  #: the scripts of a gateway count whole milliseconds
ALIKE_SECONDS = 0.01  #: between what their clients waited: the machine was as busy in both runs

#: The test says which endpoints are candidates, so that both runs retry the same requests. One
#: server speaks for all, so that the picker takes the dead one for alive.
CHOOSING = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: header-based-testing-filter
  - type: metrics-data-source
    parameters:
      port: %d
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: header-based-testing-filter
"""
USAGE = (
    '"usage":{"prompt_tokens":%d,"completion_tokens":7,"prompt_tokens_details":'
    '{"cached_tokens":%d}}'
)
CHUNK = 'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
STREAM = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
BROKEN_OFF, LEAVES_EARLY, NEVER_ANSWERED, RETRIED = 5, 6, 7, (8, 9)
STREAMS = (0, 1)  #: whole ones, from the endpoint picked
PIECES = (0, 1, 3)  #: in three pieces or more, with a pause before each
WAITED_FOR = (0, 1, 2, 3, BROKEN_OFF, 8, 9)  #: with a pause before the first byte
PARTS = ("remote_prefill_seconds", "queue_seconds", "prefill_seconds", "rest_seconds")


def kind_of(i: int) -> int:
    return i % KINDS


def answer_of(i: int) -> dict[str, Any]:
    """What request ``i`` is answered: streams, whole answers, errors, and what is not ended."""
    usage = USAGE % (900 + i, 16 * i)
    events = f"{CHUNK * 5}data: {{{usage}}}\n\ndata: [DONE]\n\n"
    whole = f'{{"choices":[],{usage}}}'
    slow = {"wait": pause_of(i), "chunked": True}
    return [
        {"text": events, "pieces": 6, "headers": STREAM, **slow},
        {"text": CHUNK * 6, "pieces": 4, "headers": STREAM, **slow},
        {"text": whole, "headers": JSON, "wait": pause_of(i)},
        {"text": whole, "pieces": 3, "headers": JSON, **slow},
        {"text": '{"error":{}}', "status": 500 if i % 20 < 10 else 429, "headers": JSON},
        {"text": CHUNK * 6, "pieces": 6, "headers": STREAM, "die_after": 4 * len(CHUNK),
         "linger": 0.1, **slow},
        {"kind": "bytes", "size": 100_000, "pieces": 1000, "wait": 0.05, "chunked": True,
         "headers": STREAM},
        {"kind": "hang"},
        {"text": events, "pieces": 6, "headers": STREAM, **slow},
        {"text": whole, "headers": JSON, "wait": pause_of(i)},
    ][kind_of(i)]  # fmt: skip


def body_of(i: int) -> bytes:
    """What is asked: a stream where one is answered."""
    streams = kind_of(i) in (*STREAMS, BROKEN_OFF, LEAVES_EARLY, 8)
    return BODY.replace(b'{"model"', b'{"stream":true,"model"') if streams else BODY


def pause_of(i: int) -> float:
    """Seconds before each piece of answer ``i``."""
    return 0.004 * (1 + i % 7)


def least_first(i: int) -> float:
    """Seconds that the first byte of answer ``i`` is waited for, at least."""
    return pause_of(i) if kind_of(i) in WAITED_FOR else 0.0


async def send(stack: Stack, i: int) -> tuple[str, float]:
    """Send request ``i``; return what its client can tell: who answered, seconds to a first byte."""
    dead, *alive = stack.addresses
    headers = {
        **wanted(**answer_of(i)),
        "x-request-id": f"r-{i}",
        "content-type": "application/json",
        "test-epp-endpoint-selection": dead if kind_of(i) in RETRIED else ",".join(alive),
    }
    async with asyncio.timeout(60), http1.Connection(stack.port) as connection:
        length, began = str(len(body_of(i))), time.monotonic()
        await connection.send_head("POST", CHAT, {**headers, "content-length": length})
        await connection.send(body_of(i))
        if kind_of(i) == NEVER_ANSWERED:
            await asyncio.to_thread(eventually, lambda: is_decided(stack, i), 30.0)
            await asyncio.sleep(0.1)  # long enough to have been forwarded
            return "", math.inf
        answer = await connection.read_head()
        pieces = connection.pieces(answer)
        await anext(pieces)
        first = time.monotonic() - began
        if kind_of(i) != LEAVES_EARLY:
            with suppress(asyncio.IncompleteReadError):
                async for _ in pieces:
                    pass
        return server_of(stack, answer), first


def is_decided(stack: Stack, i: int) -> bool:
    return page(stack, f"/debug/explain?request_id=r-{i}")[0] == 200


def server_of(stack: Stack, answer: http1.Answer) -> str:
    return stack.addresses[int(answer.headers["x-backend"].removeprefix("backend-"))]


async def send_all(stack: Stack) -> dict[str, tuple[str, float]]:
    """Send all in an order that `SEED` decides; return what `send` does, by request id."""
    turns = asyncio.Semaphore(AT_ONCE)
    order = random.Random(SEED).sample(range(COUNT), COUNT)

    async def one(i: int) -> tuple[str, tuple[str, float]]:
        async with turns:
            return f"r-{i}", await send(stack, i)

    return dict(await asyncio.gather(*map(one, order)))


def records(folder: Path, mode: Any, **gateway: Any) -> dict[str, Any]:
    """What the picker knows of each request after all have ended, by id.

    Added to each is what its client saw: ``answered``, the address of who answered it, and
    ``first_seconds``, which it waited for the first byte.
    """
    folder.mkdir()
    config = folder / "choosing.yaml"
    serve = (f"--config-file={config}", f"--receipts={COUNT + 10}")
    gateway = {"routing": "override-host", **gateway}
    stack = Stack(folder, mode=mode, gateway=gateway, serve=serve, backends=3)
    config.write_text(CHOOSING % stack.backend_ports[1])
    with stack:
        stack.backends[0].kill()
        ask(stack, "first", **wanted(kind="drop"))  # Envoy opens its log with one that fails
        stack.wait_idle()
        eventually(lambda: stack.state()["access_logs"], what="Envoy's access log")
        answered = asyncio.run(send_all(stack))
        stack.wait_idle()
        _, told = page(stack, f"/debug/decisions?limit={COUNT + 10}")
        assert stack.state()["reaped"] == 0
        assert "script log" not in stack.envoy.tail()  # what a script of ours died of
    found = {each["request_id"]: each for each in told if each["request_id"] != "first"}
    for name, each in found.items():
        each["answered"], each["first_seconds"] = answered[name]
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, Any, Any]]:
    """Of each request its number, and its records in stock and in lean mode."""
    folder = tmp_path_factory.mktemp("truth")
    seen = records(folder / "stock", "stock")
    told = records(folder / "lean", "lean", lean_usage=True, lean_ttft=True)
    assert len(seen) == len(told) == COUNT
    return [(int(name[2:]), seen[name], told[name]) for name in seen]


def test_an_answer_seen_and_an_answer_told_of_give_the_same_records(both: Any) -> None:
    counted: dict[str, int] = {}
    for number, stock, lean in both:
        one, other = stock["ended"], lean["ended"]
        exact = ["outcome", "status", "prompt_tokens", "completion_tokens", "cached_tokens"]
        if kind_of(number) not in (LEAVES_EARLY, NEVER_ANSWERED):
            exact.append("streamed")
        if kind_of(number) not in (BROKEN_OFF, LEAVES_EARLY, NEVER_ANSWERED):
            exact.append("response_bytes")  # of a broken one some may still be with the picker
        assert [one[key] for key in exact] == [other[key] for key in exact], number
        counted[one["outcome"]] = counted.get(one["outcome"], 0) + 1
        if kind_of(number) in (0, 2, 3, *RETRIED):
            assert (one["prompt_tokens"], one["cached_tokens"]) == (900 + number, 16 * number)
            assert one["completion_tokens"] == 7
    assert counted == {"completed": 300, "failed": 100, "abandoned": 100}


def test_both_know_who_answered_where_the_first_choice_was_dead_too(both: Any) -> None:
    retried = 0
    for number, stock, lean in both:
        for record in (stock, lean):
            told = record["ended"]
            if kind_of(number) != NEVER_ANSWERED:
                assert told["served"] == record["answered"], (number, record)
            assert told["served_as_picked"] == (kind_of(number) not in RETRIED), (number, record)
        retried += lean["ended"]["attempts"] > 1
        assert (lean["ended"]["attempts"] > 1) == (kind_of(number) in RETRIED), (number, lean)
    assert retried == COUNT * len(RETRIED) // KINDS


def test_both_measure_the_same_times(both: Any) -> None:
    apart: list[float] = []
    alike: list[float] = []
    for number, stock, lean in both:
        one, other = stock["ended"], lean["ended"]
        if kind_of(number) == NEVER_ANSWERED:
            assert (one["ttft_seconds"], other["ttft_seconds"]) == (None, None)
            continue
        apart += [abs(one[key] - other[key]) for key in ("ttft_seconds", "duration_seconds")]
        waited = abs(stock["first_seconds"] - lean["first_seconds"])
        if waited < ALIKE_SECONDS:
            alike.append(abs(one["ttft_seconds"] - other["ttft_seconds"]))
        for record in (stock, lean):
            # What a server waits for bounds it from below, what the client saw from above: where
            # those are close, so are the two records, however slow the machine is at times.
            first = record["ended"]["ttft_seconds"]
            assert first <= record["first_seconds"] + CLOCK_SECONDS, (number, record)
            assert first >= least_first(number) - CLOCK_SECONDS, (number, record)
    apart.sort()
    assert apart[len(apart) // 2] < CLOSE_SECONDS
    assert len(alike) > COUNT // 10
    assert sorted(alike)[len(alike) * 19 // 20] < CLOSE_SECONDS


def test_a_first_byte_is_counted_when_it_comes_not_when_the_answer_is_whole(both: Any) -> None:
    """Filters of a gateway that read JSON answers hold them back until they are whole."""
    for mode in (1, 2):
        early = [
            after_first(each[mode]["ended"]) > pause_of(each[0])
            for each in both
            if kind_of(each[0]) in PIECES
        ]
        assert sum(early) > 0.9 * len(early), (mode, sum(early))


def after_first(ended: dict[str, Any]) -> float:
    """Seconds between an answer's first byte and its end."""
    return float(ended["duration_seconds"] - ended["ttft_seconds"])


def test_the_parts_of_a_first_byte_add_up_to_it_in_both_and_streams_are_split(both: Any) -> None:
    split = {"stock": 0, "lean": 0}
    for number, stock, lean in both:
        for mode, record in (("stock", stock), ("lean", lean)):
            parts = record["ended"]["ttft"]
            if kind_of(number) == NEVER_ANSWERED:
                assert parts is None
                continue
            assert min(value for value in parts.values() if value is not None) >= 0
            whole = record["ended"]["ttft_seconds"]
            assert parts["total_seconds"] == pytest.approx(whole, abs=2e-6)
            measured = [parts[f"{name}_seconds"] for name in ("wait", "decision", "engine")]
            assert sum(measured) == pytest.approx(parts["total_seconds"], abs=5e-6)
            known = [parts[name] for name in PARTS if parts[name] is not None]
            if kind_of(number) in STREAMS and record["expected_ttft"] is not None:
                assert len(known) == 3, (number, record)
                assert sum(known) == pytest.approx(parts["engine_seconds"], abs=5e-6)
                split[mode] += 1
            elif kind_of(number) not in (BROKEN_OFF, LEAVES_EARLY):
                assert not known, (number, record)
    # All but those that were picked before the first stream had ended.
    assert min(split.values()) > COUNT * len(STREAMS) // KINDS - 2 * AT_ONCE
