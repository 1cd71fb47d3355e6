"""Envoy filters that read an answer for the picker: token usage, time to the first chunk.

What they find goes into dynamic metadata of namespace `METADATA`, which the access log carries.
``sse_to_metadata`` is marked work in progress by Envoy 1.40, so these are off by default.
"""

from __future__ import annotations

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
    JsonToMetadataValueType,
)
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.extensions.filters.http.sse_to_metadata.v3 import (
    SseToMetadata,
    SseToMetadataProcessingRules,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any as Packed

METADATA = "epp"
PATHS = {
    "prompt_tokens": ("usage", "prompt_tokens"),
    "completion_tokens": ("usage", "completion_tokens"),
    "cached_tokens": ("usage", "prompt_tokens_details", "cached_tokens"),
}

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
    """Read token usage out of event streams and of JSON answers."""
    parser = JsonContentParser(rules=[JsonContentParserRuleConfig(rule=rule) for rule in _rules()])
    streams = SseToMetadata(
        response_rules=SseToMetadataProcessingRules(
            content_parser=TypedExtensionConfig(
                name="envoy.content_parsers.json", typed_config=Packed.pack(parser)
            )
        )
    )
    whole = JsonToMetadata(response_rules=JsonToMetadataMatchRules(rules=_rules()))
    return [
        HttpFilter(name="envoy.filters.http.sse_to_metadata", typed_config=Packed.pack(streams)),
        HttpFilter(name="envoy.filters.http.json_to_metadata", typed_config=Packed.pack(whole)),
    ]


def _rules() -> list[JsonToMetadataRule]:
    return [
        JsonToMetadataRule(
            selectors=[JsonToMetadataSelector(key=key) for key in path],
            on_present=JsonToMetadataKeyValuePair(
                metadata_namespace=METADATA, key=name, type=JsonToMetadataValueType.NUMBER
            ),
        )
        for name, path in PATHS.items()
    ]
