"""Whether what an engine's cache holds under a prompt's name is that prompt's.

An engine that decodes reads blocks that a prefill engine keeps for it on a lease. If it hangs past
the lease, it reads what they hold by then, answers another prompt's text, and keeps the blocks in
its own cache under the prompt's name. Neither engine can tell. So each read has to be proven before
its lease ends: by a stream's first token, by an answer in one piece, or by the answer to a small
request that was sent later, since engines serve in turn. Where no proof comes in time the cache is
doubted: requests have another salt from then on, so that nothing in it is found, and answers that
may have begun after the wrong read are to be dropped and asked for again.

**Source:** two vLLM 0.32 servers with ``NixlConnector``, the decoding one stopped for longer than
the other's ``kv_lease_duration``: status 200 and another text; the same later, without parameters;
the right text with another ``cache_salt``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator

import msgspec
from msgspec import Raw
from xxhash import xxh3_128_hexdigest

from epp.formats.reading import without_bom
from epp.sidecar.metrics import Metrics

PROBE_PART = 0.25  #: of the time for a proof, after which the small request is sent
AGAIN_SECONDS = 0.5  #: until an engine that takes no connection is asked again
REMEMBERED = 64  #: doubts

_NULL, _TRUE = Raw(b"null"), Raw(b"true")

log = logging.getLogger(__name__)
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_text = msgspec.json.Decoder(str | None).decode


class Sent(msgspec.Struct, frozen=True):
    """What of a request tells later whether its answer can be trusted."""

    at: float  #: seconds on the event loop's clock
    salt: str


class _Asked(msgspec.Struct, frozen=True):
    model: Raw = _NULL
    stream: Raw = _NULL


class Trust:
    """One engine's cache."""

    def __init__(self, answers: Callable[[Raw], Awaitable[None]], metrics: Metrics) -> None:
        """``answers`` asks a model for something small; returns when the engine has served that."""
        self._answers = answers
        self._metrics = metrics
        self._salt = ""
        self._doubted: dict[str, float] = {}  #: salt -> since when its requests are not trusted
        self._watches: dict[asyncio.Task[None], tuple[Sent, float]] = {}  #: in order of their ends

    def sent(self) -> Sent:
        """Note that a request is sent at this moment."""
        return Sent(asyncio.get_running_loop().time(), self._salt)

    @property
    def unproven(self) -> bool:
        """Whether some read may turn out to be too late."""
        return bool(self._watches)

    def holds(self, sent: Sent) -> bool:
        """Say if an answer that begins at this moment can be trusted."""
        now = asyncio.get_running_loop().time()
        for read, ends in self._watches.values():
            if ends > now:
                break
            self._doubt(read)  # its timer is late, too: all that is here may have been stopped
        return sent.at < self._doubted.get(sent.salt, float("inf"))

    def renew(self) -> None:
        """The engine has ended, and its cache with it."""
        self._salt = ""
        self._doubted.pop("", None)

    @contextlib.contextmanager
    def reading(self, body: bytes, ends: float) -> Iterator[Callable[[], None]]:
        """A request reads blocks until ``ends`` at the latest; call what is yielded at the proof.

        Left without that, because the client has, the engine is asked for a proof.
        """
        sent, left = self.sent(), asyncio.Event()
        asked = msgspec.json.decode(without_bom(body), type=_Asked)
        watch = asyncio.create_task(self._watch(sent, ends, asked, left))
        self._watches[watch] = sent, ends
        watch.add_done_callback(self._forget)

        def proven() -> None:
            if not watch.done() and asyncio.get_running_loop().time() < ends:
                watch.cancel()
                self._watches.pop(watch, None)

        try:
            yield proven
        finally:
            left.set()

    async def close(self) -> None:
        """Forget about reads under way."""
        watches = list(self._watches)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    def _forget(self, watch: asyncio.Task[None]) -> None:
        self._watches.pop(watch, None)

    async def _watch(self, sent: Sent, ends: float, asked: _Asked, left: asyncio.Event) -> None:
        """Doubt the cache unless this is cancelled, or the engine serves a later request, in time."""
        patience = (ends - sent.at) * PROBE_PART
        loop, proven = asyncio.get_running_loop(), False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends):
                with contextlib.suppress(TimeoutError):
                    # A stream's own first token is the better proof: what is sent later might overtake.
                    async with asyncio.timeout(None if asked.stream == _TRUE else patience):
                        await left.wait()
                await self._proof(asked.model)
                proven = loop.time() < ends
        if not proven:
            self._doubt(sent)

    async def _proof(self, model: Raw) -> None:
        while True:
            try:
                return await self._answers(model)
            except TimeoutError:
                await asyncio.sleep(AGAIN_SECONDS)

    def _doubt(self, sent: Sent) -> None:
        since = self._doubted.pop(sent.salt, sent.at)
        self._doubted[sent.salt] = min(since, sent.at)
        while len(self._doubted) > REMEMBERED:
            del self._doubted[next(iter(self._doubted))]
        if sent.salt == self._salt:
            self._salt = uuid.uuid4().hex
            self._metrics.doubts.inc()
            log.warning(
                "the engine may have read a KV cache whose lease was over: its own is not used"
            )


def salted(body: bytes, salt: str) -> bytes:
    """Return a request that finds nothing of what was computed with another salt.

    What no engine would take is returned as it is.
    """
    try:
        fields = _fields(without_bom(body))
        own = _text(fields.get("cache_salt", _NULL)) or ""
    except (msgspec.DecodeError, RecursionError):
        return body
    fields["cache_salt"] = Raw(b'"%s"' % xxh3_128_hexdigest(f"{salt}{own}".encode()).encode())
    return msgspec.json.encode(fields)
