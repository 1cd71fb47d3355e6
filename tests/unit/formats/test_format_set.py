"""Which parser reads a request, and what becomes of bodies that cannot be read."""

from __future__ import annotations

import gzip

import pytest

from epp.errors import BadRequest
from epp.formats import PARSERS, FormatSet
from epp.formats.anthropic import AnthropicParser
from epp.formats.grpc.vertex import VertexAIParser
from epp.formats.grpc.vllm import VllmGrpcParser
from epp.formats.openai import OpenAIParser
from epp.formats.passthrough import PassthroughParser
from epp.formats.reading import Parser
from epp.model import Arrival, InferenceRequest
from tests.support import build
from tests.support.arrivals import FORMATS, parsed, post

CHAT = "/v1/chat/completions"
GOOD = b'{"model":"m","messages":[{"role":"user","content":"secret"}]}'


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/chat/completions/", "chat"),
        ("/v1/chat/completions?a=b/completions", "chat"),
        ("/tenant-a/v1/chat/completions", "chat"),
        ("/chat/completions", "chat"),
        ("/v1/completions", "completions"),
        ("/v1/responses", "responses"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/messages", "messages"),
        ("/inference/v1/generate", "generate"),
        ("/v1/rerank", "rerank"),
        ("/score", "score"),
        ("/V1/Chat/Completions", "opaque"),
        ("/v1/mycompletions", "opaque"),
        ("/v1/completions/other", "opaque"),
        ("/v1/models", "opaque"),
        ("/", "opaque"),
        ("//", "opaque"),
        ("*", "opaque"),
    ],
)
def test_paths(path: str, format: str) -> None:
    request = parsed(path, GOOD)
    assert request.format == format
    assert (request.unread == "no-parser") is (format == "opaque")
    assert request.path == path.partition("?")[0]


def test_a_very_long_path_is_read_too() -> None:
    assert parsed("/" + "x" * 10_000 + CHAT, GOOD).format == "chat"


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        pytest.param({":path": "/a?x", "x-original-path": "/b"}, "/a", id="its own path"),
        pytest.param({"x-original-path": "/b?x", "x-forwarded-path": "/c"}, "/b", id="original"),
        pytest.param({"x-forwarded-path": "/c"}, "/c", id="forwarded"),
        pytest.param({}, "/v1/completions", id="none"),
    ],
)
def test_where_the_path_is_found(headers: dict[str, str], path: str) -> None:
    assert FORMATS.parse(Arrival("1", headers, b"{}"), 0.0).path == path


def test_the_first_listed_parser_wins_a_tie() -> None:
    class Other(OpenAIParser):
        def parse(self, arrival: Arrival, path: str, now: float) -> InferenceRequest:
            raise AssertionError("the second was asked")

    assert FormatSet([OpenAIParser(), Other()]).parse(post(CHAT, GOOD), 0.0).format == "chat"


def test_the_longest_claimed_suffix_wins() -> None:
    class Short(OpenAIParser):
        def claims(self, path: str) -> int:
            return 3

        def parse(self, arrival: Arrival, path: str, now: float) -> InferenceRequest:
            raise AssertionError("the shorter was asked")

    assert FormatSet([Short(), OpenAIParser()]).parse(post(CHAT, GOOD), 0.0).format == "chat"


def test_only_configured_parsers_read() -> None:
    only = FormatSet([AnthropicParser()])
    assert only.parse(post(CHAT, GOOD), 0.0).unread == "no-parser"
    assert only.parse(post("/v1/messages", GOOD), 0.0).format == "messages"
    assert FormatSet([PassthroughParser()]).parse(post(CHAT, GOOD), 0.0).format == "opaque"


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.type)
def test_parsers_are_plugins(parser: type) -> None:
    made = parser(parser.Params(), build.tools())  # type: ignore[attr-defined]
    assert made.claims("/nobody/reads/this") == 0
    unread = made.parse(post("/nobody", b"{}"), "/nobody", 0.0)
    assert unread.unread == "no-parser"
    assert made.stability in {"alpha", "beta", "stable"}


@pytest.mark.parametrize(
    ("content_type", "unread"),
    [
        (None, ""),
        ("application/json", ""),
        ("application/json; charset=utf-8", ""),
        ('application/json;charset="UTF-8"', ""),
        ("APPLICATION/JSON", ""),
        ("application/vnd.api+json", ""),
        ("application/json; charset=utf-16", "charset"),
        ("application/jsonl", "content-type"),
        ("text/plain", "content-type"),
        ("application/x-www-form-urlencoded", "content-type"),
    ],
)
def test_content_types(content_type: str | None, unread: str) -> None:
    request = parsed(CHAT, GOOD, content_type=content_type)
    assert request.unread == unread
    assert (request.model == "m") is (unread == "")
    assert request.body == GOOD
    assert request.format == "chat"


