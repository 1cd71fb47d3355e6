"""Producers that the core makes unnecessary: accepted, or refused with a reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from epp import headers
from epp.observe.conformance import MISSING, DestinationEndpointServedVerifier
from epp.observe.producers import InflightLoadProducer, output_tokens
from epp.prefix.tokens.producer import TokenProducer
from tests.support import build


def make(cls: type[Any], **params: Any) -> Any:
    return cls(msgspec.convert(params, cls.Params), build.tools())


def test_what_the_core_does_anyway_is_accepted() -> None:
    assert make(InflightLoadProducer, outputRatio=1.5, syncCrossReplicaState=True)
    assert make(TokenProducer, estimate={})


@pytest.mark.parametrize(
    ("cls", "params", "says"),
    [
        (TokenProducer, {"udsTokenizerConfig": {"a": 1}}, "udsTokenizerConfig is refused"),
        (TokenProducer, {"local": {"modelDir": "/none"}}, "'/none' holds no tokenizer"),
        (TokenProducer, {"local": {"modelDir": "/none"}, "vllm": {}}, "are two tokenizers"),
        (TokenProducer, {"estimate": {"image": {}}}, "takes no parameters here, got image"),
    ],
)
def test_what_the_core_does_not_do_is_refused(
    cls: type[Any], params: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        make(cls, **params)


@pytest.mark.parametrize(
    ("params", "limit", "tokens"),
    [
        ({}, None, 150),  # 1.5 times 100
        ({"outputRatio": 0.25}, None, 25),
        ({"maxEstimatedOutputTokens": 40}, None, 40),
        ({"maxEstimatedOutputTokens": 400}, 30, 30),  # the client's own limit
        ({"outputRatio": 0}, None, 0),
    ],
)
def test_estimated_output_is_a_ratio_of_the_prompt_within_both_bounds(
    params: dict[str, Any], limit: int | None, tokens: int
) -> None:
    made = make(InflightLoadProducer, addEstimatedOutputTokens=True, **params)
    estimate = output_tokens(made)
    assert estimate is not None
    assert estimate(build.request(prompt_tokens=100, max_output_tokens=limit)) == tokens


def test_output_is_not_estimated_unless_told() -> None:
    assert output_tokens(make(InflightLoadProducer)) is None
    assert output_tokens(make(TokenProducer)) is None


@pytest.mark.parametrize(("served", "told"), [("10.0.0.1:8000", "10.0.0.1:8000"), ("", MISSING)])
def test_the_verifier_tells_who_served(served: str, told: str) -> None:
    verifier = make(DestinationEndpointServedVerifier)
    sent = verifier.answer_headers(build.request(), build.pick("a"), served)
    assert sent == {headers.TEST_SERVED: told}
