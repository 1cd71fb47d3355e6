"""Servers of real vLLM on this machine's CPU, forked from one parent that has imported it.

::

    with Servers(python, folder) as servers:
        plain = servers.start("plain", models.dense(folder / "dense"))
        small = servers.start("small", model, "--num-gpu-blocks-override=70", env={"A": "b"})
        plain.wait_ready()
        plain.kill(); servers.restart(plain)      # in place: same port, same flags

Any flag of ``vllm serve`` and any variable may be given, so servers of any role can be made.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from prometheus_client.parser import text_string_to_metric_families

from epp.local.fleet import free_port
from tests.support.process import eventually

WARM_SECONDS = 300.0
READY_SECONDS = 120.0
ANSWER_SECONDS = 60.0
STOP_SECONDS = 30.0
BLOCK = 32  #: tokens: the least that vLLM can on a CPU

_PARENT = Path(__file__).with_name("parent.py")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_SERVER_DEV_MODE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}  # fmt: skip
_FLAGS = (
    "--host=127.0.0.1", "--load-format=dummy", f"--block-size={BLOCK}", "--enforce-eager",
    "--kv-cache-memory-bytes=64M", "--max-model-len=2048", "--max-num-seqs=8",
    "--served-model-name=tiny", "--enable-prompt-tokens-details", "--enable-scale-out",
)  # fmt: skip


class Server:
    """One ``vllm serve``."""

    def __init__(self, job: Mapping[str, Any], port: int, log: Path) -> None:
        self.job = job
        self.port = port
        self.log = log
        self.pid = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, 0)
            return True
        return False

    def wait_ready(self) -> None:
        """Wait until it answers."""

        def ready() -> bool:
            assert self.running, f"vLLM ended:\n{self.log.read_text(errors='replace')[-3000:]}"
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.call("GET", "/health")[0] == 200
            return False

        eventually(ready, READY_SECONDS, f"vLLM at {self.address}")

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Ask it directly; return status and page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        with contextlib.closing(connection):
            told = None if body is None else json.dumps(body)
            connection.request(method, path, told, {"content-type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def total(self, name: str, **labels: str) -> float:
        """Return a metric's sum over its samples that have these labels."""
        page = self.call("GET", "/metrics")[1].decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes: SIGSTOP has it hang, SIGCONT go on."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it with all its processes, as an out-of-memory killer would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        eventually(lambda: not self.running, STOP_SECONDS, f"the end of vLLM at {self.address}")


class Servers:
    """See the module; leaving the block ends all of them.

    Args:
        python: of vLLM's environment.
        folder: for logs, and what vLLM keeps.
    """

    def __init__(self, python: str, folder: Path) -> None:
        self._command = [python, str(_PARENT)]
        self._folder = folder
        self._parent: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Begin to import; `start` waits for that."""
        environment = {**os.environ, **_ENVIRONMENT, "VLLM_CACHE_ROOT": str(self._folder / "cache")}
        with self._log.open("wb") as log, (self._folder / "parent.out").open("wb") as out:
            self._parent = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=out, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._parent is not None
        self._stdin.close()
        try:
            self._parent.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._parent.kill()
            self._parent.wait(STOP_SECONDS)

    def start(
        self, name: str, model: Path, *flags: str, env: Mapping[str, str] | None = None
    ) -> Server:
        """Start a server; it is not ready yet."""
        port = free_port()
        log = self._folder / f"{name}.log"
        argv = [str(model), f"--port={port}", *_FLAGS, *flags]
        server = Server({"argv": argv, "env": dict(env or {}), "log": str(log)}, port, log)
        self.restart(server)
        return server

    def restart(self, server: Server) -> None:
        """Start a server, again if it has ended, on its port."""
        heard = len(self._heard(1))
        self._stdin.write(json.dumps(server.job).encode() + b"\n")
        self._stdin.flush()
        server.pid = self._heard(heard + 1)[heard]["pid"]

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._parent is not None
        assert self._parent.stdin is not None
        return self._parent.stdin

    @property
    def _log(self) -> Path:
        return self._folder / "parent.log"

    def _heard(self, count: int) -> list[dict[str, Any]]:
        """Return what the parent has said, once that is ``count`` lines."""

        def lines() -> list[str] | None:
            assert self._parent is not None
            ended = f"vLLM cannot be imported:\n{self._log.read_text(errors='replace')[-3000:]}"
            assert self._parent.poll() is None, ended
            said = (self._folder / "parent.out").read_text().split("\n")[:-1]
            return said if len(said) >= count else None

        return [json.loads(each) for each in eventually(lines, WARM_SECONDS, "vLLM") or ()]


def publishing(*, port: int | None = None) -> str:
    """Return the flag that has a server publish its KV events; without a port at free ones."""
    events = "*:0" if port is None else f"*:{port}"
    replay = "*:0" if port is None else f"*:{port + 100}"
    told = {
        "enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv@tiny",
        "endpoint": f"tcp://{events}", "replay_endpoint": f"tcp://{replay}",
    }  # fmt: skip
    return f"--kv-events-config={json.dumps(told)}"


def moving(role: str, **more: Any) -> str:
    """Return the flag that has a server hand KV caches over, or fetch them, by NIXL."""
    told = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu", **more}
    return f"--kv-transfer-config={json.dumps(told)}"


def beside() -> dict[str, str]:
    """Return the variables that keep what `moving` does on loopback, at a free port."""
    return {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        "UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp",
    }  # fmt: skip
