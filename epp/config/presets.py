"""Configurations that go by a name: ``epp serve --preset best``."""

from __future__ import annotations

from collections.abc import Mapping

PRESETS: Mapping[str, str] = {
    "best": "plugins:\n- type: expected-ttft-scorer\n",
}
"""What to schedule by, as text: the rest is what any configuration leaves out. ``best`` is the
policy of ``docs/policy.md``."""
