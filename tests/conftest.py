"""What all tests share: where several processes run them, each has ports of its own."""

from __future__ import annotations

import os

from epp.local.fleet import FREE_PORTS, PORTS_VARIABLE


def part(worker: str, workers: int) -> str:
    """The ports of one of some workers: "gw0" has the first part."""
    first, last = FREE_PORTS
    size = (last + 1 - first) // workers
    begin = first + int(worker.removeprefix("gw")) * size
    return f"{begin}-{begin + size - 1}"


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Bytes do not name a case: what is compressed holds the time, and each worker its own."""
    return argname if isinstance(val, bytes) else None


if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ[PORTS_VARIABLE] = part(worker, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
