"""``epp serve --record-file``: what it writes, and that nothing anybody said is anywhere."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.recording.record import Record
from epp.traffic.files import read_trace
from tests.support import ext_proc as gw
from tests.support.collector import Collector
from tests.support.serving import Serving, complete, eventually, serving, with_engines

SAID = "XyzzyMarker"  #: planted wherever a client or a model says something
NAMED = "PlughMarker"  #: planted in ids that clients make up; logs and metrics may have those
HEADERS = {
    "authorization": f"Bearer {SAID}",
    "cookie": f"session={SAID}",
    "x-custom": SAID,
    "x-gateway-inference-objective": NAMED,
    "x-gateway-inference-fairness-id": NAMED,
    "x-session-id": NAMED,
}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": f"{SAID} " * 200},
        {"role": "user", "content": [{"type": "text", "text": SAID}]},
        {"role": "assistant", "tool_calls": [
            {"id": SAID, "type": "function", "function": {"name": SAID, "arguments": SAID}}]},
        {"role": "tool", "tool_call_id": SAID, "content": SAID},
    ],
    "tools": [{"type": "function", "function": {
        "name": SAID, "description": SAID,
        "parameters": {"type": "object", "properties": {SAID: {"type": "string"}}}}}],
    "user": SAID,
    "metadata": {SAID: SAID},
    "stop": [SAID],
    "stream": True,
}  # fmt: skip
BROKEN = f'{{"model": "m", "prompt": "{SAID}'.encode()
SSE = (
    f'data: {{"choices":[{{"delta":{{"content":"{SAID}"}}}}]}}\n\n'
    f'data: {{"choices":[],"usage":{{"prompt_tokens":900,"completion_tokens":7,'
    f'"prompt_tokens_details":{{"cached_tokens":64}}}}}}\n\ndata: [DONE]\n\n'
).encode()


async def say(picker: Serving, body: bytes, *, status: int = 200) -> None:
    """One whole exchange, with the marker in every place."""
    head = {"content-type": "application/json", "x-request-id": "r-1", **HEADERS}
    async with picker.gateway.stream() as stream:
        await stream.send(
            gw.request_head(head, path=f"/v1/chat/completions?q={SAID}"),
            gw.request_body(body, ends=True),
        )
        first = await stream.read()
        if first.WhichOneof("response") == "immediate_response":
            assert SAID not in str(first)
            return
        await stream.read()
        await stream.send(
            gw.response_head({"content-type": "text/event-stream", "x-said": SAID}, status=status),
            gw.response_body(SSE, ends=True),
        )
        await stream.close()
        await stream.rest()


async def pages(picker: Serving) -> dict[str, str]:
    """Every page of the metrics port that shows something."""
    paths = ("/", "/metrics", "/healthz", "/readyz", "/debug/config", "/debug/pool",
             "/debug/state", "/debug/plugins/state", "/debug/live", "/debug/decisions",
             "/debug/explain?id=r-1")  # fmt: skip
    return {path: (await picker.get(path))[1] for path in paths}


async def some(spans: list[Any]) -> bool:
    return bool(spans)


def recorded(folder: Path) -> dict[str, str]:
    """Every file of the recording, by name, as text."""
    return {
        path.name: (
            gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        ).decode()
        for path in folder.iterdir()
    }


def test_nothing_that_anybody_said_is_in_any_file_log_metric_trace_or_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()

    async def main() -> tuple[dict[str, str], str, list[Any]]:
        async with Collector() as collector:
            collector.traces(monkeypatch)
            flags = (
                f"--record-file={folder / 'r.jsonl'}", "--record-file-size=1000", "-v=5",
                "--tracing=true", "--record-least-sharers=1", "--decision-header=true",
            )  # fmt: skip
            async with serving(tmp_path, *flags) as picker:
                chat = msgspec.json.encode(CHAT)
                for body, status in ((chat, 200), (chat, 500), (BROKEN, 200), (chat, 200)):
                    await say(picker, body, status=status)
                await eventually(lambda: picker.metric("epp_recorded_requests_total"))
                await eventually(lambda: some(collector.spans))
                shown = await pages(picker)
                log = picker.child.log
            return shown, log.read_text(), collector.spans

    shown, log, spans = asyncio.run(main())
    files = recorded(folder)
    lines = [line for text in files.values() for line in text.splitlines()]
    assert len(lines) == 3  # the search below had something to search
    assert len(files) > 2  # a file was put aside, too
    assert spans
    assert "r-1" in log
    assert "r-1" in shown["/debug/decisions"]
    places = {**files, **shown, "log": log, "spans": "\n".join(map(str, spans))}
    assert [name for name, text in places.items() if SAID.lower() in text.lower()] == []
    assert [name for name, text in files.items() if NAMED.lower() in text.lower()] == []


def test_a_conversation_is_recorded_with_what_it_shares(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"

    async def step(picker: Serving) -> None:
        said = "time year people way day man thing woman life child " * 40
        for turn in range(1, 4):
            await complete(picker.gateway, said * turn, name=f"r-{turn}")
        await eventually(lambda: all_recorded(picker, 3))

    async def all_recorded(picker: Serving, count: int) -> bool:
        return await picker.metric("epp_recorded_requests_total") == count

    with_engines(tmp_path, step, f"--record-file={path}", "--record-least-sharers=1")
    first, second, third = read_trace([str(path)]).records
    assert [record.at == 0.0 for record in (first, second, third)] == [True, False, False]
    assert second.hash_ids[: len(first.hash_ids)] == first.hash_ids
    assert third.hash_ids[: len(second.hash_ids)] == second.hash_ids
    assert first.session == second.session == third.session
    assert (second.parent, third.parent) == (first.id, second.id)
    assert [record.reason for record in (first, second)] == ["cold", "longest"]
    assert first.slot == second.slot
    assert _shares(second) > 0.4


def _shares(record: Record) -> float:
    return (record.predicted_tokens or 0) / record.input_tokens


def test_a_file_that_cannot_be_written_ends_the_start_with_one_line(tmp_path: Path) -> None:
    from epp.local.processes import epp  # noqa: PLC0415 - the only test that starts one that fails

    command = epp("serve", "--endpoints=127.0.0.1:1", f"--record-file={tmp_path}/no/r.jsonl",
                  "--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0",
                  "--secure-serving=false")  # fmt: skip

    async def main() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, stderr = await asyncio.wait_for(process.communicate(), 30.0)
        return process.returncode, stderr.decode()

    status, said = asyncio.run(main())
    assert status == 2
    assert "epp: cannot record: " in said
