"""Vertex AI's predictions over gRPC: an OpenAI request as JSON inside a protobuf message.

``ChatCompletions`` carries a chat request, ``RawPredict`` and ``StreamRawPredict`` one of the
responses API.

**Source:** ``google/cloud/aiplatform/v1beta1/prediction_service.proto`` and
``google/api/httpbody.proto`` of googleapis; which API each method carries, llm-d's
``vertexai-parser``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import msgspec

from epp import plugin
from epp.formats import openai
from epp.formats.grpc.frame import GrpcParser
from epp.formats.grpc.messages import classes
from epp.formats.prompt import Unreadable
from epp.formats.reading import Decode, Facts, Reads, outlined, without_bom

_MESSAGES = classes(
    "google.cloud.aiplatform.v1beta1",
    {"HttpBody": {"data": (2, "bytes")}, "PredictRequest": {"http_body": (2, "HttpBody")}},
)
_SERVICES = (
    "google.cloud.aiplatform.v1beta1.PredictionService",
    "google.cloud.aiplatform.v1.PredictionService",
)


def carried(message: bytes | memoryview, decode: Decode) -> Facts:
    """Read the JSON that a prediction request carries.

    Raises:
        Unreadable: it carries none.
    """
    data = _MESSAGES["PredictRequest"].FromString(bytes(message)).http_body.data
    if not data:
        raise Unreadable("no-prompt")
    try:
        try:
            return decode(without_bom(data))
        except (msgspec.ValidationError, Unreadable) as error:
            return outlined(data, error)
    except msgspec.DecodeError as error:
        raise Unreadable("bad-json") from error
    except RecursionError as error:
        raise Unreadable("too-deep") from error


_METHODS: Mapping[str, tuple[str, Decode]] = {
    "ChatCompletions": ("vertex-chat", partial(carried, decode=openai.chat)),
    "RawPredict": ("vertex-responses", partial(carried, decode=openai.responses)),
    "StreamRawPredict": ("vertex-responses", partial(carried, decode=openai.responses)),
}


class VertexAIParser(GrpcParser):
    """Reads Vertex AI's gRPC predictions: chat completions and raw predictions.

    The model's name is read and never rewritten. Compressed messages are routed by load, unread.
    """

    type: ClassVar[str] = "vertexai-parser"
    stability: ClassVar[plugin.Stability] = "beta"

    reads: ClassVar[Reads] = {
        f"{service}/{method}": read for service in _SERVICES for method, read in _METHODS.items()
    }
