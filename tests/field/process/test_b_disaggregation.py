"""Field problems (b), request parsing, where prefill and decode have endpoints of their own.

The real picker as a process, asked over ext_proc.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from epp.headers import PREFILLER
from tests.support import ext_proc as gw
from tests.support.replayed import CONFIGS
from tests.support.serving import Serving, serving

TEXT = "The quick brown fox jumps over the lazy dog. " * 40
IDS = list(range(900))
LONG: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": TEXT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/responses": {"input": TEXT},
    "/v1/messages": {"max_tokens": 1, "messages": [{"role": "user", "content": TEXT}]},
    "/inference/v1/generate": {"token_ids": IDS, "sampling_params": {"max_tokens": 1}},
    "/tenant/v1/completions?stream=1": {"prompt": IDS},
}
PREFILL, DECODE = "[fd00::1]:8001", "10.0.0.2:8002"
ENDPOINTS = """
endpoints:
- {name: p, address: "fd00::1", port: 8001, labels: {llm-d.ai/role: prefill}}
- {name: d, address: 10.0.0.2, port: 8002, labels: {llm-d.ai/role: decode}}
"""


async def head_of(picker: Serving, path: str, body: dict[str, object]) -> tuple[str, str]:
    """The destination, and where the prompt is to be prefilled; '' for nowhere else."""
    raw = msgspec.json.encode({"model": path, **body})
    head = gw.request_head({"content-type": "application/json"}, path=path)
    answers = await picker.gateway.exchange([head, gw.request_body(raw, ends=True)])
    return gw.destination(answers[0]), gw.set_headers(answers[0]).get(PREFILLER, "")


def test_b041_b042_a_long_cold_prompt_is_prefilled_elsewhere_on_every_path(tmp_path: Path) -> None:
    """Field problems B041, B042: token-in and Anthropic calls never used the prefill pool.

    llm-d/llm-d-router#1461, #2006. What cannot be read is decoded only, and counted.
    """
    file = tmp_path / "endpoints.yaml"
    file.write_text(ENDPOINTS)

    async def main() -> None:
        config = f"--config-file={CONFIGS / 'shapes' / 'disaggregated.yaml'}"
        async with serving(tmp_path, config, endpoints=f"--endpoints-file={file}") as picker:
            for path, body in LONG.items():
                assert await head_of(picker, path, body) == (DECODE, PREFILL), path
            assert await head_of(picker, "/v1/other", {"prompt": TEXT}) == (DECODE, "")
            unread = 'epp_unread_requests_total{reason="no-parser"}'
            assert await picker.metric(unread) == 1.0

    asyncio.run(main())
