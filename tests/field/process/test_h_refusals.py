"""Field problems (h), refusals: what a client is told when nobody may serve it.

The real picker as a process, asked over ext_proc.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from epp.headers import DROP_REASON, TEST_SELECTION
from tests.support import ext_proc as gw
from tests.support.serving import serving

SELECTIVE = """
plugins: [{type: header-based-testing-filter}, {type: queue-scorer}]
"""


@pytest.mark.parametrize(
    ("endpoints", "status", "reason", "kind"),
    [
        pytest.param("[{name: a, address: 10.0.0.1, port: 80}]", 429, "rejected-saturated",
                     "RateLimitError", id="none is left by the filters"),
        pytest.param("[]", 503, "rejected-no-endpoints", "ServiceUnavailableError",
                     id="scaled to zero"),
    ],
)  # fmt: skip
def test_b158_b153_b159_a_refusal_says_which_kind_it_is_and_when_to_come_back(
    endpoints: str, status: int, reason: str, kind: str, tmp_path: Path
) -> None:
    """Field problems B153, B158, B159: an empty pool looked full, or not asked for; no Retry-After.

    llm-d/llm-d-router#1735, llm-d/llm-d-autoscaling#1403, vllm-project/router PR 281.
    """
    file = tmp_path / "endpoints.yaml"
    file.write_text(f"endpoints: {endpoints}\n")

    async def main() -> None:
        where, config = f"--endpoints-file={file}", f"--config-text={SELECTIVE}"
        async with serving(tmp_path, config, endpoints=where) as picker:
            head = gw.request_head({TEST_SELECTION: "10.9.9.9"}, method="GET", ends=True)
            (answer,) = await picker.gateway.exchange([head])
            counted = f'epp_refused_requests_total{{reason="{reason}",status="{status}"}}'
            assert await picker.metric(counted) == 1.0  # also before an endpoint was ever seen
        refusal = answer.immediate_response
        told = {each.header.key: each.header.raw_value for each in refusal.headers.set_headers}
        assert refusal.status.code == status
        assert int(told["retry-after"]) >= 1
        assert told[DROP_REASON] == reason.encode()
        assert told["content-type"] == b"application/json"
        error = msgspec.json.decode(refusal.body)["error"]
        assert (error["type"], error["code"]) == (kind, status)

    asyncio.run(main())
