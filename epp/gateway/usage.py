"""Envoy filters that read an answer for the picker: token usage, time to the first chunk.

What they find goes into dynamic metadata of namespace `headers.OWN_NAMESPACE`, which the access log carries.
``sse_to_metadata`` is marked work in progress by Envoy 1.40, so these are off by default.
"""

from __future__ import annotations

from collections.abc import Iterable

from envoy_data_plane.envoy.config.core.v3 import DataSource, TypedExtensionConfig
from envoy_data_plane.envoy.extensions.content_parsers.json.v3 import (
    JsonContentParser,
    JsonContentParserRuleConfig,
)
from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import (
    JsonToMetadata,
    JsonToMetadataKeyValuePair,
    JsonToMetadataMatchRules,
    JsonToMetadataRule,
    JsonToMetadataSelector,
)
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.extensions.filters.http.sse_to_metadata.v3 import (
    SseToMetadata,
    SseToMetadataProcessingRules,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher
from envoy_data_plane.google.protobuf import Any as Packed

from epp.headers import OWN_NAMESPACE

MAX_EVENT_BYTES = 2**20  #: of a stream; the Responses API repeats the whole answer before its usage
JSON = r"(?i)application/json\s*(;.*)?"  #: content types of whole answers

Paths = dict[str, tuple[str, ...]]  #: where each count stands in an object
_OPENAI: Paths = {
    "prompt_tokens": ("prompt_tokens",),
    "completion_tokens": ("completion_tokens",),
    "cached_tokens": ("prompt_tokens_details", "cached_tokens"),
}
_RESPONSES: Paths = {
    "prompt_tokens": ("input_tokens",),
    "completion_tokens": ("output_tokens",),
    "cached_tokens": ("input_tokens_details", "cached_tokens"),
}
_ANTHROPIC: Paths = {
    "prompt_tokens": ("input_tokens",),
    "completion_tokens": ("output_tokens",),
    "cached_tokens": ("cache_read_input_tokens",),
}
_SGLANG: Paths = {name: (name,) for name in _OPENAI}

#: Which object tells which counts. Of two that tell the same one, the later counts.
WHOLE: tuple[tuple[tuple[str, ...], Paths], ...] = (
    (("meta_info",), _SGLANG),
    (("usage",), _ANTHROPIC),
    (("usage",), _RESPONSES),
    (("usage",), _OPENAI),
)
STREAMED: tuple[tuple[tuple[str, ...], Paths], ...] = (
    (("meta_info",), _SGLANG),
    (("message", "usage"), _ANTHROPIC),
    (("usage",), {"completion_tokens": _ANTHROPIC["completion_tokens"]}),
    (("response", "usage"), _RESPONSES),
    (("usage",), _OPENAI),
)
"""Each costs 0.3 us a chunk and count."""

LUA = """\
local function metadata(handle)
  return handle:streamInfo():dynamicMetadata()
end
function envoy_on_request(handle)
  metadata(handle):set("epp", "began_ms", handle:timestamp())
end
function envoy_on_response(handle)
  local epp = metadata(handle):get("epp")
  local began = epp and epp["began_ms"]
  local chunks = 0
  for chunk in handle:bodyChunks() do
    if chunk:length() > 0 then
      chunks = chunks + 1
      if chunks == 1 and began then
        metadata(handle):set("epp", "first_chunk_ms", handle:timestamp() - began)
      end
    end
  end
  metadata(handle):set("epp", "chunks", chunks)
end
"""


def ttft_filter() -> HttpFilter:
    """Measure the time to the first chunk, and count chunks. About 8 us of CPU a chunk.

    The script asks for the metadata anew after each wait for a chunk: Envoy invalidates what a
    script got before, and the script would end there without a trace but a line in Envoy's log.
    """
    lua = Lua(default_source_code=DataSource(inline_string=LUA))
    return HttpFilter(name="envoy.filters.http.lua", typed_config=Packed.pack(lua))


def usage_filters() -> list[HttpFilter]:
    """Read token usage out of event streams and of JSON answers, of any API that `formats` reads."""
    rules = [JsonContentParserRuleConfig(rule=rule) for rule in _rules(STREAMED)]
    streams = SseToMetadata(
        response_rules=SseToMetadataProcessingRules(
            content_parser=TypedExtensionConfig(
                name="envoy.content_parsers.json",
                typed_config=Packed.pack(JsonContentParser(rules=rules)),
            ),
            max_event_size=MAX_EVENT_BYTES,
        )
    )
    whole = JsonToMetadata(
        response_rules=JsonToMetadataMatchRules(
            rules=_rules(WHOLE), allow_content_types_regex=RegexMatcher(regex=JSON)
        )
    )
    return [
        HttpFilter(name="envoy.filters.http.sse_to_metadata", typed_config=Packed.pack(streams)),
        HttpFilter(name="envoy.filters.http.json_to_metadata", typed_config=Packed.pack(whole)),
    ]


def _rules(objects: Iterable[tuple[tuple[str, ...], Paths]]) -> list[JsonToMetadataRule]:
    """Without a type, a value keeps its own: a text or a flag does not become a number."""
    return [
        JsonToMetadataRule(
            selectors=[JsonToMetadataSelector(key=key) for key in (*path, *rest)],
            on_present=JsonToMetadataKeyValuePair(metadata_namespace=OWN_NAMESPACE, key=name),
        )
        for path, counts in objects
        for name, rest in counts.items()
    ]
