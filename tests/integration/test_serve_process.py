"""``epp serve`` as a process: how it starts or does not, and what it shows while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.support.serving import NOBODY, PLAIN, SERVING, complete, eventually, serving

START_SECONDS = 30.0
WITH_ENDPOINTS = f"--endpoints={NOBODY}"

FAULTY = """
from epp import plugin

class Faulty:
    type = "faulty-scorer"
    class Params(plugin.Params, frozen=True):
        works: bool = False
    def __init__(self, params, tools):
        self.works = params.works
    def score(self, request, endpoints):
        if not self.works:
            raise RuntimeError("the prompt was " + str(request.prompt))
        return [1.0] * len(endpoints)
"""


# --- a start that fails ------------------------------------------------------------


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_port_that_is_taken_is_named() -> None:
    flags = ("--grpc-port", "--grpc-health-port", "--metrics-port", "--peers=a:1 --peers-port")
    with taken_port() as port:
        starts = [
            subprocess.Popen(
                [sys.executable, "-m", "epp", "serve", *PLAIN, WITH_ENDPOINTS, *f"{flag}={port}".split()],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "GRPC_VERBOSITY": "NONE"},  # no lines of gRPC's own
            )
            for flag in flags
        ]  # fmt: skip
        ends = [start.communicate(timeout=START_SECONDS) for start in starts]
        for start, (stdout, stderr) in zip(starts, ends, strict=True):
            lines = [line for line in stderr.splitlines() if not line.startswith("{")]
            assert (start.returncode, stdout, len(lines)) == (2, "", 1), stderr
            assert lines[0].startswith("epp: cannot listen on ")
            assert str(port) in lines[0]


FAILING: list[tuple[list[str], str]] = [
    (["--grpc-port=70000"], "'70000' is not a port"),
    (["--drain-timeout=soon"], "--drain-timeout"),
    (["--max-body-bytes=1 lot"], "--max-body-bytes"),
    (["--secure-serving=perhaps"], "--secure-serving"),
    (["--endpionts=127.0.0.1:1"], "--endpionts"),
    (["--endpoints=127.0.0.1"], "expected host:port, got '127.0.0.1'"),
    (["--endpoints-file=/nowhere/endpoints.yaml"], "/nowhere/endpoints.yaml"),
    ([WITH_ENDPOINTS, "--endpoints-file=/nowhere"], "exclude each other"),
    ([], "--endpoints"),
    ([WITH_ENDPOINTS, "--config-file=/nowhere/config.yaml"], "/nowhere/config.yaml"),
    ([WITH_ENDPOINTS, "--config-text=plugins: [{type: quue-scorer}]"], "quue-scorer"),
    ([WITH_ENDPOINTS, "--config-text=a: ["], "is not YAML"),
    ([WITH_ENDPOINTS, "--config-text={}", "--config-file=x"], "exclude each other"),
    ([WITH_ENDPOINTS, "--config-text={}", "--preset=best"], "exclude each other"),
    ([WITH_ENDPOINTS, "--plugin-path=/nowhere.py"], "/nowhere.py"),
    ([WITH_ENDPOINTS, "--secure-serving=true", "--cert-path=/nowhere"], "/nowhere"),
    ([WITH_ENDPOINTS, "--peers=other"], "--peers: expected host:port, got 'other'"),
    ([WITH_ENDPOINTS, "--peers=a:1", "--peers-port=many"], "'many' is not a port"),
    ([WITH_ENDPOINTS, "--peers=a:1", "--peers-cert-dir=/nowhere"], "/nowhere/tls.crt"),
    ([WITH_ENDPOINTS, "--peers-cert-dir=/nowhere"], "--peers-cert-dir needs --peers"),
]
#: starts pickers one after the other, since one interpreter is cheaper than fifteen
STARTS = """
import contextlib, io, json, sys
from epp.cli import main
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            status = main(["serve", *arguments])
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, said.getvalue()]))
"""


def test_a_start_that_fails_says_why_in_one_line() -> None:
    starts = msgspec.json.encode([[*PLAIN, *arguments] for arguments, _ in FAILING]).decode()
    done = subprocess.run(
        [sys.executable, "-c", STARTS, starts],
        capture_output=True, text=True, timeout=START_SECONDS, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    for line, (arguments, expected) in zip(done.stdout.splitlines(), FAILING, strict=True):
        status, stderr = msgspec.json.decode(line)
        plain = [each for each in stderr.splitlines() if not each.startswith("{")]
        assert status == 2, arguments
        assert len(plain) == 1, (arguments, stderr)
        assert expected in plain[0], (arguments, stderr)


# --- a running picker --------------------------------------------------------------


def test_it_tells_its_ports_answers_on_them_and_logs_json_without_prompts(
    tmp_path: Path,
) -> None:
    async def main() -> str:
        async with serving(tmp_path, "--v=5") as picker:
            assert set(msgspec.json.decode(picker.child.first_line)) == {"grpc", "health", "admin"}
            assert await picker.health() == SERVING
            assert await picker.health(port=picker.ports.grpc) == SERVING
            assert (await picker.get("/readyz"))[0] == 200
            assert await complete(picker.gateway, "a-secret-prompt") in NOBODY.split(",")
            await picker.child.stop()
            return picker.log()

    log = asyncio.run(main())
    for line in log.splitlines():
        assert {"level", "ts", "caller", "msg"} <= set(msgspec.json.decode(line))
    assert "a-secret-prompt" not in log


def config(*, works: bool) -> str:
    return (
        f"plugins: [{{type: faulty-scorer, name: mine, parameters: {{works: {works}}}}}, "
        "{type: prefix-cache-scorer}]"
    )


def test_a_faulty_plugin_is_counted_left_out_and_breaks_no_request(tmp_path: Path) -> None:
    own, file = tmp_path / "own.py", tmp_path / "config.yaml"
    own.write_text(FAULTY)
    file.write_text(config(works=False))
    disabled = 'epp_disabled_plugins{plugin_name="mine",plugin_type="faulty-scorer"}'
    faults = 'epp_plugin_faults_total{fault="raised",plugin_name="mine"}'

    async def main() -> str:
        flags = (f"--plugin-path={own}", f"--config-file={file}")
        async with serving(tmp_path, *flags) as picker:
            for index in range(9):
                await complete(picker.gateway, "a-secret-prompt", name=f"r-{index}")
            assert await picker.metric(faults) == 9.0
            assert await picker.metric(disabled) is None
            for index in range(9, 20):
                await complete(picker.gateway, name=f"r-{index}")
            assert await picker.metric(faults) == 10.0
            assert await picker.metric(disabled) == 1.0
            assert await picker.metric('epp_ended_requests_total{outcome="completed"}') == 20.0

            file.write_text(config(works=True))
            picker.signal(signal.SIGHUP)

            async def enabled() -> bool:
                return await picker.metric(disabled) == 0.0

            await eventually(enabled)
            await complete(picker.gateway)
            assert await picker.metric(faults) == 10.0
            return picker.log()

    log = asyncio.run(main())
    assert "plugin 'mine': raised" in log
    assert "plugin 'mine': disabled" in log
    assert "a-secret-prompt" not in log


def test_decisions_are_timed_and_plugins_in_one_decision_of_sixteen(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as picker:
            for index in range(33):
                await complete(picker.gateway, name=f"r-{index}")
            decisions = "llm_d_epp_scheduler_e2e_duration_seconds_count"
            assert await picker.metric(decisions) == 33.0
            page = (await picker.get("/metrics"))[1]
            counts = {
                line.partition("{")[2].partition("}")[0]: float(line.rsplit(" ", 1)[1])
                for line in page.splitlines()
                if line.startswith("llm_d_epp_plugin_duration_seconds_count")
            }
            assert set(counts.values()) == {3.0}  # the 1st, 17th and 33rd
            for point, kind in (
                ("Scorer", "queue-scorer"),
                ("Scorer", "prefix-cache-scorer"),
                ("Picker", "max-score-picker"),
                ("DataProducer", "approx-prefix-cache-producer"),
            ):
                labels = f'extension_point="{point}",plugin_name="{kind}",plugin_type="{kind}"'
                assert labels in counts
            assert "in one decision of 16" in page

    asyncio.run(main())