@pytest.mark.parametrize(
    ("body", "unread"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"[1]", "not-an-object", id="list"),
        pytest.param(b'"text"', "not-an-object", id="string"),
        pytest.param(b"null", "not-an-object", id="null"),
        pytest.param(b"5", "not-an-object", id="number"),
        pytest.param(b"\xff\xfe{\0}\0", "charset", id="utf-16 with mark"),
        pytest.param(b"{\0}\0", "charset", id="utf-16"),
        pytest.param(b'{"model":"\\ud800"}', "bad-text", id="lone surrogate"),
        pytest.param(b'{"model":"\\ud800abcdefgh"}', "bad-text", id="lone surrogate in a word"),
        pytest.param(b'{"other":"\\ud800abcdefgh"}', "bad-text", id="skipped lone surrogate"),
        pytest.param(b'{"model":"\\udc00\\ud800abcdefg"}', "bad-text", id="pair the wrong way"),
        pytest.param(b'{"model":"\xff"}', "bad-text", id="no utf-8"),
        pytest.param(b'{"messages":[{"role":"\xff"}]}', "bad-text", id="no utf-8 in a role"),
        pytest.param(b'{"messages":[{"name":"\xff"}]}', "bad-text", id="no utf-8 in a name"),
    ],
)
def test_unreadable_bodies_are_routed_with_the_reason(body: bytes, unread: str) -> None:
    request = parsed(CHAT, body)
    assert request.unread == unread
    assert request.format == "chat"
    assert request.body == body
    assert request.prompt == b""


def test_a_byte_order_mark_is_no_obstacle() -> None:
    assert parsed(CHAT, b"\xef\xbb\xbf" + GOOD).prompt == parsed(CHAT, GOOD).prompt


def test_a_compressed_body_is_not_decoded() -> None:
    request = parsed(CHAT, gzip.compress(GOOD), headers={"content-encoding": "gzip"})
    assert request.unread == "encoded"
    assert parsed(CHAT, GOOD, headers={"content-encoding": "Identity"}).unread == ""


def test_a_body_that_is_not_shown_is_not_missed() -> None:
    arrival = Arrival("1", {":path": CHAT}, body_hidden=True)
    request = FORMATS.parse(arrival, 0.0)
    assert (request.unread, request.format) == ("hidden", "chat")


@pytest.mark.parametrize(
    ("body", "where"),
    [
        pytest.param(b'{"model": secret}', "byte 10 of 17", id="bare word"),
        pytest.param(b'{"model":"secret"', "its end of 17", id="cut off"),
        pytest.param(b'{"model":"secret"} x', "byte 20 of 20", id="more after it"),
        pytest.param(b"secret", "byte 0 of 6", id="no JSON at all"),
        pytest.param(b'{"model":"\\q"}', "byte 12 of 14", id="unknown escape"),
        pytest.param(b"  ", "its end of 2", id="blank"),
        pytest.param(b'{"messages":5,"model":secret}', "byte 22 of 29", id="wrong shape first"),
    ],
)
def test_broken_json_is_refused_by_position(body: bytes, where: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(CHAT, body)
    assert str(caught.value).endswith(where)
    assert "secret" not in str(caught.value)


def test_broken_json_that_does_not_say_it_is_json_is_routed() -> None:
    assert parsed(CHAT, b"not json", content_type=None).unread == "bad-json"


def test_broken_json_on_an_unknown_path_is_routed() -> None:
    assert parsed("/v1/other", b"{").unread == "no-parser"


@pytest.mark.parametrize(
    ("path", "computed"),
    [
        ("/v1/chat/completions", True),
        ("/v1/completions", True),
        ("/v1/messages", True),
        ("/v1/chat/completions/render", False),
        ("/v1/completions/render", False),
        ("/v1/messages/count_tokens", False),
    ],
)
def test_a_prompt_that_is_only_counted_or_rendered_is_not_computed(
    path: str, computed: bool
) -> None:
    body = {"model": "m", "prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
    read = parsed(path, body)
    assert read.prompt
    assert read.computed is computed


@pytest.mark.parametrize(
    ("parsers", "protocol", "unfit"),
    [
        ((), "http", ()),
        ((), "kubernetes.io/h2c", ()),
        ((OpenAIParser(), VllmGrpcParser()), "http", ("vllmgrpc-parser",)),
        ((VertexAIParser(),), "http", ("vertexai-parser",)),
        ((VllmGrpcParser(), VertexAIParser()), "kubernetes.io/h2c", ()),
        ((VllmGrpcParser(),), "", ()),  # not told
        ((PassthroughParser(),), "anything", ()),  # reads nothing
    ],
)
def test_which_parsers_can_read_nothing_of_a_pool(
    parsers: tuple[Parser, ...], protocol: str, unfit: tuple[str, ...]
) -> None:
    assert FormatSet(parsers).unfit(protocol) == unfit
