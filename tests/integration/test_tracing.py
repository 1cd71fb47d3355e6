"""Traces of requests through a real ext_proc socket: which spans, whose children, with what."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from epp.errors import NoEndpoints, Saturated
from tests.support import build
from tests.support import ext_proc as gw
from tests.support import serving as real
from tests.support.collector import Collector
from tests.support.ext_proc import Gateway
from tests.support.spans import CALLER, SAMPLED, TRACE, UNSAMPLED, Traced

PROMPT = "a-secret-prompt"
BODY = json.dumps({"model": "llama", "prompt": PROMPT}).encode()
USAGE = b'{"usage":{"prompt_tokens":7,"completion_tokens":5}}'


def served(traced: Traced, step: Callable[[Gateway], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        async with traced.picker.serving() as gateway:
            found = await step(gateway)
            await gw.until(lambda: traced.picker.service.active == 0)
            return found

    return asyncio.run(main())


def asked(
    traced: Traced, headers: dict[str, str] | None = None, body: bytes = BODY, status: int = 200
) -> list[Any]:
    """One whole exchange; the picker's answers."""
    head = gw.request_head({"content-type": "application/json", **(headers or {})})

    async def step(gateway: Gateway) -> list[Any]:
        async with gateway.stream() as stream:
            await stream.send(head, gw.request_body(body, ends=True))
            first = [await stream.read(), await stream.read()]
            await stream.send(
                gw.response_head({"content-type": "application/json"}, status=status),
                gw.response_body(USAGE, ends=True),
            )
            await stream.close()
            return first + await stream.rest()

    answers: list[Any] = served(traced, step)
    return answers


def refused(traced: Traced, headers: dict[str, str] | None = None, body: bytes = BODY) -> Any:
    """A request that is not forwarded; the status of the answer."""
    given = {"traceparent": SAMPLED, "content-type": "application/json", **(headers or {})}
    head = gw.request_head(given)

    async def step(gateway: Gateway) -> Any:
        async with gateway.stream() as stream:
            await stream.send(head)
            if not headers:
                await stream.send(gw.request_body(body, ends=True))
            return (await stream.read()).immediate_response.status.code

    return served(traced, step)


def test_every_part_of_the_line_has_its_span_under_the_right_parent() -> None:
    traced = Traced()
    asked(traced, {"traceparent": SAMPLED})
    assert traced.tree() == {
        "gateway.request": "",
        "gateway.request_orchestration": "gateway.request",
        "parse_request": "gateway.request_orchestration",
        "llm_d.epp.producer.approx-prefix-cache-producer": "gateway.request_orchestration",
        "schedule_request": "gateway.request_orchestration",
        "run_scheduler_profile": "schedule_request",
        **({"filter_endpoints": "run_scheduler_profile"} if filters(traced) else {}),
        **{f"llm_d.epp.scorer.{type_}": "run_scheduler_profile" for type_ in scorers(traced)},
        "pick_endpoints": "run_scheduler_profile",
    }


def filters(traced: Traced) -> list[str]:
    return [each.type for each in traced.pipeline.scheduler.profiles["default"].filters]


def scorers(traced: Traced) -> list[str]:
    """Types of the default profile's scorers, each once."""
    profile = traced.pipeline.scheduler.profiles["default"]
    types = [scorer.type for scorer, _ in profile.scorers]
    assert len(types) >= 2
    return types


def test_the_request_s_span_is_a_server_s_and_says_how_it_ended() -> None:
    traced = Traced()
    asked(traced, {"traceparent": SAMPLED, "x-request-id": "r-7"})
    span = traced.one("gateway.request")
    assert span.kind is SpanKind.SERVER
    assert span.status.status_code is StatusCode.UNSET
    found = dict(span.attributes or {})
    assert found["gen_ai.request.model"] == "llama"
    assert found["gen_ai.request.id"] == "r-7"
    assert found["llm_d.epp.outcome"] == "completed"
    assert found["http.response.status_code"] == 200
    assert found["gen_ai.usage.input_tokens"] == 7
    assert found["gen_ai.usage.output_tokens"] == 5
    assert found["llm_d.epp.response_bytes"] == len(USAGE)
    assert found["llm_d.epp.destination"] == "10.0.0.1:8000"


