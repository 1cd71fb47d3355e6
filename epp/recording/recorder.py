"""Records every exchange, without its content; an observer.

On the event loop it costs a few field reads: numbers, names and writing are the thread's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

import msgspec

from epp.clock import Clock
from epp.errors import ConfigError
from epp.headers import SESSION_ID
from epp.model import Ending, EndpointId, InferenceRequest, Outcome, Pick
from epp.recording.keys import KEY_BYTES, Names
from epp.recording.notes import Fact, Notes
from epp.recording.slots import Slots
from epp.recording.writer import RollingFile, Writer

MOST_ID_CHARS = 256  #: longer ids are no ids; they would be kept until they are written
TELL_SECONDS = 60.0  #: between warnings about what is dropped

log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded, and where."""

    file: str
    most_bytes: int = 64 * 2**20  #: of a file, before it is put aside
    kept: int = 8  #: files put aside
    key_file: str = ""  #: holds the secret; "": a random one, forgotten with the process
    key_period: float = 86_400.0  #: seconds after which the key changes
    least: int = 5  #: conversations that share a block before that is told
    classes: tuple[str, ...] = ()  #: names of classes that may be written as they are


class Recorder:
    """Hears how exchanges end; see `plugin.Observer`.

    Args:
        settings: what to record, and where.
        clock: the one that requests are stamped with.

    Raises:
        ConfigError: there is no usable key.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        names = Names(_secret(settings.key_file), settings.key_period)
        notes = Notes(names, settings.least, frozenset(settings.classes))
        file = RollingFile(Path(settings.file), settings.most_bytes, settings.kept)
        self.slots = Slots()
        self._writer: Writer[Fact] = Writer(file, lambda fact: encoded(notes, fact))
        self._since_1970 = time.time() - clock.now()

    @property
    def written(self) -> int:
        """Requests recorded so far."""
        return self._writer.written

    @property
    def dropped(self) -> dict[tuple[str, ...], float]:
        """Requests that were not recorded, by why."""
        writer = self._writer
        return {("overflow",): float(writer.overflowed), ("error",): float(writer.failed)}

    async def run(self) -> None:
        """Record until cancelled, then write what waits.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._writer.start()
        told = 0.0
        try:
            while True:
                await asyncio.sleep(TELL_SECONDS)
                lost = sum(self.dropped.values())
                if lost > told:
                    log.warning(
                        "%d requests were not recorded: %s",
                        lost - told,
                        self._writer.last_error or "the queue was full",
                    )
                told = lost
        finally:
            self._writer.stop()

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        for endpoint in pick.endpoints:
            self.slots.of(endpoint.id)

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        self._writer.put(fact_of(request, pick, ending, (self._since_1970, self.slots)))

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`."""
        self.slots.forget(endpoint_id)


def fact_of(
    request: InferenceRequest, pick: Pick, ending: Ending, where: tuple[float, Slots]
) -> Fact:
    """Return what is known of an exchange; ``where``: what to add to times, and the pods' slots."""
    since_1970, slots = where
    match, usage, chosen = request.match(), ending.usage, pick.endpoints[0]
    served = next((e for e in pick.endpoints if e.address == ending.served), chosen)
    first = ending.first_byte_at
    counted = usage.prompt_tokens if usage else None
    return Fact(
        at=since_1970 + request.arrived_at,
        ended_at=since_1970 + ending.at,
        input_tokens=request.prompt_tokens or counted or 0,
        output_tokens=(usage.completion_tokens if usage else None) or 0,
        chain=match.blocks if match else (),
        block_tokens=match.block_tokens if match else 0,
        session=request.session or _session(request),
        tenant=request.flow,
        business=request.objective,
        ttft=None if first is None else first - request.arrived_at,
        counted_tokens=counted,
        cached_tokens=usage.cached_tokens if usage else None,
        predicted_tokens=match.held.get(served.id, 0) * match.block_tokens if match else None,
        slot=slots.get(served.id),
        reason=_reason(request, pick) if served is chosen else "moved",
        outcome="" if ending.outcome is Outcome.COMPLETED else ending.outcome.value,
    )


def _session(request: InferenceRequest) -> str:
    """The client's id of the session, where no plugin reads one."""
    told = request.headers.get(SESSION_ID, "")
    return told if len(told) <= MOST_ID_CHARS else ""


def _reason(request: InferenceRequest, pick: Pick) -> str:
    """Say what the prefix had to do with the choice."""
    match = request.match()
    if match is None:
        return "unknown"
    longest = max(match.held.values(), default=0)
    held = match.held.get(pick.endpoints[0].id, 0)
    if not longest:
        return "cold"
    if not held:
        return "elsewhere"
    return "longest" if held == longest else "shorter"


def encoded(notes: Notes, fact: Fact) -> bytes:
    """Return the line that is written of ``fact``."""
    return msgspec.json.encode(notes.line(fact)) + b"\n"


def _secret(path: str) -> bytes:
    if not path:
        return os.urandom(KEY_BYTES)
    try:
        secret = Path(path).read_bytes()  # as it is: random bytes may look like white space
    except OSError as error:
        raise ConfigError(f"cannot read the recording's key: {error}") from error
    if len(secret) < KEY_BYTES:
        raise ConfigError(f"{path}: a key has at least {KEY_BYTES} bytes, this one {len(secret)}")
    return secret
