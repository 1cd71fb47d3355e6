"""Producers that the core makes unnecessary: accepted, or refused with a reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from epp import headers
from epp.observe.conformance import MISSING, DestinationEndpointServedVerifier
from epp.observe.producers import InflightLoadProducer, TokenProducer
from tests.support import build


def make(cls: type[Any], **params: Any) -> Any:
    return cls(msgspec.convert(params, cls.Params), build.tools())


def test_what_the_core_does_anyway_is_accepted() -> None:
    assert make(InflightLoadProducer, outputRatio=1.5, syncCrossReplicaState=True)
    assert make(TokenProducer, estimate={})


@pytest.mark.parametrize(
    ("cls", "params", "says"),
    [
        (InflightLoadProducer, {"addEstimatedOutputTokens": True}, "addEstimatedOutputTokens is"),
        (TokenProducer, {"vllm": {"url": "http://x"}}, "vllm asks for exact tokens"),
        (TokenProducer, {"modelName": "m"}, "modelName asks for exact tokens"),
        (TokenProducer, {"udsTokenizerConfig": {"a": 1}}, "udsTokenizerConfig asks for"),
        (TokenProducer, {"estimate": {"image": {}}}, "takes no parameters here, got image"),
    ],
)
def test_what_the_core_does_not_do_is_refused(
    cls: type[Any], params: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        make(cls, **params)


@pytest.mark.parametrize(("served", "told"), [("10.0.0.1:8000", "10.0.0.1:8000"), ("", MISSING)])
def test_the_verifier_tells_who_served(served: str, told: str) -> None:
    verifier = make(DestinationEndpointServedVerifier)
    sent = verifier.answer_headers(build.request(), build.pick("a"), served)
    assert sent == {headers.TEST_SERVED: told}
