"""A whole gateway before a prefill engine, and a decode engine behind its sidecar."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any, Self

import msgspec

from epp.local.fleet import free_port
from epp.local.processes import epp
from tests.support import http1
from tests.support.engine import ROOT
from tests.support.process import Process
from tests.support.stack import Stack

PATH = "/v1/completions"
CONFIG = ROOT / "tests/data/config/shapes/disaggregated.yaml"


class SplitStack(Stack):
    """See `Stack`; backend 0 is a prefill engine, backend 1 the sidecar of `decode`."""

    def __init__(self, folder: Path) -> None:
        self.decode_port = free_port()
        command = _engine("decode", self.decode_port, "--kv-load-failure-policy=fail")
        self.decode = Process("decode", command, folder)
        super().__init__(folder, backends=2, serve=())

    def __enter__(self) -> Self:
        self.decode.start()
        self.decode.first_line()
        super().__enter__()
        return self

    def close(self) -> None:
        super().close()
        self.decode.kill()

    def _backend(self, number: int, port: int) -> Process:
        if number == 0:
            return Process("prefill", _engine("prefill", port), self.folder)
        command = epp(
            "sidecar", "--host=127.0.0.1", f"--port={port}", "--secure-proxy=false",
            f"--model-server-port={self.decode_port}", "--enable-ssrf-protection",
            f"--allowed-prefillers=127.0.0.1:{self.backend_ports[0]}",
        )  # fmt: skip
        return Process("sidecar", command, self.folder)

    def _serve(self, more: Any) -> list[str]:
        endpoints = self.folder / "endpoints.yaml"
        roles = zip(self.backend_ports, ("prefill", "decode"), strict=True)
        listed = [
            {"name": role, "address": "127.0.0.1", "port": port, "labels": {"llm-d.ai/role": role}}
            for port, role in roles
        ]
        endpoints.write_text(json.dumps({"endpoints": listed}))
        command = super()._serve(
            (f"--endpoints-file={endpoints}", f"--config-file={CONFIG}", *more)
        )
        return [each for each in command if not each.startswith("--endpoints=")]

    def ask(self, prompt: str, tokens: int, **fields: Any) -> str:
        """The text of an answer through the gateway."""
        body = {"model": "sim", "prompt": prompt, "max_tokens": tokens, **fields}
        head = {"content-type": "application/json", "x-prefiller-host-port": "127.0.0.1:1"}
        raw = msgspec.json.encode(body)
        got = asyncio.run(http1.request(self.port, "POST", PATH, head, raw))
        assert got.status == 200, got
        text: str = json.loads(got.body)["choices"][0]["text"]
        return text

    def fetched(self) -> float:
        """Prompt tokens that the decode engine had from the prefill engine."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.decode_port}/metrics") as page:
            lines = page.read().decode().splitlines()
        (line,) = [
            line
            for line in lines
            if line.startswith("vllm:prompt_tokens_by_source_total") and "external_kv" in line
        ]
        return float(line.rpartition(" ")[2])


def _engine(name: str, port: int, *more: str) -> list[str]:
    return epp("engine", f"--port={port}", f"--name={name}", f"--role={name}", "--speed=20", *more)
