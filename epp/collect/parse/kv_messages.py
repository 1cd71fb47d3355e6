"""The frames around KV events: published messages, and what a replay answers.

Published: ``[topic, number, payload]``. Replayed: an empty frame, and since vLLM 0.28 a topic,
before number and payload; the end mark has the number -1 and an empty payload. A number is eight
bytes, big-endian.

A topic is ``kv@<pod>@<model>`` by convention only; a model's name may have an ``@`` of its own.
SGLang puts a zero byte and what tells its processes apart after the topic, if it tells snapshots.

**Source:** ``ZmqEventPublisher`` of vLLM 0.11 to 0.32 and of SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

NUMBER_BYTES = 8
END = (1 << 64) - 1  #: -1 as it is sent


class Message(msgspec.Struct, frozen=True):
    """One message, published or replayed."""

    topic: str
    number: int
    payload: bytes

    @property
    def ends(self) -> bool:
        """Whether it is the end mark of a replay."""
        return self.number == END and not self.payload


class Topic(msgspec.Struct, frozen=True):
    """What a topic says by convention; "" is not told."""

    pod: str = ""
    model: str = ""


def read(frames: Sequence[bytes]) -> Message | None:
    """Return the message; None if these frames are none."""
    if len(frames) == 4 and not frames[0]:
        return _message(frames[1], frames[2:])
    return _message(frames[0], frames[1:]) if len(frames) == 3 else None


def ask(start: int) -> list[bytes]:
    """Return the frames that ask for all messages from number ``start`` on that are remembered."""
    return [b"", start.to_bytes(NUMBER_BYTES, "big")]


def topic(text: str) -> Topic:
    """Read a topic; one that is not of the convention tells nothing."""
    parts = text.split("@", 2)
    return Topic(parts[1], parts[2]) if len(parts) == 3 else Topic()


def _message(topic: bytes, frames: Sequence[bytes]) -> Message | None:
    number, payload = frames[0], frames[-1]
    if len(frames) != 2 or len(number) != NUMBER_BYTES:
        return None
    text = topic.partition(b"\0")[0].decode(errors="replace")
    read = Message(text, int.from_bytes(number, "big"), payload)
    return None if read.number == END and payload else read  # no number could come after it
