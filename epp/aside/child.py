"""The reading process: ``python -m epp.aside.child CPU,...``. It ends when its input does."""

from __future__ import annotations

import os
import resource
import signal
import sys
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from msgspec import structs

from epp.aside.letters import LENGTHS, Read, answer, arrival_of, pack
from epp.disagg.strip import without_transfer
from epp.errors import BadRequest
from epp.formats import PARSERS, FormatSet
from epp.formats.reading import opaque
from epp.formats.splice import UNWRITABLE, model_span
from epp.model import Arrival, InferenceRequest

MOST_BYTES = 1 << 30  #: of memory, beyond what it takes to start
_TYPES = {parser.type: parser for parser in PARSERS}  # type: ignore[attr-defined]


def main() -> None:
    """Read bodies until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to the picker, too
    os.nice(1)
    os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))  # not on the picker's own CPU only
    limit_memory()
    serve(sys.stdin.buffer, sys.stdout.buffer)


def limit_memory() -> None:
    """Let a body that becomes too many objects fail here, before the machine is out of memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MOST_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
    )


def serve(asks: BinaryIO, answers: BinaryIO) -> None:
    """Answer each body that ``asks`` brings, until it ends."""
    while len(head := asks.read(LENGTHS.size)) == LENGTHS.size:
        record, size = LENGTHS.unpack(head)
        answers.writelines(pack(*read(asks.read(record), asks.read(size))))
        answers.flush()


def read(written: bytes, body: bytes) -> tuple[Read, bytes]:
    """Read one body as the picker would."""
    parsers, arrival = arrival_of(written, body)
    try:
        arrival = _stripped(structs.replace(arrival, body=body))
        request = _with_span(_formats(parsers).parse(arrival, 0.0))
        return answer(request, changed=arrival.body is not body)
    except BadRequest as error:
        return Read(refused=str(error)), b""
    except MemoryError:
        unread = opaque(arrival, "", 0.0, "too-large")
        return answer(unread, changed=arrival.body is not body)
    except Exception as error:  # noqa: BLE001 - the picker says so in its log
        return Read(failed=type(error).__name__), b""


def _stripped(arrival: Arrival) -> Arrival:
    """See `strip.without_transfer`; what there is no memory to look at must not go on unseen."""
    try:
        return without_transfer(arrival)
    except MemoryError:
        raise BadRequest(f"the body of {len(arrival.body)} bytes has too many parts") from None


def _with_span(request: InferenceRequest) -> InferenceRequest:
    """Find the model's name, too: looking for it in such a body takes long as well."""
    if not request.model or request.format in UNWRITABLE:
        return request
    return structs.replace(request, model_span=model_span(request.body))


@lru_cache(maxsize=8)
def _formats(parsers: tuple[str, ...]) -> FormatSet:
    return FormatSet([_TYPES[each]() for each in parsers])


if __name__ == "__main__":
    main()
