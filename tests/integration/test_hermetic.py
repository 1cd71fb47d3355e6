"""The Go router's hermetic integration cases, asked of a real picker process over plain gRPC.

The pods are HTTP servers that show the metrics of a case; what comes back is compared as the model
server or the client would see it. Where we answer otherwise on purpose, the test's name says so.

**Source:** the cases of llm-d-router's hermetic suite, re-expressed; `tests/data/hermetic`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway
from tests.support.metric_pages import MetricPage, metric_pages
from tests.support.served import Served, loads_known, serving
from tests.support.upstream import body_sent, headers_sent, refusal

DATA = Path(__file__).parents[1] / "data" / "hermetic"
OBJECTIVE, REWRITE = "x-llm-d-inference-objective", "x-llm-d-model-name-rewrite"
SUBSET_NAMESPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"

PLAIN = [[3, 0.2], [0, 0.1], [10, 0.2]]  #: sums 1.5, 1.9 and 0.8: the second pod is chosen


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """One line of the table; see the comment there."""

    name: str
    pods: list[list[Any]]
    model: str
    target: str
    subset: list[int] | None = None
    endpoint: int = -1
    why: str = ""
    status: int = 200
    code: str = ""
    reason: str = ""


CASES = msgspec.yaml.decode((DATA / "cases.yaml").read_bytes(), type=list[Case])


class Bench:
    """Three pods, and two pickers that know them: one with our errors, one with the Go router's."""

    def __init__(self, pages: list[MetricPage], ours: Served, theirs: Served) -> None:
        self.pages, self.ours, self.theirs = pages, ours, theirs

    def put(self, pods: Sequence[Sequence[Any]]) -> None:
        """Let the pods show these numbers, and both pickers know them."""
        for page, (queue, usage, *adapters) in zip(self.pages, pods, strict=True):
            page.show(queue, usage, adapters)
        wanted = [
            {
                "queued": float(queue),
                "kv_usage": usage,
                "lora": _lora(adapters),
            }
            for queue, usage, *adapters in pods
        ]
        for picker in (self.ours, self.theirs):
            loads_known(picker, wanted)

    def address(self, index: int) -> str:
        return self.pages[index].address if index < len(self.pages) else "192.0.2.99:8000"

    def subset(self, indices: Sequence[int] | None) -> dict[str, dict[str, Any]] | None:
        if indices is None:
            return None
        return {SUBSET_NAMESPACE: {SUBSET: [self.address(index) for index in indices]}}


def _lora(adapters: Sequence[str]) -> Any:
    return {"active": sorted(adapters), "waiting": [], "max_active": 2} if adapters else None


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    common = ("--secure-serving=false", f"--config-file={DATA / 'config.yaml'}")
    with metric_pages(3) as pages:
        where = f"--endpoints={','.join(page.address for page in pages)}"
        ours, theirs = (tmp_path_factory.mktemp(name) for name in ("ours", "theirs"))
        flags = ("--error-format=text", "--emit-endpoint-scores")
        with (
            serving(ours, where, *common) as first,
            serving(theirs, where, *common, *flags) as second,
        ):
            yield Bench(pages, first, second)


