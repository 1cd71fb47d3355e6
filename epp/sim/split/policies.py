"""Policies that differ in one thing: which prompts are computed on another engine."""

from __future__ import annotations

from collections.abc import Mapping

_PROFILES = """\
- type: approx-prefix-cache-producer
- type: expected-ttft-scorer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: prefill-client
schedulingProfiles:
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - pluginRef: expected-ttft-scorer
  - pluginRef: max-score-picker
- name: decode
  plugins:
  - pluginRef: decode-filter
  - pluginRef: expected-ttft-scorer
  - pluginRef: max-score-picker
"""


def _deciding(decider: str, parameters: str = "{}") -> str:
    return f"""\
plugins:
- type: {decider}
  parameters: {parameters}
- type: disagg-profile-handler
  parameters: {{deciders: {{prefill: {decider}}}}}
{_PROFILES}"""


_NEVER = f"plugins:\n- type: disagg-profile-handler\n{_PROFILES}"
_BY_TOKENS = _deciding("prefix-based-pd-decider", "{nonCachedTokens: 2048}")
_PAIRS = f"plugins:\n- type: pair-profile-handler\n{_PROFILES}"

SPLITTING: Mapping[str, tuple[str, str]] = {
    "pd-never": (_NEVER, "each prompt is computed where it is decoded"),
    "pd-always": (_deciding("always-disagg-pd-decider"), "each prompt is computed elsewhere"),
    "pd-2048": (_BY_TOKENS, "elsewhere from 2048 uncached tokens on"),
    "pd-pair": (_PAIRS, "where it costs the least: pair-profile-handler"),
}
"""Configuration and description by name; all are for fleets with roles."""
