"""``epp traffic mirror``: listens until it is told to end."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from pathlib import Path

from epp.process.stopping import stopping
from epp.recording.keys import KEY_BYTES
from epp.traffic.mirror.options import MirrorOptions
from epp.traffic.mirror.sampling import Sampling
from epp.traffic.mirror.server import Mirror
from epp.traffic.trace import TraceError

MOST_KEY_BYTES = 64  #: of BLAKE2b


def run(parsed: argparse.Namespace) -> int:
    """Mirror as the flags say.

    Raises:
        TraceError: a flag or the key's file cannot be used.
    """
    options = MirrorOptions(
        to=parsed.to, tenants=frozenset(filter(None, parsed.tenants.split(","))),
        share=parsed.share, listen_host=parsed.listen_host, listen_port=parsed.listen_port,
        in_flight=parsed.in_flight, body_bytes=parsed.body_bytes, timeout=parsed.timeout,
    )  # fmt: skip
    sampling = Sampling(options.tenants, options.share, key_of(parsed.key_file))
    return asyncio.run(_serve(Mirror(options, sampling)))


def key_of(path: str) -> bytes:
    """Return the key in a file; without one, a random key that ends with the process.

    Raises:
        TraceError: the file cannot be read, or holds less than a key.
    """
    if not path:
        return secrets.token_bytes(KEY_BYTES)
    try:
        key = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"--key-file {path}: {error.strerror}") from error
    if len(key) < KEY_BYTES:
        raise TraceError(f"--key-file {path} holds {len(key)} bytes, not {KEY_BYTES} or more")
    return key[:MOST_KEY_BYTES]


async def _serve(mirror: Mirror) -> int:
    told = stopping()
    try:
        print(f"mirror at {await mirror.start()}", flush=True)  # noqa: T201
        await told.wait()
    finally:
        await mirror.close()
    return 0