def exchange(picker: Served, *messages: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with Gateway(picker.ports["grpc"]) as gateway:
            return await gateway.exchange(messages)

    return asyncio.run(main())


def head(headers: dict[str, str], **options: Any) -> Any:
    return gw.request_head({"hi": "mom", "x-request-id": "test-request-id", **headers}, **options)


def completion(model: str, prompt: str) -> bytes:
    body = {"max_tokens": 100, "model": model, "prompt": prompt, "temperature": 0}
    return json.dumps(body, separators=(",", ":")).encode()


# --- the table ---------------------------------------------------------------------


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.status == 200])
def test_a_request_goes_to_the_pod_that_the_go_router_would_choose(
    case: Case, bench: Bench
) -> None:
    bench.put(case.pods)
    subset = bench.subset(case.subset)
    asked = head({OBJECTIVE: case.model, REWRITE: case.target}, metadata=subset)
    body = completion(case.model, case.name)
    answers = exchange(bench.ours, asked, gw.request_body(body, ends=True, metadata=subset))
    assert gw.kinds(answers) == ["request_headers", "request_body"]
    assert gw.destination(answers[0]) == bench.address(case.endpoint), case.why
    assert gw.common(answers[0]).clear_route_cache
    assert body_sent(answers) == completion(case.target, case.name)
    sent = headers_sent(asked, answers)
    assert sent["x-gateway-destination-endpoint"] == bench.address(case.endpoint)
    assert (sent["hi"], sent["x-request-id"]) == ("mom", "test-request-id")
    assert "content-length" not in {name.lower() for name in sent}


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.status != 200])
def test_a_request_that_nobody_may_serve_is_refused(case: Case, bench: Bench) -> None:
    bench.put(case.pods)
    subset = bench.subset(case.subset)
    messages = (
        head({OBJECTIVE: case.model, REWRITE: case.target}, metadata=subset),
        gw.request_body(completion(case.model, case.name), ends=True, metadata=subset),
    )
    status, headers, body = refusal(exchange(bench.ours, *messages))
    assert (status, headers["x-llm-d-request-dropped-reason"]) == (case.status, case.reason)
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["error"]["code"] == case.status
    status, headers, body = refusal(exchange(bench.theirs, *messages))
    assert (status, headers["x-llm-d-request-dropped-reason"]) == (case.status, case.reason)
    assert body.startswith(f"inference error: {case.code} - ".encode())


def test_only_a_pod_that_holds_the_prompt_gets_what_prefers_it_available(bench: Bench) -> None:
    bench.put(PLAIN)
    body = gw.request_body(completion("m", "if it is available " * 100), ends=True)
    prefer = {"prefer": "if-available"}
    for picker in (bench.ours, bench.theirs):
        for _ in range(2):  # what was refused is not learned
            status, headers, answer = refusal(exchange(picker, head(prefer), body))
            assert status == 412
            assert "x-llm-d-request-dropped-reason" not in headers
        message = b"no decode worker has the requested KV cache"
        assert message in answer
        first = gw.destination(exchange(picker, head({}), body)[0])
        assert gw.destination(exchange(picker, head(prefer), body)[0]) == first
    assert answer == b"inference error: PreconditionFailed - " + message


# --- bodies ------------------------------------------------------------------------


def test_a_body_in_two_chunks_is_sent_on_whole(bench: Bench) -> None:
    adapters = ["foo", "sql-lora-1fdg3"]
    bench.put([[4, 0.2, *adapters], [4, 0.85, *adapters], [4, 0.9, *adapters]])
    body = completion("sql-lora-sheddable", "two chunks")
    asked = head({OBJECTIVE: "sql-lora-sheddable", REWRITE: "sql-lora-1fdg3"})
    chunks = [gw.request_body(body[:20]), gw.request_body(body[20:], ends=True)]
    answers = exchange(bench.ours, asked, *chunks)
    assert gw.destination(answers[0]) == bench.address(0)
    assert body_sent(answers) == completion("sql-lora-1fdg3", "two chunks")


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_body_that_says_it_is_json_and_is_not_is_refused(whose: str, bench: Bench) -> None:
    bench.put(PLAIN)
    asked = head({"content-type": "application/json", OBJECTIVE: "my-model"})
    body = gw.request_body(b"no healthy upstream", ends=True)
    status, _, text = refusal(exchange(getattr(bench, whose), asked, body))
    assert status == 400
    if whose == "theirs":
        assert text.startswith(b"inference error: BadRequest - ")
    else:
        assert json.loads(text)["error"]["type"] == "BadRequestError"
    assert b"upstream" not in text, "no part of a body is told to anybody"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/completions", b'{"prompt":"test1"}', id="without a model"),
        pytest.param("/v1/completions", b"passthrough-parser", id="no JSON, and none promised"),
        pytest.param("/any/path", b"passthrough-parser", id="a path that no parser claims"),
    ],
)
def test_unlike_the_go_router_what_is_not_understood_is_routed_by_load(
    path: str, body: bytes, bench: Bench
) -> None:
    """The model server knows best what is wrong with it; a picker that is too strict is a fault."""
    bench.put(PLAIN)
    answers = exchange(bench.ours, head({}, path=path), gw.request_body(body, ends=True))
    assert gw.destination(answers[0]) == bench.address(1)
    assert body_sent(answers) == body


