"""The simulated engine over real HTTP, held against answers captured from a vLLM 0.32 server.

What is compared: status, JSON keys in order and kinds of values, event-stream framing, error bodies to
the letter, metric names, labels and buckets. What cannot be: token counts and texts, which come
from another tokenizer, and dates.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from epp.sim import tokenizer
from epp.sim.options import EngineOptions
from epp.sim.server import EngineServer
from tests.support import engine

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "http_engine"
BOUND_SECONDS = 10.0

#: As the server was started that the samples come from.
TINY = EngineOptions(
    models=("tiny",), block_size=32, kv_blocks=8192, max_model_len=2048, max_num_seqs=8, speed=50.0
)

Use = Callable[[aiohttp.ClientSession, str, EngineServer], Awaitable[None]]


def serve(options: EngineOptions, use: Use) -> None:
    """Run ``use`` with a client and one engine's URL, within a bound."""

    async def main() -> None:
        async with (
            asyncio.timeout(BOUND_SECONDS * 2),
            engine.served(options) as [(server, port)],
            aiohttp.ClientSession() as client,
        ):
            await use(client, f"http://127.0.0.1:{port}", server)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must become true."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():
            await asyncio.sleep(0.002)


# --- against the samples -----------------------------------------------------------------


def sample(name: str) -> tuple[int, str, bytes]:
    """Status, content type and body, without chunked framing."""
    head, _, body = (SAMPLES / f"{name}.bin").read_bytes().partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    if headers.get("transfer-encoding") == "chunked":
        whole = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            whole, body = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        body = whole
    return int(lines[0].split()[1]), headers["content-type"], body


async def replay(client: aiohttp.ClientSession, url: str, name: str) -> tuple[int, str, bytes]:
    """Send a sample's request; return the same three facts of our answer."""
    asked = json.loads((SAMPLES / f"{name}.req.json").read_text())
    body, headers = asked["body"], {"content-type": "application/json", **asked["headers"]}
    data = body if isinstance(body, str | None) else json.dumps(body)
    if "Content-Type" in headers:
        del headers["content-type"]
    call = client.request(asked["method"], url + asked["path"], data=data, headers=headers)
    async with call as answer:
        return answer.status, answer.headers["content-type"], await answer.read()


def shape(value: Any) -> Any:
    """Keys in order, and kinds of values; of lists the first element."""
    if isinstance(value, dict):
        return [(key, shape(each)) for key, each in value.items()]
    if isinstance(value, list):
        return ["list", *(shape(each) for each in value[:1])]
    return type(value).__name__


WHOLE = (
    "completion", "chat", "n2", "emb", "messages_api", "responses_api", "inference_generate",
    "tokenize_prompt", "detokenize", "body_request_id",
)  # fmt: skip
STREAMS = (
    "completion_stream", "chat_stream", "chat_stream_continuous", "chat_stream_nousage",
    "inference_generate_stream",
)  # fmt: skip
ERRORS = (
    "err_404", "err_405", "err_empty_body", "err_malformed_json", "err_max_tokens_too_big",
    "err_missing_messages", "err_not_json_ct", "err_too_long", "err_unknown_model",
    "err_stream_unknown_model",
)  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_whole_answers_have_the_keys_of_a_real_server(name: str) -> None:
    details = name not in ("n2", "emb")  # those two servers were started without details

    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        status, kind, body = await replay(client, url, name)
        real_status, real_kind, real_body = sample(name)
        assert (status, kind.split(";")[0]) == (real_status, real_kind)
        ours, real = json.loads(body), json.loads(real_body)
        ours.get("usage", {}).pop("prompt_tokens_details", None) if name == "emb" else None
        real.get("usage", {}).pop("prompt_tokens_details", None) if name == "emb" else None
        if name == "emb":
            assert list(ours) == list(real)
            assert shape(ours["data"]) == shape(real["data"])
        else:
            assert shape(ours) == shape(real)
        if "id" in real and "request_id" not in name:
            assert ours["id"].partition("-")[0][:4] == real["id"].partition("-")[0][:4]

    serve(TINY if details else _without_details(), use)


def _without_details() -> EngineOptions:
    return msgspec.structs.replace(TINY, prompt_tokens_details=False)