def test_b196_the_caller_is_the_parent_and_the_picker_is_the_next_one_s() -> None:
    traced = Traced()
    answers = asked(traced, {"traceparent": SAMPLED, "tracestate": "vendor=1"})
    span = traced.one("gateway.request")
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == CALLER
    sent = gw.set_headers(answers[0])["traceparent"]
    assert sent == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert "tracestate" not in gw.set_headers(answers[0])  # it goes on as it came
    assert "tracestate" not in gw.removed(answers[0])


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    traced = Traced(ratio=1.0)
    answers = asked(traced, {"traceparent": UNSAMPLED})
    assert traced.spans() == []
    version, trace, caller, flags = gw.set_headers(answers[0])["traceparent"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "00")
    assert caller != CALLER


def test_a_request_without_a_trace_begins_one_by_the_ratio() -> None:
    for ratio, sampled in ((1.0, True), (0.0, False)):
        traced = Traced(ratio=ratio)
        answers = asked(traced)
        flags = gw.set_headers(answers[0])["traceparent"].split("-")[3]
        assert bool(int(flags, 16) & 1) is sampled
        assert bool(traced.spans()) is sampled


@pytest.mark.parametrize("broken", ["", "nonsense", f"00-{'0' * 32}-{CALLER}-01", "\udcff"])
def test_a_broken_traceparent_begins_a_new_trace(broken: str) -> None:
    traced = Traced(ratio=1.0)
    head = gw.request_head(
        {"traceparent": broken.encode("utf-8", "surrogateescape").decode("latin-1")}
    )

    async def step(gateway: Gateway) -> list[Any]:
        return await gateway.exchange([head, gw.request_body(BODY, ends=True)])

    answers = served(traced, step)
    assert traced.one("gateway.request").parent is None
    assert TRACE not in gw.set_headers(answers[0])["traceparent"]


