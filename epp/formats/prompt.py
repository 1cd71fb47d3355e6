"""The canonical prompt: bytes that begin alike exactly as far as the engine's prompts do.

About four bytes stand for one token. Text goes in as UTF-8; whatever else shapes the rendered
prompt (tools, roles, tool calls, images) goes in as a two-byte mark and its JSON as the client
wrote it. The marks begin with 0xFF, which UTF-8 never contains, so no two conversations read
alike, and nothing closes the last message, so the next turn begins with this one's bytes.

JSON is taken as written: the same tools with other spacing or key order are another prompt.
That can miss a match and never claims one that is not there. ``cache_control`` is left out of
the known parts, since clients move it from turn to turn.

Token ids go in as little-endian uint32, without marks. Text starts with four bytes that no
vocabulary has as an id, so ids and text never meet.

**Source:** four bytes a token, and images as width x height / 1024 tokens of 640 x 360 when the
size is not told, are the estimates of llm-d-router's ``token-producer``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_intdigest

from epp.model import Medium

BYTES_PER_TOKEN = 4
MAX_PIECES = 200_000  #: parts of one prompt; more would take a second to read
MAX_COMMAS = 1_000_000
"""In a body of messages; each may begin an object of 100 bytes, and 30 MB of ``{},`` would take 1 GB
of memory and stop every other request for seconds. Also no model's context holds that many."""
MAX_LISTED_COMMAS = 4_000_000  #: in a list of prompts: token ids have many, and cost less each
ABSENT = Raw()  #: default of every raw field

IMAGE_TOKENS = 640 * 360 // 1024
AUDIO_TOKENS = 250  #: ten seconds at 25 tokens a second, if only a URL is given
AUDIO_BASE64_PER_TOKEN = 1_700  #: 16-bit mono at 16 kHz, 25 tokens a second, in base64
VIDEO_TOKENS = 20 * IMAGE_TOKENS  #: ten seconds at two frames a second
DOCUMENT_TOKENS = 1_000

START = b"\xff\xff\xff"  #: followed by one byte that names the API
HEAD = b"\xffH"
MESSAGE = b"\xffM"
NAME = b"\xffN"
TEXT = b"\xffT"
REASONING = b"\xffR"
MEDIA = b"\xffI"
OTHER = b"\xffO"
CALL = b"\xffC"
CALL_ID = b"\xffD"

_TEXTS = frozenset({"text", "input_text", "output_text", "refusal", ""})
_MEDIA: Mapping[str, tuple[str, int]] = {
    "image": ("image", IMAGE_TOKENS),
    "image_url": ("image", IMAGE_TOKENS),
    "input_image": ("image", IMAGE_TOKENS),
    "image_pil": ("image", IMAGE_TOKENS),
    "image_embeds": ("image", IMAGE_TOKENS),
    "audio": ("audio", AUDIO_TOKENS),
    "audio_url": ("audio", AUDIO_TOKENS),
    "input_audio": ("audio", AUDIO_TOKENS),
    "video": ("video", VIDEO_TOKENS),
    "video_url": ("video", VIDEO_TOKENS),
    "document": ("document", DOCUMENT_TOKENS),
    "file": ("document", DOCUMENT_TOKENS),
    "input_file": ("document", DOCUMENT_TOKENS),
}

Content = str | list[Raw] | None


class Unreadable(Exception):
    """The body is JSON, but not what its API asks for; the one argument is a fixed word."""


class Message(msgspec.Struct, gc=False):
    """One message of a conversation, as OpenAI and Anthropic write it."""

    role: Raw = ABSENT
    content: Content = None
    name: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    tool_calls: Raw = ABSENT
    function_call: Raw = ABSENT
    tool_call_id: Raw = ABSENT
    audio: Raw = ABSENT

    @property
    def plain(self) -> bool:
        """Whether it has a role and content only, as most messages do."""
        return (
            self.name is ABSENT
            and self.tool_calls is ABSENT
            and self.tool_call_id is ABSENT
            and self.reasoning is ABSENT
            and self.reasoning_content is ABSENT
            and self.function_call is ABSENT
            and self.audio is ABSENT
        )


