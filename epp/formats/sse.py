"""Split an event stream into events, whatever pieces it comes in.

Follows the standard: lines end in LF, CRLF or CR, also when a CRLF is cut in two; a leading byte
order mark is dropped; comments and unknown fields are ignored; the data lines of one event are
joined by LF; an event without data is none; an event that is not finished when the stream ends
is dropped. Only ``data`` is kept, as bytes.

Memory is bounded: an event over ``max_event_bytes`` is skipped and counted.

**Source:** https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6.
"""

from __future__ import annotations

import codecs

DONE = b"[DONE]"  #: the last data of an OpenAI stream; it is not JSON
MAX_EVENT_BYTES = 1024 * 1024


class Splitter:
    """One stream being split.

    Args:
        max_event_bytes: of one event's lines; a longer event is skipped.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.skipped = 0  #: events that were too long
        self._max = max_event_bytes
        self._line: list[bytes] = []  #: pieces of the line that has not ended
        self._data: list[bytes] = []  #: data lines of the event that has not ended
        self._size = 0  #: bytes in both
        self._too_long = False
        self._ended_in_cr = False  #: a LF that comes first belongs to it
        self._begun = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next piece; return the data of the events that it finishes, in order."""
        if not piece:
            return []
        if self._ended_in_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._ended_in_cr = False
            if not piece:
                return []
        self._ended_in_cr = piece.endswith(b"\r")
        lines = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events: list[bytes] = []
        for rest in lines[:-1]:
            self._keep(rest)
            self._end_line(events)
        self._keep(lines[-1])
        return events

    def _keep(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        if self._size > self._max:
            self._too_long = True
            # What follows is only looked at to see whether a line is empty.
            self._line, self._data = [b"x"], []
        else:
            self._line.append(part)

    def _end_line(self, events: list[bytes]) -> None:
        line = b"".join(self._line)
        self._line = []
        if not self._begun:
            self._begun = True
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line:
            self._end_event(events)
            return
        if self._too_long:
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        else:
            self._size -= len(line)  # comments that keep a stream alive must not add up

    def _end_event(self, events: list[bytes]) -> None:
        if self._too_long:
            self.skipped += 1
        elif self._data:
            events.append(b"\n".join(self._data))
        self._data, self._size, self._too_long = [], 0, False
