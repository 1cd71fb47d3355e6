"""Request formats: bytes in, `InferenceRequest` out. Pure.

`FormatSet` finds the parser by the path and never refuses a path. Files: one per family of APIs,
`grpc` (those in protobuf), `prompt` (what prefix matching sees), `reading` (what all share),
`splice` (model rewrite), `sse` and `usage` (the answer).
"""

from __future__ import annotations

from collections.abc import Sequence

from epp.formats import multipart
from epp.formats.anthropic import AnthropicParser
from epp.formats.generate import SglangHttpParser, VllmHttpParser
from epp.formats.grpc.vertex import VertexAIParser
from epp.formats.grpc.vllm import VllmGrpcParser
from epp.formats.openai import OpenAIParser
from epp.formats.passthrough import PassthroughParser
from epp.formats.reading import Parser, remembered
from epp.formats.rerank import RerankParser
from epp.formats.weight import is_heavy
from epp.model import Arrival, InferenceRequest
from epp.plugin import type_of

PARSERS: tuple[type, ...] = (
    OpenAIParser,
    AnthropicParser,
    VllmHttpParser,
    SglangHttpParser,
    VllmGrpcParser,
    VertexAIParser,
    PassthroughParser,
    RerankParser,
)
"""Every built-in parser plugin."""

DEFAULT_PATH = "/v1/completions"  #: of a request that tells none anywhere
"""Where a gateway that rewrites paths leaves the client's own."""
_PATH_HEADERS = (":path", "x-original-path", "x-forwarded-path")
HEADERS = (*_PATH_HEADERS, "content-type", "content-encoding")  #: all that parsers look at


DEFAULTS: tuple[Parser, ...] = (OpenAIParser(), AnthropicParser(), VllmHttpParser())
_PASSTHROUGH: Parser = PassthroughParser()


class FormatSet:
    """All formats that one configuration reads.

    Args:
        parsers: in the order configured; the longest claimed suffix wins, the first on ties.
            Without any, OpenAI, Anthropic and vLLM are read.
    """

    def __init__(self, parsers: Sequence[Parser] = ()) -> None:
        self._chosen = chosen = parsers or DEFAULTS
        own = any(type(parser) not in PARSERS for parser in chosen)
        self._types = () if own else tuple(type_of(parser) for parser in chosen)
        self._parsers = (*chosen, RerankParser())
        self._parser_for = remembered(self._find)

    def unfit(self, protocol: str) -> tuple[str, ...]:
        """See `pipeline.Formats.unfit`."""
        told = [(each, getattr(each, "protocols", ())) for each in self._chosen if protocol]
        return tuple(type_of(each) for each, known in told if known and protocol not in known)

    def aside(self, arrival: Arrival) -> tuple[str, ...]:
        """See `pipeline.Formats.aside`. What parsers of users do is not known in another process."""
        if not self._types or multipart.is_multipart(arrival) or not is_heavy(arrival.body):
            return ()
        return () if self._parser_for(path_of(arrival)) is _PASSTHROUGH else self._types

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        """See `pipeline.Formats.parse`."""
        if arrival.understood is not None:
            return arrival.understood
        path = path_of(arrival)
        if multipart.is_multipart(arrival):
            return multipart.parse(arrival, path, now)
        return self._parser_for(path).parse(arrival, path, now)

    def _find(self, path: str) -> Parser:
        best, longest = _PASSTHROUGH, 0
        for parser in self._parsers:
            length = parser.claims(path)
            if length > longest:
                best, longest = parser, length
        return best


def path_of(arrival: Arrival) -> str:
    """Return the path without its query, from the first header that tells one."""
    for name in _PATH_HEADERS:
        if path := arrival.headers.get(name):
            return path.partition("?")[0]
    return DEFAULT_PATH