class Part(msgspec.Struct, gc=False):
    """One part of a message's content: the fields by which any API's parts are told apart."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    id: Raw = ABSENT
    name: Raw = ABSENT
    input: Raw = ABSENT
    tool_use_id: Raw = ABSENT
    content: Raw = ABSENT
    input_audio: Raw = ABSENT
    source: Raw = ABSENT


_ids = msgspec.json.Decoder(list[int]).decode
_raws = msgspec.json.Decoder(list[Raw]).decode
_QUOTE, _NULL = b'"n'  #: first bytes of a string, and of null
_part = msgspec.json.Decoder(Part).decode
_text = msgspec.json.Decoder(str).decode
_content = msgspec.json.Decoder(Content).decode


class Canonical:
    """A canonical prompt being written.

    Args:
        api: one byte that tells the API, as each renders its requests in its own way.
    """

    __slots__ = ("_pieces", "media")

    def __init__(self, api: bytes) -> None:
        self._pieces: list[bytes] = [START, api]
        self.media: list[Medium] = []  #: each image, sound or video that went in

    def done(self) -> bytes:
        """Return the prompt."""
        return b"".join(self._pieces)

    def raw(self, mark: bytes, value: Raw) -> None:
        """Append JSON as written; nothing if it is absent or null."""
        if value is ABSENT:
            return
        written = bytes(value)
        if written == b"null":
            return
        if b"\xff" in written:  # skipped strings are not checked for UTF-8
            raise Unreadable("bad-text")
        self._pieces += (mark, written)

    def text(self, text: str, mark: bytes = TEXT) -> None:
        """Append text."""
        self._pieces += (mark, text.encode())

    def message(self, message: Message) -> None:
        """Append one message of a conversation."""
        role = bytes(message.role)
        if b"\xff" in role:
            raise Unreadable("bad-text")
        self._pieces += (MESSAGE, role)
        if message.plain:
            self.content(message.content)
            return
        self.raw(NAME, message.name)
        self.raw(REASONING, message.reasoning)
        self.raw(REASONING, message.reasoning_content)
        self.content(message.content)
        self.raw(CALL, message.tool_calls)
        self.raw(CALL, message.function_call)
        self.raw(CALL_ID, message.tool_call_id)
        self.raw(OTHER, message.audio)

    def content(self, content: Content, *, nested: bool = False) -> None:
        """Append a message's content: text, or parts of any kind."""
        if content is None:
            return
        if isinstance(content, str):
            self._pieces += (TEXT, content.encode())
            return
        if len(self._pieces) + len(content) > MAX_PIECES:
            raise Unreadable("too-large")
        for part in content:
            self._part(part, nested=nested)

    def _part(self, raw: Raw, *, nested: bool) -> None:
        if memoryview(raw)[0] == _QUOTE:
            self.text(_text(raw))
            return
        part = _part(raw)
        text = part.refusal if part.text is None else part.text
        if text is not None and part.type in _TEXTS:
            self.text(text)
        elif part.thinking is not None and part.type == "thinking":
            self.text(part.thinking, REASONING)
        elif (medium := _MEDIA.get(part.type)) is not None:
            # Of Anthropic's images only the source counts: clients move `cache_control`.
            content = part.source if part.type == "image" and given(part.source) else raw
            modality, tokens = medium
            if part.input_audio is not ABSENT:
                tokens = audio_tokens(part)
            self._media(content, tokens, modality)
        elif part.type == "tool_use":
            self.raw(CALL_ID, part.id)
            self.raw(CALL, part.name)
            self.raw(CALL, part.input)
        elif part.type == "tool_result" and not nested:  # once: a body cannot make this recurse
            self.raw(CALL_ID, part.tool_use_id)
            if part.content is not ABSENT:
                self.content(_content(part.content), nested=True)
        else:
            self.raw(OTHER, raw)

    def _media(self, raw: Raw, tokens: int, modality: str) -> None:
        """Append as many bytes as the medium takes tokens, all made of its hash."""
        item = xxh3_64_intdigest(raw)
        self.media.append(Medium(modality, item))
        digest = b"%016x" % item
        size = tokens * BYTES_PER_TOKEN
        self._pieces += (MEDIA, (digest * (size // len(digest) + 1))[:size])


def audio_tokens(part: Part) -> int:
    """Tokens of an inline sound, from its size."""
    return max(4, memoryview(part.input_audio).nbytes // AUDIO_BASE64_PER_TOKEN)


def count(prompt: bytes) -> int:
    """Tokens of a canonical prompt; the last may be cut short."""
    return -(-len(prompt) // BYTES_PER_TOKEN)


def pack(ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian uint32.

    Raises:
        Unreadable: one of them is no uint32.
    """
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error as error:
        raise Unreadable("bad-shape") from error


def check_commas(body: bytes | memoryview | Raw, most: int = MAX_COMMAS) -> None:
    """Refuse JSON that would become too many objects, before it does.

    Raises:
        Unreadable: it has more than ``most`` commas.
    """
    view = memoryview(body)
    if view.nbytes > most and bytes(view).count(b",") > most:
        raise Unreadable("too-large")


def given(value: Raw) -> bool:
    """Whether a raw field is there and not null."""
    return value is not ABSENT and memoryview(value)[0] != _NULL


def first_of(api: bytes, prompts: Raw) -> tuple[bytes, int]:
    """Return the canonical prompt of text or token ids, or of a list of these, and all tokens.

    A request with several prompts is known by its first one: the engine runs each of them
    as a request of its own, and only one place can be chosen for all.

    Raises:
        Unreadable: there is no prompt, or there are too many.
        msgspec.ValidationError: it is something else.
    """
    if not given(prompts):
        raise Unreadable("no-prompt")
    if memoryview(prompts)[0] == _QUOTE:
        return _one(api, prompts)
    try:
        ids = _ids(prompts)
    except msgspec.ValidationError:
        check_commas(prompts, MAX_LISTED_COMMAS)
        return _several(api, _raws(prompts))
    if not ids:
        raise Unreadable("no-prompt")
    return pack(ids), len(ids)


def _several(api: bytes, prompts: list[Raw]) -> tuple[bytes, int]:
    if len(prompts) > MAX_PIECES:
        raise Unreadable("too-large")
    key, tokens = _one(api, prompts[0])
    return key, tokens + sum(_one(api, prompt)[1] for prompt in prompts[1:])


def _one(api: bytes, prompt: Raw) -> tuple[bytes, int]:
    if memoryview(prompt)[0] == _QUOTE:
        key = START + api + _text(prompt).encode()
        return key, count(key)
    ids = _ids(prompt)
    return pack(ids), len(ids)
