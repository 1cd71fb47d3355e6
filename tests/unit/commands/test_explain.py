"""``epp explain``: a receipt, put into words."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest
from rich.console import Console

from epp.cli import main
from epp.commands import explain
from epp.commands.asking import Admin
from epp.errors import ConfigError


def row(endpoint: str, total: float, *scores: float) -> dict[str, Any]:
    return {
        "endpoint": endpoint, "name": "", "total": total, "scores": list(scores),
        "predicted_cached_tokens": 64, "in_flight_requests": 2, "in_flight_tokens": 900,
        "queued": 1.0, "running": None, "kv_usage": 0.5,
    }  # fmt: skip


def receipt(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    profile = {
        "profile": "default", "candidates": len(rows),
        "filters": [{"filter": "label-filter", "removed": 9, "some": ["c:1", "d:1"]}],
        "scorers": [{"scorer": "queue", "weight": 2.0}, {"scorer": "prefix", "weight": 3.0}],
        "endpoints": list(rows),
    }  # fmt: skip
    made = {
        "request_id": "r-1", "seconds_ago": 3.5, "model": "m", "format": "chat",
        "prompt_tokens": 1000, "picked": "a:1", "fallbacks": ["b:1"], "prefill": None,
        "profile": "default", "predicted_cached_tokens": 64, "wait_seconds": 0.0,
        "decision_seconds": 0.00025, "profiles": [profile], "ended": None,
    }  # fmt: skip
    return {**made, **more}


ENDED = {
    "outcome": "completed", "status": 200, "served": "b:1", "served_as_picked": False,
    "attempts": 2, "flags": "", "ttft_seconds": 0.25, "duration_seconds": 4.0, "streamed": True,
    "response_bytes": 5, "prompt_tokens": 1010, "completion_tokens": 7, "cached_tokens": 48,
}  # fmt: skip


def text(told: dict[str, Any]) -> str:
    page = io.StringIO()
    console = Console(file=page, width=180)
    for part in explain.explained(told):
        console.print(part)
    return page.getvalue()


# --- prefill elsewhere ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"prefill": "p:1", "prefill_reason": "decider"}, "prefill on p:1, decider"),
        ({"prefill_reason": "no-endpoint"}, "prefill on the same endpoint, no-endpoint"),
        ({"prefill": "p:1"}, "prefill on p:1\n"),  # of an older picker
    ],
)
def test_where_the_prompt_was_to_be_computed_is_said_with_its_reason(
    facts: dict[str, Any], said: str
) -> None:
    assert said in text(receipt(row("a:1", 1.0, 0.5, 0.0), **facts))


def leg(endpoint: str | None, reason: str | None, **facts: Any) -> dict[str, Any]:
    return {
        "endpoint": endpoint, "reason": reason, "seconds": 0.25, "attempts": 1,
        "lost_seconds": 0.0, **facts,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (leg("p:1", None), "prefill done on p:1, in 250.00 ms\n"),
        (leg("p:1", None, seconds=None), "prefill done on p:1, beside its request\n"),
        (
            leg("q:1", "retried", attempts=2, lost_seconds=0.1),
            "prefill done on q:1, in 250.00 ms, 100.00 ms of them at another endpoint that failed\n",
        ),
        (leg(None, "timeout"), "prefill not done elsewhere: timeout, in 250.00 ms\n"),
        (leg(None, "mode", seconds=0.0, attempts=0), "prefill not done elsewhere: mode\n"),
    ],
)
def test_what_became_of_a_prefill_is_said(told: dict[str, Any], said: str) -> None:
    ended = {**ENDED, "prefill_leg": told}
    assert said in text(receipt(row("a:1", 1.0, 0.5, 0.0), ended=ended))


# --- why -----------------------------------------------------------------------------


def test_the_scorer_that_put_the_picked_endpoint_furthest_ahead_is_named() -> None:
    told = receipt(row("a:1", 3.5, 0.25, 1.0), row("b:1", 2.0, 1.0, 0.0))
    # Ahead by 1.5: queue 2 x -0.75, prefix 3 x 1.
    assert explain.reason(told) == (
        "1.500 ahead, most by prefix (+3.000); b:1 would have been second"
    )


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([row("a:1", 1.0, 0.5, 0.0)], "the only candidate"),
        (
            [row("a:1", 1.0, 0.5, 0.0), row("b:1", 1.0, 0.5, 0.0)],
            "by chance: b:1 scored the same",
        ),
        (
            [row("b:1", 3.0, 0.0, 1.0), row("a:1", 1.0, 0.5, 0.0)],
            "which was not first: b:1 scored 2.000 more",
        ),
    ],
    ids=["alone", "equal", "lower"],
)
def test_a_pick_that_scores_did_not_decide_says_so(rows: list[Any], why: str) -> None:
    assert explain.reason(receipt(*rows)) == why


def test_a_pick_without_any_profile_says_so() -> None:
    assert explain.reason(receipt(profiles=[])) == "without scores"


# --- the text --------------------------------------------------------------------------


def test_the_text_has_every_number_an_operator_asks_for() -> None:
    page = text(receipt(row("a:1", 3.5, 0.25, 1.0), row("b:1", 2.0, 1.0, 0.0), ended=ENDED))
    for words in (
        "request r-1", "prompt 1000 tokens", "picked a:1", "else b:1", "waited 0.00 ms",
        "decided in 0.25 ms", "label-filter removed 9: c:1, d:1, ...", "queue", "x 2", "3.500",
        "0.250", "50%", "900", "ended completed 200", "served by b:1, not as picked",
        "first byte after 250.00 ms", "whole after 4.00 s", "attempts 2", "prompt 1010",
        "cached 48", "predicted 64", "output 7",
    ):  # fmt: skip
        assert words in page, words


@pytest.mark.parametrize(
    ("candidates", "said"),
    [(1, "default: 1 candidate\n"), (2, "default: 2 candidates, 1 of them shown\n")],
)
def test_as_many_candidates_as_there_are_are_counted(candidates: int, said: str) -> None:
    told = receipt(row("a:1", 3.5, 0.25, 1.0))
    told["profiles"][0]["candidates"] = candidates
    assert said in text(told)


def test_addresses_of_ipv6_and_names_in_brackets_are_shown_as_they_are() -> None:
    told = receipt(row("[fd00::1]:8000", 2.0, 0.9, 0.9), picked="[fd00::1]:8000", prefill="[::1]:1")
    told["profiles"][0]["scorers"][0]["scorer"] = "[/mine]"
    shown = text(told)
    assert shown.count("[fd00::1]:8000 ") == 2  # in the line that tells the pick, and in the table
    assert "[::1]:1" in shown
    assert "[/mine]" in shown


def test_what_clients_wrote_gives_no_orders_to_a_terminal() -> None:
    told = receipt(
        row("a:1", 2.0, 0.9, 0.9), request_id="r\x1b[2J\udcff", model="\x1b]0;m\x07\u202ex"
    )
    shown = text(told)
    assert "request r\ufffd[2J\ufffd  model \ufffd]0;m\ufffd\ufffdx" in shown
    assert shown.replace("\n", "").isprintable()


def test_what_is_not_known_is_a_dash_and_an_open_request_says_so() -> None:
    page = text(receipt(row("a:1", 1.0, 0.5, 0.0), predicted_cached_tokens=None, model=""))
    assert "model –" in page
    assert "not ended yet" in page


def parts(**known: float) -> dict[str, Any]:
    names = ("wait", "decision", "engine", "remote_prefill", "queue", "prefill", "rest", "total")
    return {f"{name}_seconds": known.get(name) for name in names}


def test_the_parts_of_the_first_byte_are_told_as_expected_and_as_measured() -> None:
    expected = parts(
        wait=0.0, decision=0.0005, engine=0.82, queue=0.3, prefill=0.5, rest=0.02, total=0.8205
    )
    measured = parts(
        wait=0.0, decision=0.0005, engine=1.02, queue=0.3, prefill=0.5, rest=0.22, total=1.0205
    )
    told = receipt(
        row("a:1", 1.0, 0.5, 0.0), expected_ttft=expected, ended={**ENDED, "ttft": measured}
    )
    page = text(told)
    assert (
        "first byte expected after 820.50 ms:  wait 0.00 ms  decision 0.50 ms  queue 300.00 ms  "
        "prefill 500.00 ms  rest 20.00 ms"
    ) in page
    assert "first byte came after 1.02 s:  wait 0.00 ms" in page
    assert "prefill 500.00 ms  rest 220.00 ms" in page


def test_a_prompt_computed_elsewhere_is_told_as_such() -> None:
    expected = parts(wait=0.0, decision=0.0, engine=0.9, remote_prefill=0.8, rest=0.1, total=0.9)
    page = text(receipt(row("a:1", 1.0, 0.5, 0.0), expected_ttft=expected))
    assert "decision 0.00 ms  remote prefill 800.00 ms  rest 100.00 ms" in page
    assert "queue " not in page.rpartition("expected after")[2]


def test_where_the_engines_part_is_not_split_it_is_told_whole() -> None:
    measured = parts(wait=0.0, decision=0.0005, engine=0.2, total=0.2005)
    page = text(receipt(row("a:1", 1.0, 0.5, 0.0), ended={**ENDED, "ttft": measured}))
    assert "first byte came after 200.50 ms:  wait 0.00 ms  decision 0.50 ms  engine 200" in page
    assert "expected after" not in page


# --- asking ----------------------------------------------------------------------------


@contextmanager
def picker(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    asked: list[str] = []
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
    assert asked in ([], ["/debug/explain?request_id=r+1%26x"])


def test_the_picker_is_asked_for_the_id_as_it_was_given(capsys: Any) -> None:
    body = msgspec.json.encode(receipt(row("a:1", 1.0, 0.5, 0.0)))
    with picker(200, body) as url:
        assert main(["explain", "r 1&x", "--admin", url]) == 0
    assert "the only candidate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b'{"error": "no decision about r 1&x is kept"}', "no decision about"),
        (404, b"404: Not Found", "answered 404: is it a picker?"),
        (200, b"<html>", "does not answer as a picker does"),
        (200, b"3", "does not answer as a picker does"),
    ],
    ids=["unknown", "another server", "no JSON", "no object"],
)
def test_a_picker_that_cannot_tell_is_an_error_that_says_why(
    status: int, body: bytes, said: str
) -> None:
    with picker(status, body) as url, pytest.raises(ConfigError, match=said):
        explain.fetch("r 1&x", Admin(url=url))


def test_an_id_that_is_not_utf_8_can_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="cannot ask"):
        explain.fetch("r\udcff", Admin(url="http://127.0.0.1:1"))


@pytest.mark.parametrize("url", ["127.0.0.1:1", "file:///etc/passwd", "http://127.0.0.1:1"])
def test_an_address_that_cannot_be_asked_is_an_error(url: str) -> None:
    with pytest.raises(ConfigError):
        explain.fetch("r", Admin(url=url))
