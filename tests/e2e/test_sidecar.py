"""Envoy, the picker, and the sidecar between a prefill and a decode engine: all real processes.

The picker decides who is split and names the prefill endpoint in a header; the sidecar does it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.sim import tokenizer
from tests.support.engine import expected
from tests.support.split_stack import SplitStack

pytestmark = pytest.mark.e2e


def test_long_prompts_are_split_and_every_answer_is_right_whatever_fails(tmp_path: Path) -> None:
    with SplitStack(tmp_path) as stack:
        short, long, longer = (tokenizer.text(size, seed=size) for size in (10, 512, 640))
        assert stack.ask(short, 4) == expected(short, 4)
        assert stack.fetched() == 0

        assert stack.ask(long, 8) == expected(long, 8)
        assert stack.fetched() == 512

        # A prefix that the decode endpoint holds is not sent away again.
        assert stack.ask(long, 8) == expected(long, 8)
        assert stack.fetched() == 512

        # What would stop an engine, and a prefill endpoint of the client's own, change nothing.
        deadly = {"do_remote_prefill": True}
        assert stack.ask(short, 4, kv_transfer_params=deadly) == expected(short, 4)
        assert stack.decode.running

        stack.backends[0].kill()
        assert stack.ask(longer, 8) == expected(longer, 8)
        assert stack.fetched() == 512
        stack.wait_idle()
