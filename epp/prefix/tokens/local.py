"""Token ids from a tokenizer in this process, by threads of its own.

The model's folder has what an engine has too: ``tokenizer.json``, ``tokenizer_config.json`` and, in
that or beside it, the chat template. Nothing is ever downloaded. Tokenizing lets go of the
interpreter's lock, so the event loop goes on meanwhile.

Conversations repeat what they said. Between special tokens, as templates put them around each
message, text is tokenized by itself; so pieces are remembered, and only the new tail of a
conversation is tokenized. That holds where a piece's tokens do not depend on what stands before
it: not for tokenizers that put a mark before the first word.

Reading a tokenizer of 150,000 tokens takes 0.7 s, so where an event loop runs a thread reads it, and
requests go on without meanwhile. Letting go of one holds the interpreter for 50 ms, so the last few
are kept: a configuration that is read again has them at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from epp.model import Endpoint, InferenceRequest, Tokens
from epp.prefix.tokens.backend import NoTokens, pack
from epp.prefix.tokens.template import ChatTemplate, TemplateError

THREADS = 2
MOST_WAITING = 64  #: requests; more are not tokenized
REMEMBERED_BYTES = 64 << 20  #: of text and token ids of pieces
MOST_KEPT = 4  #: models that were read
USUAL = {
    "add_special_tokens": {"chat": False, "completions": True},
    "chat_template": None,
    "continue_final_message": False,
    "truncate_prompt_tokens": None,
}
"""What a request may ask of the engine's tokenizing, and without which it is done as here."""
GIVEN = ("messages", "tools", "chat_template", "continue_final_message")
"""Not to be said by a request in ``chat_template_kwargs``: engines refuse it, or render otherwise."""
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")


_log = logging.getLogger(__name__)
_kept: OrderedDict[tuple[str, int], Model] = OrderedDict()
"""Models that were read, by folder and time of the tokenizer's last change."""


class Model:
    """A model's tokenizer and template; not for several threads at once, but for one at a time."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        template: ChatTemplate | None,
        split: re.Pattern[str] | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._pieces = _Pieces(split)

    @classmethod
    def read(cls, folder: str) -> Model:
        """Read a model's folder.

        Raises:
            ValueError: the folder does not hold one.
        """
        path = Path(folder)
        try:
            text = (path / "tokenizer.json").read_text(encoding="utf-8")
            tokenizer = tokenizers.Tokenizer.from_str(text)
            config = _json(path / "tokenizer_config.json")
        except Exception as error:
            raise ValueError(f"{folder!r} holds no tokenizer: {error}") from error
        return cls(tokenizer, _template(path, config), _splitter(tokenizer))

    def twin(self) -> Model:
        """Return one for another thread, which remembers pieces of its own."""
        return Model(self._tokenizer, self._template, self._pieces.split)

    def completion(self, text: str) -> bytes:
        """Return the token ids of a prompt, with what the tokenizer adds."""
        return pack(self._tokenizer.encode(text).ids)

    def chat(self, body: Mapping[str, Any]) -> bytes:
        """Return the token ids of a chat request.

        Raises:
            TemplateError: there is no template, or it refuses the conversation.
        """
        if self._template is None:
            raise TemplateError("there is no chat template")
        return self._pieces.encode(self._template.render(body), self._encode)

    def _encode(self, text: str) -> bytes:
        return pack(self._tokenizer.encode(text, add_special_tokens=False).ids)


class _Pieces:
    """Pieces of texts between special tokens, with their token ids."""

    def __init__(self, split: re.Pattern[str] | None) -> None:
        self.split = split
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def encode(self, text: str, encode: Any) -> bytes:
        if self.split is None:
            return bytes(encode(text))
        return b"".join([self._piece(each, encode) for each in self.split.split(text) if each])

    def _piece(self, text: str, encode: Any) -> bytes:
        found = self._known.pop(text, None)
        if found is None:
            found = encode(text)
            self._bytes += _size(text, found)
        self._known[text] = found
        while self._bytes > REMEMBERED_BYTES:
            old, ids = self._known.popitem(last=False)
            self._bytes -= _size(old, ids)
        return found


class Local:
    """Tokenizes in threads.

    Where an event loop runs, a thread reads the folder; what is wrong with it is said in the log.

    Args:
        folder: the model's.
        seconds: until a request goes on without.

    Raises:
        ValueError: the folder does not hold one.
    """

    def __init__(self, folder: str, *, seconds: float) -> None:
        self._models: list[Model] = []
        self._lacking = "loading"  # why there is no model, a fixed word; "" once there is
        self._seconds = seconds
        self._waiting = 0
        self._pool = ThreadPoolExecutor(THREADS, "tokens")
        key = _key(folder)  # before it is read: what changes meanwhile is read again
        kept = _kept.get(key)
        if kept is not None or not _loop_runs():
            self._have(kept or Model.read(folder), key)
        else:
            self._pool.submit(self._read, folder, key)

    async def tokens(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Tokens:
        """See `Backend.tokens`."""
        del endpoints
        if request.multimodal:
            raise NoTokens("media")
        if self._lacking:
            raise NoTokens(self._lacking)
        if self._waiting >= MOST_WAITING:
            raise NoTokens("busy")
        self._waiting += 1
        future = self._pool.submit(self._work, request.format, request.body)
        future.add_done_callback(partial(_back, asyncio.get_running_loop(), self._done))
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise NoTokens("timeout") from None

    async def close(self) -> None:
        """See `Backend.close`."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, folder: str, key: tuple[str, int]) -> None:
        try:
            self._have(Model.read(folder), key)
        except ValueError as error:
            _log.error("no prompt is tokenized: %s", error)
            self._lacking = "unusable"

    def _have(self, model: Model, key: tuple[str, int]) -> None:
        self._models = [model.twin() for _ in range(THREADS)]
        self._lacking = ""
        _kept[key] = model
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)

    def _done(self) -> None:
        self._waiting -= 1

    def _work(self, form: str, body: bytes) -> Tokens:
        try:
            model = self._models.pop()
        except IndexError:
            raise NoTokens("busy") from None
        try:
            return _tokens(model, form, body)
        finally:
            self._models.append(model)


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _key(folder: str) -> tuple[str, int]:
    """Name what a folder holds.

    Raises:
        ValueError: there is no tokenizer.
    """
    path = Path(folder).resolve() / "tokenizer.json"
    try:
        return str(path), path.stat().st_mtime_ns
    except OSError as error:
        raise ValueError(f"{folder!r} holds no tokenizer: {error}") from error


