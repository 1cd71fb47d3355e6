"""``token-producer``: the token ids of a prompt, for who knows what engines hold by them.

**Source:** names of the parameters are those of llm-d's ``token-producer``.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from epp import plugin
from epp.config.units import parse_duration
from epp.formats.prompt import START
from epp.formats.splice import rewrite_model
from epp.model import Endpoint, InferenceRequest, Tokens
from epp.prefix.tokens.backend import FORMATS, Backend, NoTokens
from epp.prefix.tokens.service import Service

BY_CLIENT = ("completions", "generate")  #: formats that take token ids


class ServiceConfig(plugin.Params, frozen=True):
    """Of a render service, or of the engines themselves."""

    url: str = ""  #: ``http://host:port``; "" asks any endpoint of the pool
    http: str = ""  #: another name of `url`
    timeout: str = "500ms"  #: then a request goes on without token ids
    mm_timeout: str = "5s"  #: of requests with images and the like


class LocalConfig(plugin.Params, frozen=True):
    """Of a tokenizer in this process."""

    model_dir: str  #: holds ``tokenizer.json``, ``tokenizer_config.json`` and the chat template
    timeout: str = "100ms"  #: then a request goes on without token ids


class TokenProducer:
    """The token ids of prompts, for ``precise-prefix-cache-producer``; without, an estimate.

    ``local`` reads a model's tokenizer and chat template from a folder; ``vllm``, or ``modelName``
    alone, asks a render service or the engines. Token ids that a client sends are used as they are.
    A request for which nobody tells in time goes on without.
    Differs from llm-d: an estimate is made where the prompt is read, 4 bytes a token; a timeout is
    short unless told; ``udsTokenizerConfig`` is refused.
    """

    type: ClassVar[str] = "token-producer"
    stability: ClassVar[plugin.Stability] = "beta"
    tells_tokens: ClassVar[bool] = True

    class Params(plugin.Params, frozen=True):
        estimate: dict[str, Any] | None = None  #: the default backend; takes no parameters here
        model_name: str = ""  #: what the service is asked for, in place of the request's model
        vllm: ServiceConfig | None = None
        local: LocalConfig | None = None
        uds_tokenizer_config: dict[str, Any] | None = None  #: refused

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        _check(params)
        self.told: Counter[tuple[str, str]] = Counter()
        """Requests by who told their tokens ("" if nobody) and why nobody did: fixed words."""
        self._model_name = params.model_name if params.local is None else ""
        self._backend = _backend(params, tools)

    def enrich(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> InferenceRequest | Awaitable[InferenceRequest]:
        """Add the token ids. See `plugin.Enricher.enrich`."""
        if not request.computed or not request.prompt or request.tokens is not None:
            return request
        if request.format in BY_CLIENT and not request.prompt.startswith(START):
            return self._with(request, Tokens(request.prompt, request.prompt_tokens, "client"))
        if self._backend is None:
            return request
        if request.format not in FORMATS:
            return self._without(request, "format")
        return self._ask(self._backend, request, endpoints)

    def dump_state(self) -> Mapping[str, Any]:
        """See `plugin.StateDumper.dump_state`."""
        return {"requests": {" ".join(filter(None, key)): n for key, n in self.told.items()}}

    async def close(self) -> None:
        """Let go of connections and threads."""
        if self._backend is not None:
            await self._backend.close()

    async def _ask(
        self, backend: Backend, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> InferenceRequest:
        asked = rewrite_model(request, self._model_name) if self._model_name else request
        try:
            return self._with(request, await backend.tokens(asked, endpoints))
        except NoTokens as error:
            return self._without(request, error.reason)

    def _with(self, request: InferenceRequest, tokens: Tokens) -> InferenceRequest:
        self.told[tokens.source, ""] += 1
        return msgspec.structs.replace(request, tokens=tokens)

    def _without(self, request: InferenceRequest, reason: str) -> InferenceRequest:
        self.told["", reason] += 1
        return msgspec.structs.replace(request, no_tokens=reason)


class Tokenizer(TokenProducer):
    """The older name of ``token-producer``."""

    type: ClassVar[str] = "tokenizer"


def _check(params: TokenProducer.Params) -> None:
    if params.estimate:
        raise ValueError(
            f"estimate takes no parameters here, got {', '.join(sorted(params.estimate))}"
        )
    if params.uds_tokenizer_config:
        raise ValueError("udsTokenizerConfig is refused: use local, or vllm with a url")
    if params.local is not None and params.vllm is not None:
        raise ValueError("local and vllm are two tokenizers: leave out one of them")


def _backend(params: TokenProducer.Params, tools: plugin.Tools) -> Backend | None:
    """Return who tells; None for the estimate.

    Raises:
        ValueError: it cannot be used.
    """
    if params.local is not None:
        if not all(map(importlib.util.find_spec, ("tokenizers", "jinja2"))):
            raise ValueError("local needs tokenizers and jinja2: pip install '.[precise]' in the "
                             "folder of epp's sources")  # fmt: skip
        from epp.prefix.tokens.local import Local  # noqa: PLC0415 - an extra

        return Local(params.local.model_dir, seconds=parse_duration(params.local.timeout))
    if params.vllm is None and not params.model_name:
        return None
    asked = params.vllm or ServiceConfig()
    return Service(
        asked.url or asked.http,
        seconds=parse_duration(asked.timeout),
        media_seconds=parse_duration(asked.mm_timeout),
        chooser=tools.random,
    )
