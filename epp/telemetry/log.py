"""Logs: one JSON object per line on stderr, with the Go router's keys.

``level``, ``ts``, ``caller``, ``msg``, then whatever a caller adds with ``extra={"fields": {...}}``
(`X_REQUEST_ID` first of all). Nobody logs a prompt, a body, a header's value or a credential, and
exceptions in libraries may hold one: a traceback is logged without the exception's message
where the caller says so.

**Source:** keys of llm-d-router's logs; klog's verbosity (2 default, 3 verbose, 4 debug, 5 trace).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from epp.clock import Clock
from epp.telemetry.text import encode_json

X_REQUEST_ID = "x-request-id"
TRACE_ID = "trace_id"
LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warn"}
DEBUG_VERBOSITY = 4

_STANDARD = {"level", "ts", "caller", "msg"}


def set_up(
    verbosity: int = 2, form: str = "json", *, trace_id: Callable[[], str] | None = None
) -> None:
    """Log to stderr from now on.

    Args:
        verbosity: klog's ``-v``: below 0 errors only, 0 and 1 warnings too, 2 and 3 the usual, 4
            and above everything of ours.
        form: "json" or "console".
        trace_id: tells the trace of the request that is being served, '' outside of one.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    if trace_id is not None:
        handler.addFilter(_Traced(trace_id))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # libraries
    logging.getLogger("epp").setLevel(level_of(verbosity))


def level_of(verbosity: int) -> int:
    """The `logging` level that klog's ``-v`` stands for."""
    if verbosity < 0:
        return logging.ERROR
    if verbosity < 2:
        return logging.WARNING
    return logging.INFO if verbosity < DEBUG_VERBOSITY else logging.DEBUG


class _Traced(logging.Filter):
    """Adds the trace's id to what is logged while a request is served."""

    def __init__(self, trace_id: Callable[[], str]) -> None:
        super().__init__()
        self._trace_id = trace_id

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        if found := self._trace_id():
            record.fields = {**_fields(record), TRACE_ID: found}
        return True


class JsonFormatter(logging.Formatter):
    """One object per line; a value that is no JSON becomes its ``str``."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, Any] = {
            "level": _level(record),
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "caller": f"{record.name}:{record.lineno}",
            "msg": record.getMessage(),
        }
        line.update(_fields(record))
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return encode_json(line).decode()


class ConsoleFormatter(logging.Formatter):
    """One line for people; what a caller added stands at the end as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        text = f"{at}\t{_level(record)}\t{record.name}:{record.lineno}\t{record.getMessage()}"
        if fields := _fields(record):
            text += "\t" + encode_json(fields).decode()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def _level(record: logging.LogRecord) -> str:
    return LEVELS.get(record.levelno, "error")


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """What the caller added; it never replaces a standard key."""
    fields = getattr(record, "fields", None)
    if not isinstance(fields, Mapping):
        return {}
    return {str(key): value for key, value in fields.items() if key not in _STANDARD}


class Seldom:
    """Logs a kind of message at most once in a while, and says how often it was held back."""

    def __init__(
        self,
        clock: Clock,
        log: Callable[[str], None],
        *,
        seconds: float = 60.0,
        kinds: int = 100,
    ) -> None:
        """Hand messages to ``log`` once in ``seconds`` each; know ``kinds`` of them at most."""
        self._clock = clock
        self._log = log
        self._seconds = seconds
        self._kinds = kinds
        self._last: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    def __call__(self, text: str, *, kind: str = "") -> None:
        """Log ``text`` unless its ``kind`` (the text itself, if not given) was logged lately."""
        kind = kind or text
        now = self._clock.now()
        if now - self._last.get(kind, -self._seconds) < self._seconds:
            self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return
        if kind not in self._last and len(self._last) >= self._kinds:
            oldest = min(self._last, key=self._last.__getitem__)
            del self._last[oldest]
            self._held_back.pop(oldest, None)
        self._last[kind] = now
        held_back = self._held_back.pop(kind, 0)
        self._log(f"{text} ({held_back} more like this held back)" if held_back else text)