def _back(
    loop: asyncio.AbstractEventLoop, done: Callable[[], None], future: Future[Tokens]
) -> None:
    del future
    if not loop.is_closed():
        loop.call_soon_threadsafe(done)


def _tokens(model: Model, form: str, body: bytes) -> Tokens:
    try:
        asked = msgspec.json.decode(body)
        if not isinstance(asked, dict):
            raise NoTokens("unreadable")
        if not _is_usual(asked, form):
            raise NoTokens("options")
        if form == "chat":
            ids = [model.chat(asked)]
        else:
            prompts = asked["prompt"] if isinstance(asked["prompt"], list) else [asked["prompt"]]
            ids = [model.completion(each) for each in prompts]
        return Tokens(ids[0], sum(map(len, ids)) // 4, "local")
    except TemplateError:
        raise NoTokens("template") from None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise NoTokens("unreadable") from None


def _is_usual(asked: Mapping[str, Any], form: str) -> bool:
    """Whether an engine renders and tokenizes the prompt as it does without being told how."""
    for name, usual in USUAL.items():
        value = asked.get(name)
        if value is not None and value != (usual[form] if isinstance(usual, dict) else usual):
            return False
    more = asked.get("chat_template_kwargs")
    return not isinstance(more, dict) or not any(name in more for name in GIVEN)


def _size(text: str, ids: bytes) -> int:
    return 4 * len(text) + len(ids) + 200


def _json(path: Path) -> Mapping[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _template(path: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    beside = path / "chat_template.jinja"
    text = beside.read_text(encoding="utf-8") if beside.is_file() else config.get("chat_template")
    if isinstance(text, list):  # several, by name
        text = next((each["template"] for each in text if each.get("name") == "default"), None)
    if not isinstance(text, str):
        return None
    special = {name: _content(config[name]) for name in SPECIAL if config.get(name)}
    return ChatTemplate(text, special)


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _splitter(tokenizer: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Return what splits text at special tokens and keeps them; None if pieces are not independent.

    The tokenizer tells its own parts: reading its file again would take as long as the first time.
    """
    added = [each for each in tokenizer.get_added_tokens_decoder().values() if each.special]
    plain = not any(each.lstrip or each.rstrip for each in added)
    if not added or not plain or tokenizer.normalizer is not None:
        return None
    cutter = tokenizer.pre_tokenizer
    if cutter is None or not _is_bytes(json.loads(cutter.__getstate__())):
        return None
    every = sorted((each.content for each in added), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, every)) + ")")


def _is_bytes(pre: Mapping[str, Any]) -> bool:
    """Whether text is cut into words the same way wherever it stands."""
    if pre.get("type") == "Sequence":
        return all(_is_bytes(each) for each in pre.get("pretokenizers") or ())
    if pre.get("type") == "ByteLevel":
        return not pre.get("add_prefix_space")
    return pre.get("type") in ("Split", "Digits", "Punctuation")
