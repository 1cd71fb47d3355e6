"""Who asks: ``agent-identity`` and ``session-id-producer`` read it from a request's headers.

They run before admission, so that the turns of one session share one fair queue.

**Source:** parameters and header names of llm-d's plugins of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any, ClassVar

import msgspec

from epp import headers, plugin
from epp.model import InferenceRequest

AGENT_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
MAX_ID_CHARS = 256  #: longer ids are no ids; they would be kept as names of flows


class AgentIdentity:
    """Makes an agent's session the request's, and its flow unless the request names one.

    Envoy may be told to refuse header names with underscores; ``session_id`` then never arrives.
    """

    type: ClassVar[str] = "agent-identity"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        additional_session_headers: tuple[str, ...] = ()  #: looked at first, in this order

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        own = [name.lower() for name in params.additional_session_headers]
        self._headers = (*own, *AGENT_HEADERS)

    def prepare(self, request: InferenceRequest) -> InferenceRequest:
        """See `plugin.Preparer.prepare`."""
        session = _first(request, self._headers)
        if not session:
            return request
        named = request.flow not in {"", headers.DEFAULT_FLOW}
        return msgspec.structs.replace(
            request,
            flow=request.flow if named else session,
            session=request.session or session,
        )


class SessionIdProducer:
    """Reads the client's session from a header or a cookie, for the session plugins."""

    type: ClassVar[str] = "session-id-producer"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        header_name: str = ""  #: one of the two; neither means ``x-session-id``
        cookie_name: str = ""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        if params.header_name and params.cookie_name:
            raise ValueError("set one of headerName and cookieName, not both")
        self._cookie = params.cookie_name
        self._headers = (params.header_name.lower() or headers.SESSION_ID,)

    def prepare(self, request: InferenceRequest) -> InferenceRequest:
        """See `plugin.Preparer.prepare`."""
        session = _cookie(request, self._cookie) if self._cookie else _first(request, self._headers)
        return msgspec.structs.replace(request, session=session) if session else request


def _first(request: InferenceRequest, names: Sequence[str]) -> str:
    for name in names:
        value = request.headers.get(name, "").strip()
        if value and len(value) <= MAX_ID_CHARS:
            return value
    return ""


def _cookie(request: InferenceRequest, name: str) -> str:
    raw = request.headers.get("cookie")
    if not raw:
        return ""
    try:
        found = SimpleCookie(raw).get(name)
    except CookieError:
        return ""
    value = "" if found is None else found.value
    return value if len(value) <= MAX_ID_CHARS else ""


IDENTITIES: tuple[type[Any], ...] = (AgentIdentity, SessionIdProducer)