@pytest.mark.parametrize("name", STREAMS)
def test_streams_have_the_events_of_a_real_server(name: str) -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        status, kind, body = await replay(client, url, name)
        real_status, real_kind, real_body = sample(name)
        assert (status, kind) == (real_status, real_kind)
        ours, real = body.split(b"\n\n"), real_body.split(b"\n\n")
        assert ours[-2:] == [b"data: [DONE]", b""] == real[-2:]
        for one, other in zip(ours[:-2], real[:-2], strict=True):
            assert one.startswith(b"data: {")
            assert shape(json.loads(one[6:])) == shape(json.loads(other[6:]))

    serve(TINY, use)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_a_real_server(name: str) -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        status, kind, body = await replay(client, url, name)
        real_status, real_kind, real_body = sample(name)
        assert (status, kind.split(";")[0]) == (real_status, real_kind)
        assert json.loads(body) == json.loads(real_body)

    serve(TINY, use)


def test_the_request_id_is_part_of_the_answers_id() -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        ids = [
            json.loads((await replay(client, url, name))[2])["id"]
            for name in ("completion", "chat", "body_request_id")
        ]
        assert ids == ["cmpl-my-req-1", "chatcmpl-my-req-3", "cmpl-from-body"]

    serve(TINY, use)


def test_load_is_told_in_a_header_where_asked_for() -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        for name in ("orca_text", "orca_json"):
            asked = json.loads((SAMPLES / f"{name}.req.json").read_text())
            call = client.post(url + asked["path"], json=asked["body"], headers=asked["headers"])
            async with call as answer:
                told = answer.headers["endpoint-load-metrics"].replace(" ", "")
            real = re.search(
                rb"endpoint-load-metrics: (.*)\r", (SAMPLES / f"{name}.bin").read_bytes()
            )
            assert real is not None
            assert told == real[1].decode().replace(" ", "")

    serve(TINY, use)


# --- metrics -----------------------------------------------------------------------------

