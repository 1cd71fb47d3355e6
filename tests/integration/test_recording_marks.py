"""A marker in every place where somebody says something, and in every way of writing it.

Beyond `test_recording`: other scripts, media, tool results, compressed bodies, other APIs, errors of
engines, headers of 60 KB, names of adapters; and what `epp traffic` makes of the recording.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from epp.cli import main
from epp.local.processes import epp, running
from epp.sim.options import EngineOptions
from tests.support import engine
from tests.support import ext_proc as gw
from tests.support.collector import Collector
from tests.support.serving import Serving, eventually, serving

SAID = "Xyzzy本物Ünique"  #: said by clients and models
NAMED = "Plugh券Märker"  #: in ids that clients make up, and the name of an adapter
LONG = f"{SAID} " * 3000  #: 60 KB of a header


def ways(mark: str) -> Iterator[bytes]:
    """How a marker may stand in a file: as it is, escaped, or encoded."""
    raw = mark.encode()
    yield from (raw, raw.hex().encode(), urllib.parse.quote(mark).encode())
    yield msgspec.json.encode(mark)[1:-1]
    yield mark.encode("unicode_escape")
    yield repr(raw)[2:-1].encode()
    yield str(mark).encode("ascii", "backslashreplace")
    yield "".join(f"\\{byte:03o}" if byte > 127 else chr(byte) for byte in raw).encode()  # protobuf
    yield mark[:5].encode()  # its plain part alone
    for start in range(3):  # base64, wherever in a longer text it begins
        whole = base64.b64encode(b"_" * start + raw)
        yield whole[4 : len(whole) // 4 * 4 - 4]


def holds(data: bytes, mark: str) -> bool:
    lower = data.lower()
    return any(way.lower() in lower for way in ways(mark))


MEDIA = base64.b64encode(SAID.encode() * 100).decode()
TOOL = {"type": "function", "function": {"name": SAID, "description": SAID, "parameters": {
    "type": "object", "properties": {SAID: {"type": "string", "enum": [SAID]}}}}}  # fmt: skip
PARTS = [
    {"type": "text", "text": SAID},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{MEDIA}"}},
    {"type": "input_audio", "input_audio": {"data": MEDIA, "format": "wav"}},
    {"type": SAID, SAID: SAID},
]
CHAT = {
    "model": NAMED, "stream": True, "tools": [TOOL], "user": SAID, "metadata": {SAID: SAID},
    "response_format": {"type": "json_schema", "json_schema": {"name": SAID, "schema": {}}},
    "messages": [
        {"role": "system", "content": f"{SAID} " * 100},
        {"role": "user", "name": SAID, "content": PARTS},
        {"role": "assistant", "content": None, "reasoning_content": SAID, "tool_calls": [
            {"id": SAID, "type": "function", "function": {"name": SAID, "arguments": SAID}}]},
        {"role": "tool", "tool_call_id": SAID, "content": [{"type": "text", "text": SAID}]},
    ],
}  # fmt: skip
RESPONSES = {
    "model": NAMED, "instructions": SAID * 40, "previous_response_id": SAID, "input": [
        {"role": "user", "content": [{"type": "input_text", "text": SAID},
                                     {"type": "input_image", "image_url": MEDIA}]},
        {"type": "function_call", "call_id": SAID, "name": SAID, "arguments": SAID},
        {"type": "function_call_output", "call_id": SAID, "output": SAID},
    ],
}  # fmt: skip
ANTHROPIC = {
    "model": NAMED, "max_tokens": 5, "system": [{"type": "text", "text": SAID * 40}],
    "messages": [
        {"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": MEDIA}},
            {"type": "text", "text": SAID}]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": SAID, "name": SAID, "input": {SAID: SAID}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": SAID, "content": SAID}]},
    ],
}  # fmt: skip
WRONG = {"model": NAMED, "messages": [{"role": SAID, "content": {SAID: SAID}}], "stream": SAID}

BODIES: list[tuple[str, Any]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", WRONG),
    ("/v1/responses", RESPONSES),
    ("/v1/messages", ANTHROPIC),
    ("/v1/completions", {"model": NAMED, "prompt": [SAID * 30, SAID], "suffix": SAID}),
    ("/v1/embeddings", {"model": NAMED, "input": [SAID * 30, SAID]}),
    ("/v1/rerank", {"model": NAMED, "query": SAID * 30, "documents": [SAID, SAID]}),
    (f"/v1/{urllib.parse.quote(SAID)}", {"prompt": SAID}),
]
DELTA = {"choices": [{"delta": {"content": SAID, "reasoning_content": SAID, "tool_calls": [
    {"id": SAID, "function": {"name": SAID, "arguments": SAID}}]}}]}  # fmt: skip
USAGE = {"usage": {"prompt_tokens": 900, "completion_tokens": 7}, "choices": []}
STREAMED = b"".join(b"data: " + msgspec.json.encode(each) + b"\n\n" for each in (DELTA, USAGE))
ERROR = msgspec.json.encode({"error": {"message": SAID, "type": SAID, "param": SAID, "code": SAID}})
ANSWERS: list[tuple[int, str, bytes]] = [
    (200, "text/event-stream", STREAMED),
    (200, "application/json", msgspec.json.encode({**DELTA, **USAGE})),
    (400, "application/json", ERROR),
    (503, "text/plain", SAID.encode()),
    (200, "application/json", b'{"usage": {"prompt_tokens": "' + SAID.encode() + b'"'),
]


def headers(name: str) -> list[tuple[str, str | bytes]]:
    return [
        ("content-type", "application/json"), ("x-request-id", name),
        ("authorization", f"Bearer {SAID}"), ("x-custom", LONG), ("cookie", f"a={LONG}"),
        ("x-binary", SAID.encode("utf-16")), ("user-agent", SAID), ("referer", f"http://{SAID}/"),
        ("x-gateway-inference-objective", NAMED), ("x-gateway-inference-fairness-id", NAMED),
        ("x-session-id", NAMED),
    ]  # fmt: skip


async def say(
    picker: Serving, name: str, path: str, body: bytes, answer: int, *, packed: bool
) -> None:
    status, kind, data = ANSWERS[answer]
    head = headers(name)
    if packed:
        head.append(("content-encoding", "gzip"))
        body = gzip.compress(body)
    async with picker.gateway.stream() as stream:
        await stream.send(
            gw.request_head(head, path=f"{path}?q={urllib.parse.quote(SAID)}"),
            gw.request_body(body, ends=True),
        )
        first = await stream.read()
        if first.WhichOneof("response") == "immediate_response":
            assert not holds(str(first).encode(), SAID)
            return
        await stream.read()
        await stream.send(
            gw.response_head([("content-type", kind), ("x-said", LONG)], status=status),
            gw.response_body(data, ends=True),
        )
        await stream.close()
        await stream.rest()


PAGES = ("/", "/metrics", "/readyz", "/debug/config", "/debug/pool", "/debug/state", "/debug/live",
         "/debug/plugins/state", "/debug/decisions", "/debug/explain?id=r-0-0")  # fmt: skip


def files_of(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in folder.iterdir():
        data = path.read_bytes()
        found[path.name] = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return found


def test_a_marker_is_found_in_each_of_its_ways() -> None:
    for said in (SAID, f"a{SAID}z", f"-+{SAID} x"):
        for written in (
            said.encode(), base64.b64encode(said.encode()), repr(said.encode()).encode(),
            ascii(said).encode(), urllib.parse.quote(said).encode(), said.encode().hex().encode(),
        ):  # fmt: skip
            assert holds(b"..." + written + b"...", SAID)
    assert not holds(b"nothing of it", SAID)


def test_no_way_of_saying_something_brings_it_into_any_file_log_metric_span_or_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()

    async def story() -> tuple[dict[str, bytes], bytes]:
        async with Collector() as collector:
            collector.traces(monkeypatch)
            flags = (
                f"--record-file={folder / 'r.jsonl'}", "--record-file-size=3000", "-v=5",
                "--tracing=true", "--record-least-sharers=1", "--decision-header=true",
            )  # fmt: skip
            async with serving(tmp_path, *flags) as picker:
                for i, (path, body) in enumerate(BODIES):
                    for answer in range(len(ANSWERS)):
                        data = msgspec.json.encode(body)
                        await say(picker, f"r-{i}-{answer}", path, data, answer, packed=answer == 1)

                async def recorded() -> bool:
                    return (await picker.metric("epp_recorded_requests_total") or 0) > 20

                await eventually(recorded)
                shown = {path: (await picker.get(path))[1].encode() for path in PAGES}
                log = picker.child.log
            spans = "\n".join(map(str, collector.spans)).encode()
            assert spans
            return {**shown, "spans": spans}, log.read_bytes()

    shown, log = asyncio.run(story())
    files = files_of(folder)
    assert len(files) > 2
    places = {**files, **shown, "log": log}
    assert [name for name, data in places.items() if holds(data, SAID)] == []
    assert [name for name, data in files.items() if holds(data, NAMED)] == []
    _studied(tmp_path, folder)


def _studied(tmp_path: Path, recording: Path) -> None:
    """What `epp traffic` makes of the recording: models, traces, and what a replay sends."""
    out = tmp_path / "out"
    out.mkdir()
    tape, model = str(recording), str(out / "m.yaml")
    for keep in ("shapes", "tables", "mixtures"):
        fitted = ["traffic", "fit", tape, "--keep", keep, "--output", model]
        assert main(fitted) == 0
        assert not holds(Path(model).read_bytes(), SAID)
    for to in ("mooncake", "epp", "aiperf", "inference-perf"):
        assert main(["traffic", "convert", tape, "--to", to, "--output", str(out / to)]) == 0
    synth = ["traffic", "synth", "--model", model, "--seconds", "5"]
    assert main([*synth, "--output", str(out / "s")]) == 0

    async def replayed() -> int:
        async with engine.served(EngineOptions(models=("m",))) as ((_, port),):
            command = ["traffic", "replay", str(out / "mooncake"), "--model=m", "--requests=8",
                       f"--url=http://127.0.0.1:{port}", "--speed=100", "--think-speed=100",
                       f"--output={out / 'replayed'}"]  # fmt: skip
            return await asyncio.to_thread(main, command)

    assert asyncio.run(replayed()) == 0
    made = files_of(out)
    assert len(made) == 7
    assert [name for name, data in made.items() if holds(data, SAID) or holds(data, NAMED)] == []


def test_a_mirror_tells_nothing_of_what_it_passes_on(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.read())
        return web.Response(status=400 if len(seen) % 2 else 200, body=ERROR, headers={"x-a": "b"})

    async def story() -> bytes:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        command = epp(
            "traffic", "mirror", f"--to=http://127.0.0.1:{runner.addresses[0][1]}",
            "--tenants=*", "--share=1", "--listen-port=0",
        )  # fmt: skip
        log = tmp_path / "mirror.log"
        async with running(command, log) as child, aiohttp.ClientSession() as http:
            url = child.first_line.split()[-1]
            for path, body in BODIES:
                sent = {"authorization": SAID.encode().hex(), "content-encoding": "gzip"}
                data = gzip.compress(msgspec.json.encode(body))
                async with http.post(f"{url}{path}", data=data, headers=sent) as said:
                    assert said.status == 204
                    assert not holds(await said.read(), SAID)
            await _garbage(url)

            async def asked() -> bool:
                async with http.get(f"{url}/-/metrics") as page:
                    return "epp_mirror_in_flight 0.0" in await page.text() and len(seen) >= len(
                        BODIES
                    )

            await eventually(asked)
            async with http.get(f"{url}/-/metrics") as page:
                metrics = await page.read()
        await runner.cleanup()
        return metrics + child.first_line.encode() + log.read_bytes()

    told = asyncio.run(asyncio.wait_for(story(), 90.0))
    assert all(holds(body, SAID) for body in seen)  # it was passed on
    assert b'outcome="refused"' in told
    assert not holds(told, SAID)


async def _garbage(url: str) -> None:
    """What is no HTTP, or ends in the middle, must not come into a log either."""
    host, port = url.removeprefix("http://").split(":")
    for data in (
        f"POST /v1 HTTP/1.1\r\nHost: a\r\nbad header {SAID}\r\n\r\n".encode(),
        f"{SAID} / HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
        f"POST /{SAID} HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n{SAID}".encode(),
        f"POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{SAID}\r\n".encode(),
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), 10.0)
        assert b"Traceback" not in said
        writer.close()
