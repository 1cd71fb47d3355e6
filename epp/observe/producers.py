"""Producers of the Go router whose work the core does itself.

They are accepted so that its configurations load. A parameter that would change what the core
does is refused, never ignored.

**Source:** parameters of llm-d's ``inflight-load-producer`` and ``token-producer``.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from epp import plugin


class InflightLoadProducer:
    """What is in flight, by endpoint: the picker itself counts it.

    Differs from llm-d: a reservation counts from the same event-loop turn as the pick, and the
    prefix match that is discounted is always the first producer's. Estimated output tokens are
    refused.
    """

    type: ClassVar[str] = "inflight-load-producer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        add_estimated_output_tokens: bool = False  #: true is refused
        output_ratio: float | None = None  #: without estimated output it has no effect
        max_estimated_output_tokens: Annotated[int, Meta(ge=0)] | None = None  #: likewise
        prefix_match_info_producer_name: str = ""  #: accepted; the first one counts
        sync_cross_replica_state: bool = True  #: without replicas that share it, no effect

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        if params.add_estimated_output_tokens:
            raise ValueError(
                "addEstimatedOutputTokens is not supported yet: tokens in flight are uncached "
                "prompt tokens"
            )


class TokenProducer:
    """How many tokens a prompt has: estimated from its bytes where it is parsed.

    4 bytes are one token, and the client's own token ids count exactly.
    Differs from llm-d: only the ``estimate`` backend; a configured tokenizer is refused.
    """

    type: ClassVar[str] = "token-producer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        estimate: dict[str, Any] | None = None  #: the default backend; takes no parameters here
        model_name: str = ""  #: refused: exact tokens are not supported yet
        vllm: dict[str, Any] | None = None  #: likewise
        uds_tokenizer_config: dict[str, Any] | None = None  #: likewise

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        if params.estimate:
            raise ValueError(
                f"estimate takes no parameters here, got {', '.join(sorted(params.estimate))}"
            )
        for key, value in (
            ("vllm", params.vllm),
            ("modelName", params.model_name),
            ("udsTokenizerConfig", params.uds_tokenizer_config),
        ):
            if value:
                raise ValueError(
                    f"{key} asks for exact tokens from a tokenizer service, which is not "
                    "supported yet; leave it out to estimate them"
                )


class Tokenizer(TokenProducer):
    """The older name of ``token-producer``.

    Differs from llm-d: only the ``estimate`` backend; a configured tokenizer is refused.
    """

    type: ClassVar[str] = "tokenizer"


PRODUCERS: tuple[type[Any], ...] = (InflightLoadProducer, TokenProducer, Tokenizer)