@pytest.mark.parametrize(
    "path",
    ["/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed"],
)
def test_grpc_requests_go_by_load_and_end_with_trailers(path: str, bench: Bench) -> None:
    bench.put(PLAIN)
    frame = b"\x00\x00\x00\x00\x04abcd"
    messages = [
        head({"content-type": "application/grpc"}, path=path),
        gw.request_body(frame, ends=True),
        gw.response_head({"content-type": "application/grpc"}),
        gw.response_body(frame),
        gw.response_trailers(),
    ]
    answers = exchange(bench.ours, *messages)
    assert gw.destination(answers[0]) == bench.address(1)
    assert body_sent(answers) == frame
    assert gw.kinds(answers)[2:] == ["response_headers", "response_body", "response_trailers"]
    assert [piece.body for piece in gw.pieces(answers, "response")] == [frame]


def test_a_get_is_answered_at_its_head(bench: Bench) -> None:
    bench.put(PLAIN)
    (answer,) = exchange(bench.ours, head({}, method="GET", path="/v1/models", ends=True))
    assert gw.destination(answer) == bench.address(1)


def test_unlike_the_go_router_a_get_keeps_to_its_subset(bench: Bench) -> None:
    bench.put(PLAIN)
    asked = head({}, method="GET", path="/v1/models", ends=True, metadata=bench.subset([2]))
    (answer,) = exchange(bench.ours, asked)
    assert gw.destination(answer) == bench.address(2)


@pytest.mark.parametrize(
    ("error_format", "told"),
    [
        ("openai", '"code":503'),
        ("text", "inference error: ServiceUnavailable - "),
    ],
)
def test_unlike_the_go_router_a_get_without_pods_is_503_not_500(
    error_format: str, told: str, tmp_path: Path
) -> None:
    """503 is what the protocol says for a pool without endpoints."""
    nobody = tmp_path / "endpoints.yaml"
    nobody.write_text("endpoints: []\n")
    flags = (f"--endpoints-file={nobody}", f"--error-format={error_format}")
    with serving(tmp_path, "--secure-serving=false", *flags) as picker:
        answers = exchange(picker, head({}, method="GET", path="/v1/models", ends=True))
    status, headers, body = refusal(answers)
    assert (status, headers["x-llm-d-request-dropped-reason"]) == (503, "rejected-no-endpoints")
    assert told in body.decode()


# --- answers without a request phase -----------------------------------------------

WHOLE = b'{"usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}}'


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([WHOLE[:30], WHOLE[30:]], id="JSON in two chunks"),
        pytest.param([b"no JSON"], id="not JSON"),
        pytest.param([WHOLE, b""], id="an empty last chunk"),
        pytest.param([b"data: {}\n\n", b"data: " + WHOLE + b"\n\ndata: [DONE]\n\n", b""], id="SSE"),
    ],
)
def test_an_answer_whose_request_was_not_shown_passes_unchanged(
    chunks: list[bytes], bench: Bench
) -> None:
    kind = "text/event-stream" if chunks[0].startswith(b"data:") else "application/json"
    last = len(chunks) - 1
    answers = exchange(
        bench.ours,
        gw.response_head({"content-type": kind}, modes=(gw.DUPLEX, gw.DUPLEX)),
        *(gw.response_body(chunk, ends=i == last) for i, chunk in enumerate(chunks)),
    )
    assert answers[0].WhichOneof("response") == "response_headers"
    assert body_sent(answers, "response") == b"".join(chunks)


# --- metadata ----------------------------------------------------------------------


def scores(answer: Any) -> dict[str, float]:
    fields = answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    told = fields["x-gateway-destination-endpoint-scores"].struct_value.fields
    return {address: value.number_value for address, value in told.items()}


def test_scores_of_every_candidate_are_told_if_asked_for(bench: Bench) -> None:
    bench.put([[0, 0.1], [5, 0.5], [10, 0.9]])
    messages = (head({}), gw.request_body(completion("m", "scores"), ends=True))
    told = scores(exchange(bench.theirs, *messages)[0])
    # queue 1.0, 0.5, 0.0; free cache 0.9, 0.5, 0.1; no prefix and no adapter anywhere
    wanted = {bench.address(0): 1.9, bench.address(1): 1.0, bench.address(2): 0.1}
    assert told == pytest.approx(wanted)
    assert scores(exchange(bench.ours, *messages)[0]) == {}