SERIES = re.compile(r"^(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
#: In the sample's server and not in ours: of hardware, pictures, and parameters of requests.
LEFT_OUT = re.compile(
    r"vllm:(estimated_|mm_cache_|request_params_|request_max_num_|prompt_tokens_cached_by_source_)"
)
#: Buckets go up to the longest request of the model: the sample's is the same as `TINY`.


def series(text: str) -> dict[str, float]:
    """Values by name and labels, dates and configuration left out."""
    found = {}
    for line in text.splitlines():
        match = SERIES.match(line)
        if match is None or LEFT_OUT.match(line) or "_created" in line:
            continue
        if not match["name"].startswith("vllm:") or match["name"] == "vllm:cache_config_info":
            continue
        found[f"{match['name']}{{{match['labels']}}}"] = float(match["value"])
    return found


async def scrape(client: aiohttp.ClientSession, url: str) -> str:
    async with client.get(f"{url}/metrics") as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return await answer.text()


def test_metrics_have_the_names_labels_and_buckets_of_a_real_server() -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        text = await scrape(client, url)
        real = (SAMPLES / "metrics_load.txt").read_text()
        assert series(text).keys() == series(real).keys()
        kinds = {line for line in real.splitlines() if line.startswith("# TYPE")}
        kinds = {line for line in kinds if not LEFT_OUT.match(line.removeprefix("# TYPE "))}
        assert {line for line in text.splitlines() if line.startswith("# TYPE")} == kinds
        assert 'block_size="32"' in text
        assert 'num_gpu_blocks="8192"' in text
        assert 'kv_cache_size_tokens="262144"' in text

    serve(TINY, use)


def test_metrics_follow_the_engine() -> None:
    labels = '{engine="0",model_name="tiny"}'

    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        body = {"prompt": tokenizer.text(100), "max_tokens": 5}
        for _turn in range(2):
            async with client.post(f"{url}/v1/completions", json=body) as answer:
                usage = (await answer.json())["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 96
        now = series(await scrape(client, url))
        assert now[f"vllm:prefix_cache_queries_total{labels}"] == 200
        assert now[f"vllm:prefix_cache_hits_total{labels}"] == 96
        assert now[f"vllm:generation_tokens_total{labels}"] == 10
        assert now[f"vllm:prompt_tokens_total{labels}"] == 200
        assert now[f"vllm:time_to_first_token_seconds_count{labels}"] == 2
        assert now[f"vllm:inter_token_latency_seconds_count{labels}"] == 8
        ended = '{engine="0",finished_reason="length",model_name="tiny"}'
        assert now[f"vllm:request_success_total{ended}"] == 2
        assert now[f"vllm:num_requests_running{labels}"] == 0
        assert now[f"vllm:kv_cache_usage_perc{labels}"] == 0

    serve(TINY, use)


def test_the_batch_and_the_queue_are_seen_under_load() -> None:
    options = EngineOptions(max_num_seqs=2, speed=1.0)

    async def use(client: aiohttp.ClientSession, url: str, server: EngineServer) -> None:
        body = {"prompt": "hi", "max_tokens": 2000}
        calls = [
            asyncio.ensure_future(client.post(f"{url}/v1/completions", json=body)) for _ in range(5)
        ]
        await until(lambda: server.engine.running == 2 and server.engine.waiting == 3)
        now = series(await scrape(client, url))
        labels = 'engine="0",model_name="sim"'
        assert now[f"vllm:num_requests_running{{{labels}}}"] == 2
        assert now[f"vllm:num_requests_waiting{{{labels}}}"] == 3
        reason = f'{{{labels},reason="capacity"}}'
        assert now[f"vllm:num_requests_waiting_by_reason{reason}"] == 3
        for call in calls:
            call.cancel()
        await until(lambda: server.engine.running == server.engine.waiting == 0)

    serve(options, use)


def test_adapters_are_models_of_their_own_and_show_in_the_metrics() -> None:
    options = EngineOptions(models=("base",), adapters=("lora-a", "lora-b"), max_adapters=2)

    async def use(client: aiohttp.ClientSession, url: str, server: EngineServer) -> None:
        async with client.get(f"{url}/v1/models") as answer:
            models = {each["id"]: each["parent"] for each in (await answer.json())["data"]}
        assert models == {"base": None, "lora-a": "base", "lora-b": "base"}
        body = {"model": "lora-a", "prompt": "hi", "max_tokens": 2000}
        call = asyncio.ensure_future(client.post(f"{url}/v1/completions", json=body))
        await until(lambda: server.engine.running == 1)
        found = re.findall(r"vllm:lora_requests_info\{(.*)\} (\S+)", await scrape(client, url))
        latest = max(found, key=lambda each: float(each[1]))[0]
        assert latest == (
            'max_lora="2",running_lora_adapters="lora-a",waiting_lora_adapters="lora-a"'
        )
        call.cancel()

    serve(options, use)


# --- behaviour ---------------------------------------------------------------------------


def test_a_conversation_finds_its_own_answers_in_the_cache() -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        messages = [{"role": "user", "content": tokenizer.text(40)}]
        async with client.post(
            f"{url}/v1/chat/completions", json={"messages": messages, "max_tokens": 80}
        ) as answer:
            first = await answer.json()
        said = first["choices"][0]["message"]["content"]
        messages += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": tokenizer.text(40, seed=2)},
        ]
        async with client.post(
            f"{url}/v1/chat/completions", json={"messages": messages, "max_tokens": 1}
        ) as answer:
            second = await answer.json()
        total = first["usage"]["total_tokens"]
        # all but the last token of the first turn was computed, in blocks of 16
        cached = (total - 1) // 16 * 16
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == cached > 80

    serve(EngineOptions(speed=100.0), use)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"model": "sim"}, {"model": "lora"}),
    ],
    ids=["salt", "adapter"],
)
def test_salt_and_adapter_keep_caches_apart(first: dict[str, str], second: dict[str, str]) -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        cached = []
        for more in (first, second, first):
            body = {"prompt": tokenizer.text(64), "max_tokens": 1, **more}
            async with client.post(f"{url}/v1/completions", json=body) as answer:
                usage = (await answer.json())["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 0, 48]

    serve(EngineOptions(adapters=("lora",), speed=100.0), use)


def test_a_stream_says_the_same_as_the_whole_answer() -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        body = {"prompt": ["one", "other"], "n": 2, "max_tokens": 20, "seed": 7}
        async with client.post(f"{url}/v1/completions", json=body) as answer:
            whole = [choice["text"] for choice in (await answer.json())["choices"]]
        parts = [""] * 4
        async with client.post(f"{url}/v1/completions", json={**body, "stream": True}) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        parts[choice["index"]] += choice["text"]
        assert parts == whole
        assert len(set(whole)) == 4

    serve(EngineOptions(speed=100.0), use)


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}]}, "message_stop"),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 3}, "response.incomplete"),
    ],
    ids=["messages", "responses"],
)
def test_other_streams_end_with_their_own_event(path: str, body: dict[str, Any], last: str) -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        async with client.post(url + path, json={**body, "stream": True}) as answer:
            events = (await answer.text()).strip().split("\n\n")
        for event in events:
            kind, data = event.split("\n")
            assert json.loads(data.removeprefix("data: "))["type"] == kind.removeprefix("event: ")
        assert events[-1].startswith(f"event: {last}\n")

    serve(EngineOptions(speed=100.0), use)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_frees_its_place(stream: bool) -> None:
    async def use(client: aiohttp.ClientSession, url: str, server: EngineServer) -> None:
        body = {"prompt": "hi", "max_tokens": 50_000, "stream": stream}
        call = asyncio.ensure_future(client.post(f"{url}/v1/completions", json=body))
        await until(lambda: server.engine.running == 1)
        if stream:
            answer = await call
            assert (await answer.content.readany()).startswith(b"data: ")
            answer.close()
        else:
            call.cancel()
        await until(lambda: server.engine.running == 0)
        assert server.engine.cache.used == 0

    serve(EngineOptions(speed=1.0), use)


