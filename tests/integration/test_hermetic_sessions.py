"""The Go router's hermetic cases of sessions, asked of a real picker process over plain gRPC.

Each session starts while one pod of a role is idle; then the queues are swapped, so that only what
is known of the session leads back. By load alone a request goes to the other pod.

**Source:** the session cases of llm-d-router's hermetic suite, re-expressed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway
from tests.support.metric_pages import MetricPage, metric_pages
from tests.support.served import Served, loads_known, serving

DECODE, PREFILL = "x-session-token", "x-session-token-prefill"
FAST = "  - {type: metrics-data-source, parameters: {interval: 50ms, idleInterval: 50ms}}"

ONE_POOL = """
plugins:
  - type: session-affinity-ROLE
    parameters: PARAMETERS
  - type: queue-scorer
FAST
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: session-affinity-ROLE, weight: 2}
      - {pluginRef: queue-scorer, weight: 1}
"""

SPLIT = """
plugins:
  - type: session-affinity-ROLE
  - name: prefill-session
    type: session-affinity-ROLE
    parameters:
      profileName: prefill
      encodedEndpointHeaderConfig: {header: x-session-token-prefill}
  - type: queue-scorer
  - type: decode-filter
  - type: prefill-filter
  - type: DECIDER
    parameters: PARAMETERS
  - type: disagg-profile-handler
    parameters: {deciders: {prefill: DECIDER}}
FAST
schedulingProfiles:
  - name: decode
    plugins:
      - {pluginRef: decode-filter}
      - {pluginRef: session-affinity-ROLE, weight: 2}
      - {pluginRef: queue-scorer, weight: 1}
  - name: prefill
    plugins:
      - {pluginRef: prefill-filter}
      - {pluginRef: prefill-session, weight: 2}
      - {pluginRef: queue-scorer, weight: 1}
"""

ROLES = pytest.mark.parametrize("role", ["filter", "scorer"])


class Reply(msgspec.Struct):
    """Where a request went, and what its answer tells the client of its session."""

    decode: str
    prefill: str
    tokens: dict[str, str]


class Pods:
    """Pairs of pods, one pair for each role, and a picker that knows them."""

    def __init__(self, picker: Served, pages: Sequence[MetricPage]) -> None:
        self.picker, self.pages = picker, pages

    def idle(self, which: int) -> None:
        """Let the first (0) or the second (1) of each pair be idle, and the other have a queue."""
        queues = [0 if i % 2 == which else 9 for i in range(len(self.pages))]
        for page, queue in zip(self.pages, queues, strict=True):
            page.show(queue, 0.0)
        loads_known(self.picker, [{"queued": float(queue)} for queue in queues])

    def ask(self, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a completion; its answer is empty."""
        body = json.dumps({"model": "m", "prompt": "once upon a time"}).encode()
        messages = [
            gw.request_head({"x-request-id": "r", **(headers or {})}),
            gw.request_body(body, ends=True),
            gw.response_head(ends=True),
        ]

        async def main() -> Reply:
            async with Gateway(self.picker.ports["grpc"]) as gateway:
                answers = await gateway.exchange(messages)
            told = gw.set_headers(answers[2])
            tokens = {name: told[name] for name in (DECODE, PREFILL) if name in told}
            prefill = gw.set_headers(answers[0]).get("x-prefiller-host-port", "")
            return Reply(gw.destination(answers[0]), prefill, tokens)

        return asyncio.run(main())


@contextlib.contextmanager
def pods(folder: Path, config: str, *roles: str) -> Iterator[Pods]:
    """Two pods for each role; all with a short queue at first."""
    with metric_pages(2 * len(roles)) as pages:
        for page in pages:
            page.show(1, 0.0)
        listed = [
            {
                "name": f"{role}-{i % 2}",
                "address": "127.0.0.1",
                "port": page.port,
                "labels": {"llm-d.ai/role": role},
            }
            for i, (page, role) in enumerate(
                zip(pages, [role for role in roles for _ in "ab"], strict=True)
            )
        ]
        endpoints = folder / "endpoints.yaml"
        endpoints.write_bytes(msgspec.yaml.encode({"endpoints": listed}))
        flags = ("--secure-serving=false", "--allow-experimental-plugins")
        where = (f"--endpoints-file={endpoints}", f"--config-text={config}")
        with serving(folder, *flags, *where) as picker:
            yield Pods(picker, pages)


def written(text: str, **values: str) -> str:
    """A configuration with its words in capitals replaced."""
    for word, value in {**values, "fast": FAST}.items():
        text = text.replace(word.upper(), value)
    return text


@ROLES
def test_a_session_stays_where_its_token_says_whatever_the_queues(
    role: str, tmp_path: Path
) -> None:
    config = written(ONE_POOL, role=role, parameters="{}")
    with pods(tmp_path, config, "both") as both:
        first, second = (page.address for page in both.pages)
        both.idle(0)
        started = both.ask()
        assert started.decode == first
        both.idle(1)
        assert both.ask(started.tokens).decode == first
        assert both.ask().decode == second


@ROLES
def test_a_session_stays_where_its_id_was_served_whatever_the_queues(
    role: str, tmp_path: Path
) -> None:
    config = written(ONE_POOL, role=role, parameters="{strategy: session_id}")
    with pods(tmp_path, config, "both") as both:
        first, second = (page.address for page in both.pages)
        both.idle(0)
        started = both.ask({"x-session-id": "mine"})
        assert (started.decode, started.tokens) == (first, {})
        both.idle(1)
        assert both.ask({"x-session-id": "mine"}).decode == first
        assert both.ask({"x-session-id": "another"}).decode == second
        assert both.ask().decode == second


@ROLES
def test_both_stages_of_a_session_stay_each_by_its_own_token(role: str, tmp_path: Path) -> None:
    config = written(SPLIT, role=role, decider="always-disagg-pd-decider", parameters="{}")
    with pods(tmp_path, config, "decode", "prefill") as split:
        decode, other_decode, prefill, other_prefill = (page.address for page in split.pages)
        split.idle(0)
        started = split.ask()
        assert (started.decode, started.prefill) == (decode, prefill)
        assert set(started.tokens) == {DECODE, PREFILL}
        split.idle(1)
        again = split.ask(started.tokens)
        assert (again.decode, again.prefill) == (decode, prefill)
        assert again.tokens == started.tokens
        only_decode = split.ask({DECODE: started.tokens[DECODE]})
        assert (only_decode.decode, only_decode.prefill) == (decode, other_prefill)
        only_prefill = split.ask({PREFILL: started.tokens[PREFILL]})
        assert (only_prefill.decode, only_prefill.prefill) == (other_decode, prefill)


@ROLES
def test_a_session_that_is_only_decoded_gets_the_decode_token_alone(
    role: str, tmp_path: Path
) -> None:
    never = {"decider": "prefix-based-pd-decider", "parameters": "{nonCachedTokens: 100000}"}
    with pods(tmp_path, written(SPLIT, role=role, **never), "decode", "prefill") as split:
        decode, other_decode, *_ = (page.address for page in split.pages)
        split.idle(0)
        started = split.ask()
        assert (started.decode, started.prefill) == (decode, "")
        assert set(started.tokens) == {DECODE}
        split.idle(1)
        again = split.ask(started.tokens)
        assert (again.decode, again.prefill, again.tokens) == (decode, "", started.tokens)
        assert split.ask().decode == other_decode
