"""What a picker tells of its decisions: pages on the admin port, a header on answers."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support import http1
from tests.support.backend import wanted
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"SECRET words " * 200)


def page(stack: Stack, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{stack.ports.admin}{path}") as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def ask(stack: Stack, request_id: str) -> http1.Answer:
    headers = wanted(kind="echo", headers={"content-type": "application/json"})
    sent = {**headers, "x-request-id": request_id, "authorization": "Bearer KEY"}
    return asyncio.run(http1.request(stack.port, "POST", CHAT, sent, BODY))


@pytest.mark.parametrize("mode", ["stock", "lean"])
def test_a_request_can_be_explained_by_its_id_while_its_receipt_is_kept(
    tmp_path: Path, mode: Any
) -> None:
    with Stack(tmp_path, mode=mode, serve=("--receipts=3", "--decision-header")) as stack:
        answers = [ask(stack, f"r-{i}") for i in range(4)]
        stack.wait_idle()
        status, told = page(stack, "/debug/explain?request_id=r-3")
        assert status == 200
        assert (told["request_id"], told["model"], told["format"]) == ("r-3", "m", "chat")
        assert (told["ended"]["outcome"], told["ended"]["status"]) == ("completed", 200)
        assert told["picked"] == told["ended"]["served"] or mode == "stock"
        assert told["predicted_cached_tokens"] > 500  # it went where the like of it went before
        assert told["profiles"][0]["candidates"] == 2
        assert len(told["profiles"][0]["endpoints"][0]["scores"]) == len(
            told["profiles"][0]["scorers"]
        )
        _, last = page(stack, "/debug/decisions")
        assert [each["request_id"] for each in last] == ["r-3", "r-2", "r-1"]
        assert len(page(stack, "/debug/decisions?limit=1")[1]) == 1
        assert "SECRET" not in json.dumps(last)
        assert "KEY" not in json.dumps(last)
        status, error = page(stack, "/debug/explain?request_id=r-0")
        assert (status, error) == (404, {"error": "no decision about r-0 is kept"})
        assert page(stack, "/debug/explain")[0] == 400
        assert page(stack, "/debug/decisions?limit=-1")[0] == 400
        said = answers[3].headers.get("x-epp-decision", "")
        assert said.startswith(f"picked={told['picked']}; candidates=2;" if mode == "stock" else "")


def test_without_receipts_nothing_is_kept_nor_said(tmp_path: Path) -> None:
    with Stack(tmp_path, mode="stock", serve=("--receipts=0", "--decision-header")) as stack:
        answer = ask(stack, "r-1")
        assert "x-epp-decision" not in answer.headers
        assert page(stack, "/debug/decisions") == (200, [])
        status, error = page(stack, "/debug/explain?request_id=r-1")
        assert (status, error["error"]) == (404, "decisions are not kept: see --receipts")


def test_the_header_is_off_unless_asked_for(tmp_path: Path) -> None:
    with Stack(tmp_path, mode="stock") as stack:
        assert "x-epp-decision" not in ask(stack, "r-1").headers
        assert page(stack, "/debug/explain?request_id=r-1")[0] == 200