class Refusing:
    """A gate that fails every request in one way."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def must_wait(self, request: Any, endpoints: Any) -> bool:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status", "kind", "reason"),
    [
        (Saturated("full"), 429, "Saturated", "rejected-saturated"),
        (NoEndpoints("nobody"), 503, "NoEndpoints", "rejected-no-endpoints"),
        (ZeroDivisionError(PROMPT), 500, "Internal", None),
    ],
)
def test_b197_a_refused_request_looks_failed_in_its_trace(
    error: Exception, status: int, kind: str, reason: str | None
) -> None:
    traced = Traced()
    traced.picker.router.reload(with_gate(traced, error))
    assert refused(traced) == status
    span = traced.one("gateway.request")
    assert span.status.status_code is StatusCode.ERROR
    found = dict(span.attributes or {})
    assert found["error.type"] == kind
    assert found["http.response.status_code"] == status
    assert found["llm_d.epp.outcome"] == "refused"
    assert found.get("llm_d.epp.dropped_reason") == reason
    orchestration = traced.one("gateway.request_orchestration")
    assert orchestration.status.status_code is StatusCode.ERROR
    assert PROMPT not in "".join(span.to_json() for span in traced.spans())


def with_gate(traced: Traced, error: Exception) -> Any:
    return msgspec.structs.replace(traced.pipeline, gate=Refusing(error))


def test_b197_a_body_that_is_not_json_or_too_large_looks_failed() -> None:
    traced = Traced()
    assert refused(traced, body=b"{not json") == 400
    span = traced.one("gateway.request")
    assert dict(span.attributes or {})["error.type"] == "BadRequest"
    assert span.status.status_code is StatusCode.ERROR

    traced = Traced()
    assert refused(traced, {"content-length": str(2**40)}) == 413
    span = traced.one("gateway.request")
    assert dict(span.attributes or {})["http.response.status_code"] == 413
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == CALLER


def test_b197_an_error_of_the_engine_looks_failed() -> None:
    traced = Traced()
    asked(traced, {"traceparent": SAMPLED}, status=500)
    span = traced.one("gateway.request")
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] == "500"
    assert dict(span.attributes or {})["llm_d.epp.outcome"] == "failed"


def test_b197_a_span_ends_when_the_client_leaves_before_or_after_the_pick() -> None:
    for messages in (1, 2):
        traced = Traced()

        async def step(gateway: Gateway, messages: int = messages) -> None:
            async with gateway.stream() as stream:
                await stream.send(gw.request_head({"traceparent": SAMPLED}))
                if messages == 2:
                    await stream.send(gw.request_body(BODY, ends=True))
                    await stream.read()
                else:
                    await gw.until(lambda: traced.picker.service.active == 1)  # noqa: B023
                    await stream.quiet()

        served(traced, step)
        found = dict(traced.one("gateway.request").attributes or {})
        assert found["llm_d.epp.outcome"] == "abandoned"


def test_no_span_holds_a_part_of_the_prompt() -> None:
    traced = Traced()
    asked(traced, {"traceparent": SAMPLED})
    assert PROMPT not in "".join(span.to_json() for span in traced.spans())
    assert traced.one("parse_request").attributes


def test_spans_of_scorers_and_the_picker_say_what_was_weighed() -> None:
    pool = [build.endpoint(f"e{i}", host=f"10.0.0.{i}", queued=i) for i in range(1, 8)]
    traced = Traced(endpoints=pool)
    asked(traced, {"traceparent": SAMPLED})
    scored = dict(traced.one(f"llm_d.epp.scorer.{scorers(traced)[0]}").attributes or {})
    assert scored["llm_d.epp.scorer.candidate_endpoints"] == 7
    assert (
        0.0 <= scored["llm_d.epp.scorer.score_min"] <= scored["llm_d.epp.scorer.score_max"] <= 1.0
    )
    picked = dict(traced.one("pick_endpoints").attributes or {})
    assert len(picked["llm_d.epp.picker.top_endpoints"]) == 5
    scores = picked["llm_d.epp.picker.top_scores"]
    assert list(scores) == sorted(scores, reverse=True)
    assert picked["llm_d.epp.picker.chosen"][0] in picked["llm_d.epp.picker.top_endpoints"]


FILTERED = """
plugins:
- type: label-selector-filter
  parameters: {matchLabels: {zone: a}}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: label-selector-filter
  - pluginRef: queue-scorer
    weight: 3
"""


def test_spans_of_filters_say_how_many_they_left_and_of_scorers_their_weight() -> None:
    labels = [{"zone": "a"}, {"zone": "b"}, {"zone": "a"}]
    pool = [
        build.endpoint(f"e{i}", host=f"10.0.0.{i}", labels=each) for i, each in enumerate(labels)
    ]
    traced = Traced(FILTERED, endpoints=pool)
    asked(traced, {"traceparent": SAMPLED})
    filtered = dict(traced.one("filter_endpoints").attributes or {})
    assert filtered["llm_d.epp.filter.type"] == "label-selector-filter"
    assert filtered["llm_d.epp.filter.candidate_endpoints"] == 3
    assert filtered["llm_d.epp.filter.kept_endpoints"] == 2
    scored = dict(traced.one("llm_d.epp.scorer.queue-scorer").attributes or {})
    assert scored["llm_d.epp.scorer.weight"] == 3.0
    assert scored["llm_d.epp.scorer.candidate_endpoints"] == 2


class Identities:
    """An observer that knows exchanges by the identity of their pick."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.strangers = 0

    def picked(self, request: Any, pick: Any) -> None:
        self.open.add(id(pick))

    def ended(self, request: Any, pick: Any, ending: Any) -> None:
        self.strangers += id(pick) not in self.open
        self.open.discard(id(pick))