def test_over_the_queue_limit_requests_are_turned_away() -> None:
    options = EngineOptions(max_num_seqs=1, max_num_queued_reqs=1)

    async def use(client: aiohttp.ClientSession, url: str, server: EngineServer) -> None:
        body = {"prompt": "hi", "max_tokens": 5000}
        calls = []
        for count in (1, 2):
            calls.append(asyncio.ensure_future(client.post(f"{url}/v1/completions", json=body)))
            await until(lambda: server.engine.running + server.engine.waiting == count)  # noqa: B023
            await until(lambda: server.engine.running == 1)
        async with client.post(f"{url}/v1/completions", json=body) as answer:
            assert answer.status == 503
            error = (await answer.json())["error"]
        assert (error["type"], error["code"]) == ("Service Unavailable", 503)
        text = await scrape(client, url)
        labels = '{model_name="sim",reason="max_num_queued_reqs"}'
        assert series(text)[f"vllm:admission_rejections_total{labels}"] == 1
        for call in calls:
            call.cancel()

    serve(options, use)


def test_answers_name_their_engine() -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        for path in ("/health", "/v1/nope", "/metrics", "/version", "/load", "/ping"):
            async with client.get(url + path) as answer:
                assert answer.headers["x-engine-name"] == "pod-7"

    serve(EngineOptions(name="pod-7"), use)


def test_a_fail_rate_of_one_fails_every_inference_and_nothing_else() -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        async with client.post(f"{url}/v1/completions", json={"prompt": "hi"}) as answer:
            assert answer.status == 500
        async with client.get(f"{url}/health") as answer:
            assert answer.status == 200

    serve(EngineOptions(fail_rate=1.0), use)


def test_hanging_metrics_never_answer_and_inference_still_does() -> None:
    async def use(client: aiohttp.ClientSession, url: str, _: EngineServer) -> None:
        with pytest.raises(TimeoutError):
            async with client.get(f"{url}/metrics", timeout=aiohttp.ClientTimeout(total=0.2)):
                pass
        async with client.post(f"{url}/v1/completions", json={"prompt": "hi"}) as answer:
            assert answer.status == 200

    serve(EngineOptions(hang_metrics=True, speed=100.0), use)


def test_the_head_of_a_stream_is_sent_before_its_first_token() -> None:
    async def use(client: aiohttp.ClientSession, url: str, server: EngineServer) -> None:
        body = {"prompt": tokenizer.text(8000), "max_tokens": 1, "stream": True}
        async with client.post(f"{url}/v1/completions", json=body) as answer:
            assert answer.status == 200
            assert server.engine.totals.output_tokens == 0

    serve(EngineOptions(speed=0.1), use)


