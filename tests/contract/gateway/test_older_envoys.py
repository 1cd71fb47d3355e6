"""Bootstraps that Envoy before 1.38 loads: it knows neither usage filters nor who served."""

from __future__ import annotations

from typing import Any

import pytest

from epp.gateway.options import GatewayOptions
from epp.gateway.render import render

ENGINES = ("127.0.0.1:8000",)


def bootstrap(mode: Any, **options: Any) -> str:
    return render(GatewayOptions(mode=mode, routing="override-host", endpoints=ENGINES, **options))


def test_the_answer_s_head_tells_who_served_where_the_picker_sees_it() -> None:
    assert "selectedHostKey" in bootstrap("stock")


@pytest.mark.parametrize(
    ("mode", "options"), [("stock", {"tell_served": False}), ("lean", {"lean_ttft": True})]
)
def test_older_envoys_are_asked_for_nothing_they_do_not_know(
    mode: Any, options: dict[str, Any]
) -> None:
    told = bootstrap(mode, **options)
    assert "OverrideHost" in told
    assert "selectedHostKey" not in told
    assert "sse_to_metadata" not in told
