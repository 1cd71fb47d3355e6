"""Field problems (k), security: what one tenant may learn of another's prompts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from epp.headers import DESTINATION, EXCHANGE, REQUEST_ID
from tests.support import ext_proc as gw
from tests.support.serving import Serving, serving

TEXT = "The quick brown fox jumps over the lazy dog. " * 40


async def told(picker: Serving, salt: str) -> tuple[set[str], set[str], set[str]]:
    """Names of what is set on the request and on its answer, and in the gateway's metadata."""
    body = msgspec.json.encode({"model": "m", "prompt": TEXT, "cache_salt": salt})
    head = gw.request_head({"content-type": "application/json"})
    answers = await picker.gateway.exchange(
        [
            head,
            gw.request_body(body, ends=True),
            gw.response_head({"content-type": "application/json"}),
            gw.response_body(b"{}", ends=True),
        ]
    )
    kinds = gw.kinds(answers)
    first, last = answers[0], answers[kinds.index("response_headers")]
    metadata = {
        name
        for answer in answers
        for fields in answer.dynamic_metadata.fields.values()
        for name in fields.struct_value.fields
    }
    return set(gw.set_headers(first)), set(gw.set_headers(last)), metadata


def test_b204_nothing_said_to_a_client_tells_whose_prompt_was_cached(tmp_path: Path) -> None:
    """Field problem B204: a match with another salt's entry shows.

    sgl-project/sglang#37160, LMCache/LMCache#4825.
    """

    async def main() -> None:
        async with serving(tmp_path) as picker:
            for salt in ("a", "a", "b", "b", ""):
                request, answer, metadata = await told(picker, salt)
                assert request <= {DESTINATION, REQUEST_ID}
                assert answer == set()
                assert metadata == {DESTINATION, EXCHANGE}  # a number that is counted up

    asyncio.run(main())
