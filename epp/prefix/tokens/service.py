"""Token ids from an engine or a render service, over HTTP.

A request's own body is sent to the ``render`` path of its API; an engine without one is asked at
``/tokenize``, which takes the same fields. Nothing is asked twice for one request.

**Source:** vLLM's ``/v1/chat/completions/render``, ``/v1/completions/render`` and ``/tokenize``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence

import aiohttp
import msgspec

from epp.model import Endpoint, InferenceRequest, Tokens
from epp.prefix.tokens.backend import NoTokens, pack

RENDER: Mapping[str, str] = {
    "chat": "/v1/chat/completions/render",
    "completions": "/v1/completions/render",
}
TOKENIZE = "/tokenize"
MOST_BYTES = 32 << 20  #: of an answer
MOST_AT_ONCE = 256  #: more requests than that are not asked for
CONNECTIONS = 64


class _Place(msgspec.Struct, frozen=True):
    offset: int
    length: int = 0


class _Features(msgspec.Struct, frozen=True):
    mm_hashes: Mapping[str, Sequence[str]] | None = None
    mm_placeholders: Mapping[str, Sequence[_Place]] | None = None


class _Rendered(msgspec.Struct, frozen=True):
    token_ids: Sequence[int] | None = None  #: of a render path
    features: _Features | None = None
    tokens: Sequence[int] | None = None  #: of /tokenize


_read = msgspec.json.Decoder(_Rendered | list[_Rendered]).decode


class Service:
    """Asks a fixed address, or, without one, any endpoint of the pool.

    Args:
        url: ``http://host:port``; "" asks endpoints.
        seconds: until an answer is not waited for any longer.
        media_seconds: the same, of prompts with images and the like.
        chooser: chooses an endpoint.
    """

    def __init__(
        self, url: str, *, seconds: float, media_seconds: float, chooser: random.Random
    ) -> None:
        self._url = url.rstrip("/")
        self._seconds = seconds
        self._media_seconds = media_seconds
        self._chooser = chooser
        self._session: aiohttp.ClientSession | None = None
        self._no_render: set[str] = set()  # addresses without such a path
        self._asking = 0

    async def tokens(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Tokens:
        """See `Backend.tokens`."""
        if self._asking >= MOST_AT_ONCE:
            raise NoTokens("busy")
        where = self._url or self._any(endpoints)
        seconds = self._media_seconds if request.multimodal else self._seconds
        self._asking += 1
        try:
            async with asyncio.timeout(seconds):
                return await self._ask(where, request)
        except TimeoutError:
            raise NoTokens("timeout") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise NoTokens("connection") from None
        finally:
            self._asking -= 1

    async def close(self) -> None:
        """See `Backend.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _any(self, endpoints: Sequence[Endpoint]) -> str:
        if not endpoints:
            raise NoTokens("no_endpoint")
        return f"http://{self._chooser.choice(endpoints).address}"

    async def _ask(self, where: str, request: InferenceRequest) -> Tokens:
        if where not in self._no_render:
            status, page = await self._post(where + RENDER[request.format], request)
            if status == 200:
                return _tokens(page, "render")
            if status not in (404, 405):
                raise NoTokens("refused")
        if request.multimodal:
            raise NoTokens("media")  # /tokenize does not say where they are
        status, page = await self._post(where + TOKENIZE, request)
        if status != 200:
            raise NoTokens("refused")
        self._note(where)
        return _tokens(page, "tokenize")

    def _note(self, where: str) -> None:
        """Note that there is no render path; a model that is not known is 404 there and elsewhere."""
        if len(self._no_render) >= MOST_AT_ONCE:
            self._no_render.clear()
        self._no_render.add(where)

    async def _post(self, url: str, request: InferenceRequest) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"}
        if not self._url and "authorization" in request.headers:
            headers["authorization"] = request.headers["authorization"]  # engines get it anyway
        async with self._open().post(url, data=request.body, headers=headers) as answer:
            page = await answer.content.read(MOST_BYTES)
            while len(page) < MOST_BYTES and (more := await answer.content.read(MOST_BYTES)):
                page += more
            return answer.status, page

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=30),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def _tokens(page: bytes, source: str) -> Tokens:
    try:
        told = _read(page)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NoTokens("unreadable") from None
    prompts = told if isinstance(told, list) else [told]
    every = [each.token_ids if each.token_ids is not None else each.tokens for each in prompts]
    if not every or any(ids is None for ids in every):
        raise NoTokens("unreadable")
    first = every[0] or ()
    count = sum(len(ids or ()) for ids in every)
    return Tokens(pack(first), count, source, tuple(_media(prompts[0].features)))


def _media(features: _Features | None) -> Iterator[tuple[int, str]]:
    """Yield where media begin and what the engine calls them, in order."""
    if features is None or not features.mm_hashes or not features.mm_placeholders:
        return
    found = [
        (place.offset, name)
        for modality, names in features.mm_hashes.items()
        for name, place in zip(names, features.mm_placeholders.get(modality, ()), strict=False)
    ]
    yield from sorted(found)