def test_an_engine_asleep_is_healthy_and_answers_when_it_wakes() -> None:
    state = 'vllm:engine_sleep_state{engine="0",model_name="sim",sleep_state="awake"}'

    async def use(client: aiohttp.ClientSession, url: str, server: EngineServer) -> None:
        async with client.post(f"{url}/sleep?level=1") as answer:
            assert await answer.json() == {"status": "sleeping", "level": 1}
        body = {"prompt": "hi", "max_tokens": 2}
        call = asyncio.ensure_future(client.post(f"{url}/v1/completions", json=body))
        await until(lambda: server.engine.waiting == 1)
        async with client.get(f"{url}/health") as answer:
            assert answer.status == 200
        assert series(await scrape(client, url))[state] == 0
        async with client.post(f"{url}/wake_up"):
            pass
        answer = await call
        assert answer.status == 200
        await answer.read()
        assert series(await scrape(client, url))[state] == 1

    serve(EngineOptions(speed=100.0), use)


def test_answers_take_the_time_the_profile_says() -> None:
    """21 steps of 8.7 ms in life, 10 times as fast here: 18 ms, seen from the client."""

    async def use(client: aiohttp.ClientSession, url: str, server: EngineServer) -> None:
        body = {"prompt": "hi", "max_tokens": 21}
        async with client.post(f"{url}/v1/completions", json=body) as answer:
            await answer.read()
        began = time.monotonic()
        async with client.post(f"{url}/v1/completions", json={**body, "max_tokens": 201}) as answer:
            await answer.read()
        took = time.monotonic() - began
        step = server.engine.config.timing.step_seconds(decodes=1, context=100)
        assert took > 200 * step / 10 * 0.9
        assert took < 200 * step / 10 + 2.0  # generous: the machine is shared

    serve(EngineOptions(speed=10.0), use)


# --- as a process ------------------------------------------------------------------------


def post(port: int, body: dict[str, Any]) -> tuple[http.client.HTTPConnection, Any]:
    """Send a completion; return the connection and the answer's head."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND_SECONDS)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection, connection.getresponse()


def test_clients_that_leave_are_no_bug_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    with engine.one(EngineOptions(speed=20.0)) as it:
        body = {"prompt": "hi", "max_tokens": 50_000, "stream": True}
        for connection, answer in [post(it.port, body) for _ in range(20)]:
            assert answer.read1(10).startswith(b"data: ")
            answer.close()
            connection.close()
        assert it.terminate() == 0
    assert "Traceback" not in capfd.readouterr().err


def test_sigterm_aborts_what_is_under_way() -> None:
    with engine.one(EngineOptions()) as it:
        body = {"prompt": "hi", "max_tokens": 50_000, "stream": True}
        connection, answer = post(it.port, body)
        assert answer.read1(10).startswith(b"data: ")
        it.process.send_signal(signal.SIGTERM)
        rest = answer.read()
        connection.close()
        assert it.process.wait(BOUND_SECONDS) == 0
    assert b'"finish_reason":"abort"' in rest.split(b"\n\n")[-3]
    assert rest.endswith(b"data: [DONE]\n\n")


def test_with_a_shutdown_timeout_what_is_under_way_ends_and_new_requests_get_500() -> None:
    with engine.one(EngineOptions(shutdown_timeout=BOUND_SECONDS)) as it:
        body = {"prompt": "hi", "max_tokens": 100, "stream": True}
        connection, answer = post(it.port, body)
        first = answer.read1(10)
        it.process.send_signal(signal.SIGTERM)
        statuses = []
        for _ in range(200):
            refused, refusal = post(it.port, {"prompt": "hi", "max_tokens": 1})
            statuses.append(refusal.status)
            text = refusal.read()
            refused.close()
            if refusal.status == 500:
                break
        assert statuses[-1] == 500
        assert b"cannot schedule new futures after shutdown" in text
        check = http.client.HTTPConnection("127.0.0.1", it.port, timeout=BOUND_SECONDS)
        check.request("GET", "/health")
        assert check.getresponse().status == 200
        check.close()
        whole = first + answer.read()
        connection.close()
        assert it.process.wait(BOUND_SECONDS) == 0
    assert whole.count(b'"finish_reason":null') == 99
    assert b'"finish_reason":"length"' in whole