@pytest.mark.parametrize("parent", [SAMPLED, UNSAMPLED])
def test_observers_meet_the_pick_again_that_they_heard_of(parent: str) -> None:
    observer = Identities()
    asked(Traced(observers=(observer,)), {"traceparent": parent})
    assert (observer.open, observer.strangers) == (set(), 0)


def test_many_streams_at_once_keep_their_spans_apart() -> None:
    traced = Traced()

    async def step(gateway: Gateway) -> None:
        async def one(number: int) -> None:
            parent = f"00-{number:032x}-{CALLER}-01"
            head = gw.request_head({"traceparent": parent, "x-request-id": f"r-{number}"})
            async with gateway.stream() as stream:
                await stream.send(head, gw.request_body(BODY, ends=True))
                answer = await stream.read()
                assert f"{number:032x}" in gw.set_headers(answer)["traceparent"]
                await stream.close()
                await stream.rest()

        await asyncio.gather(*(one(number) for number in range(1, 33)))

    served(traced, step)
    by_trace: dict[int, set[str]] = {}
    for span in traced.spans():
        by_trace.setdefault(span.context.trace_id, set()).add(span.name)
    assert set(by_trace) == set(range(1, 33))
    assert len({frozenset(names) for names in by_trace.values()}) == 1


# --- the real process --------------------------------------------------------------------


def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def test_a_running_picker_sends_spans_to_the_collector_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(monkeypatch)

    async def main() -> None:
        async with Collector() as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
            monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
            monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
            async with real.serving(tmp_path, "-v=4") as picker:
                await real.complete(picker.gateway, PROMPT, name="r-9")
                await gw.until(lambda: "gateway.request" in {s.name for s in collector.spans})
                log = [json.loads(line) for line in picker.log().splitlines()]
            (root,) = (s for s in collector.spans if s.name == "gateway.request")
            assert collector.services == {"llm-d-epp"}
            (picked,) = (line for line in log if line["msg"] == "picked")
            assert picked["x-request-id"] == "r-9"
            assert picked["trace_id"] == root.trace_id.hex()
            assert not any("trace_id" in line for line in log if line["msg"] == "serving")

    asyncio.run(main())


def test_a_collector_that_is_gone_stops_neither_traffic_nor_the_picker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(monkeypatch)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")

    async def main() -> None:
        async with real.serving(tmp_path) as picker:
            for _ in range(20):
                await real.complete(picker.gateway, PROMPT)
            before = asyncio.get_running_loop().time()
            picker.child.process.terminate()
            assert await asyncio.wait_for(picker.child.process.wait(), 20.0) == 0
            assert asyncio.get_running_loop().time() - before < 10.0

    asyncio.run(main())


OFF = """
import asyncio, sys
from epp.app import App
from epp.serve.options import ServeOptions

async def main():
    app = App(ServeOptions(endpoints="127.0.0.1:9"))
    service = app._service()
    assert app.tracing is None and service.tracing is None and service.router is app.pools.router

asyncio.run(main())
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "cel")))
"""


def test_a_picker_that_is_not_asked_to_trace_imports_no_opentelemetry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet(monkeypatch)
    said = subprocess.run(
        [sys.executable, "-c", OFF], capture_output=True, text=True, timeout=30, check=True
    )
    assert said.stdout.strip() == "[]"


def test_a_picker_that_does_not_trace_leaves_traceparent_alone() -> None:
    picker = gw.Picker()

    async def main() -> list[Any]:
        async with picker.serving() as gateway:
            head = gw.request_head({"traceparent": SAMPLED})
            return await gateway.exchange([head, gw.request_body(BODY, ends=True)])

    answers = asyncio.run(main())
    assert "traceparent" not in gw.set_headers(answers[0])
    assert "traceparent" not in gw.removed(answers[0])


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from epp.cli import main
sys.exit(main(["serve", "--endpoints=127.0.0.1:9", "--tracing"]))
"""


def test_without_the_extra_a_picker_that_is_asked_to_trace_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet(monkeypatch)
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 2
    assert "pip install '.[tracing]'" in ended.stderr.splitlines()[-1]
