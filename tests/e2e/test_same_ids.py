"""Request ids that come again, as of clients that ask anew with the id they have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support import http1
from tests.support.backend import wanted
from tests.support.crowd import CHAT
from tests.support.diary import Diary
from tests.support.process import eventually
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

ID = {"x-request-id": "again", "content-type": "application/json"}
PROMPT = b'{"model":"m","prompt":"a"}'
BROKEN = b'{"model":'
SLOW = wanted(kind="bytes", size=9_000, pieces=3, wait=0.3, chunked=True)


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_a_refusal_does_not_end_the_request_that_comes_after_it_with_its_id(
    tmp_path: Path, mode: Any
) -> None:
    diary = Diary(tmp_path)
    with Stack(tmp_path, mode=mode, serve=diary.serve) as stack:
        asyncio.run(http1.request(stack.port, "POST", CHAT, wanted(kind="drop"), PROMPT))
        eventually(lambda: stack.state()["access_logs"], what="Envoy's access log")
        refused = asyncio.run(http1.request(stack.port, "POST", CHAT, {**ID, **SLOW}, BROKEN))
        answer = asyncio.run(http1.request(stack.port, "POST", CHAT, {**ID, **SLOW}, PROMPT))
        assert (refused.status, answer.status) == (400, 200)
        stack.wait_idle()
        first, *others = diary.read()
        state = stack.state()
    assert first.status == "503"
    assert [(ended.outcome, ended.status) for ended in others] == [("completed", "200")]
    assert (state["reaped"], state["unmatched_log_entries"]) == (0, 0)
