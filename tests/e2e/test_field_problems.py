"""Problems that endpoint pickers had in the field and that only a real Envoy shows."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from epp.headers import DESTINATION
from epp.local.fleet import free_port
from tests.support import http1, http2
from tests.support.backend import Seen, body, wanted
from tests.support.crowd import CHAT, quick, summary
from tests.support.process import eventually
from tests.support.stack import Stack
from tests.support.steady import keep_alive

pytestmark = pytest.mark.e2e

MODES = ["lean", "stock"]
OPEN = {"routing": "override-host", "fail_open": True}
SAMPLES = sorted((Path(__file__).parents[2] / "gateway").glob("*.yaml"))
DUPLEX = "FULL_DUPLEX_STREAMED"
SECRET = "xyzzy-7391"
INDISCREET = Path(__file__).resolve().parents[1] / "data/plugins/indiscreet_scorer.py"
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: indiscreet-scorer
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: indiscreet-scorer}]
"""


# --- trailers ---------------------------------------------------------------------------------


def processing_modes(tree: Any) -> Iterator[dict[str, str]]:
    """Every ``processingMode`` within a bootstrap."""
    if isinstance(tree, dict):
        if "processingMode" in tree:
            yield tree["processingMode"]
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from processing_modes(each)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_b007_a_full_duplex_body_goes_with_trailers(sample: Path) -> None:
    modes = list(processing_modes(yaml.safe_load(sample.read_text())))
    assert bool(modes) == ("direct" not in sample.stem)
    for mode in modes:
        for side in ("request", "response"):
            if mode.get(f"{side}BodyMode") == DUPLEX:
                assert mode[f"{side}TrailerMode"] == "SEND"


def test_b007_a_post_with_http2_trailers_passes_with_all_it_has(stack: Stack) -> None:
    data, trailers = body(300_000, 7), {"x-checksum": "abc"}
    asked = http2.request(stack.port, "POST", CHAT, wanted(kind="seen"), data, trailers=trailers)
    seen = msgspec.json.decode(asyncio.run(asked).body, type=Seen)
    assert (seen.body, dict(seen.trailers)) == (data, trailers)


# --- the picked endpoint ----------------------------------------------------------------------


def test_b018_on_kept_connections_every_request_reaches_the_endpoint_picked(stack: Stack) -> None:
    log = len(stack.picker.tail(10**9))
    answers = asyncio.run(keep_alive(stack.port, http1, connections=50, each=16))
    places = {address: f"backend-{number}" for number, address in enumerate(stack.addresses)}
    reached = [answer.headers["x-backend"] for answer in answers]
    seen = [msgspec.json.decode(answer.body, type=Seen) for answer in answers]
    assert [places[each.get(DESTINATION)] for each in seen] == reached
    assert len(reached) == 800
    assert set(reached) == set(places.values())
    stack.wait_idle()
    assert '"level":"error"' not in stack.picker.tail(10**9)[log:]  # b021


# --- without a picker -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_b023_a_wrong_picker_address_never_lets_a_request_through(
    tmp_path: Path, mode: Any
) -> None:
    with Stack(tmp_path, mode=mode, gateway={"picker_port": free_port()}) as stack:
        assert summary(asyncio.run(quick(stack))) == {(500, False): 20}
        for client in (http1, http2):
            answer = asyncio.run(client.request(stack.port, "GET", "/v1/models"))
            assert answer.status == 500
        assert [stack.counts(number).requests for number in range(2)] == [0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_b028_a_gateway_that_fails_open_balances_while_its_picker_is_down(
    tmp_path: Path, mode: Any
) -> None:
    with Stack(tmp_path, mode=mode, gateway=OPEN) as stack:
        stack.picker.kill()
        name = "cluster.picker.membership_healthy"
        eventually(lambda: stack.envoy_stats(name)[name] == 0, what="Envoy noticing")
        for client in (http1, http2):
            for method, data in (("GET", b""), ("POST", b""), ("POST", body(300_000, 1))):
                asked = client.request(stack.port, method, CHAT, wanted(kind="seen"), data)
                answer = asyncio.run(asked)
                assert answer.status == 200
                assert msgspec.json.decode(answer.body, type=Seen).body == data
        assert all(stack.counts(number).requests for number in range(2))


# --- what is told -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_b202_b203_nothing_of_a_request_or_answer_is_logged_or_shown(
    tmp_path: Path, mode: Any
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    flags = (f"--config-file={config}", f"--plugin-path={INDISCREET}", "--max-body-bytes=10000")
    with Stack(tmp_path, mode=mode, serve=flags) as stack:
        assert asyncio.run(secrets(stack)) == [200, 200, 400, 413, 500, 404]
        for backend in stack.backends:
            backend.kill()
        assert asyncio.run(secrets(stack))[0] == 503
        stack.wait_idle()
        shown = [page(stack.ports.admin, path) for path in PAGES]
        logged = stack.picker.tail(10**9) + stack.picker.out.read_text() + stack.envoy.tail(10**9)
    assert "indiscreet-scorer" in logged  # its failure is told
    assert "ValueError" not in "".join(shown)
    assert SECRET not in logged
    assert SECRET not in "".join(shown)


PAGES = ("/metrics", "/debug/state", "/debug/pool", "/debug/plugins", "/debug/config")


async def secrets(stack: Stack) -> list[int]:
    """Send ``SECRET`` in all parts of requests and answers, good and bad; the statuses."""
    chat: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": SECRET}]}
    tool = {"type": "function", "function": {"name": "f", "arguments": SECRET}}
    bodies = [
        (msgspec.json.encode(chat), wanted(kind="echo")),
        (msgspec.json.encode({**chat, "tools": [tool]}), wanted(kind="echo")),
        (f'{{"model":"m","messages":[{SECRET}'.encode(), wanted()),
        (SECRET.encode() * 2_000, wanted()),
        (msgspec.json.encode(chat), wanted(status=500, text=SECRET)),
        (msgspec.json.encode(chat), wanted(status=404, text=SECRET)),
    ]
    private = {"authorization": f"Bearer {SECRET}", "cookie": SECRET}
    private["content-type"] = "application/json"
    answers = [
        await http1.request(stack.port, "POST", CHAT, {**private, **asked}, data)
        for data, asked in bodies
    ]
    return [answer.status for answer in answers]


def page(port: int, path: str) -> str:
    """One page of the admin port, whatever its status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
