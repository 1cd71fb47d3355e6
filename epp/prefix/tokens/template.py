"""Chat templates: a model's own Jinja text, in a sandbox.

What a template may use is what Hugging Face gives it, so that a rendered text is the engine's.

**Source:** ``render_jinja_template`` of transformers, and vLLM's choice of a content's form: text
for templates that do not look into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

_LOOKS_INSIDE = re.compile(r"for\s+\w+\s+in\s+\w+(\.content|\[['\"]content['\"]\])")


class TemplateError(ValueError):
    """A template does not take this conversation."""


class ChatTemplate:
    """One model's.

    Args:
        text: Jinja.
        special: tokens by name, as ``bos_token``.

    Raises:
        TemplateError: it is no Jinja.
    """

    def __init__(self, text: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005
        self._special = dict(special)
        self._keeps_parts = _LOOKS_INSIDE.search(text) is not None
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template is none: {error}") from error

    def render(self, body: Mapping[str, Any]) -> str:
        """Return the text of a chat request.

        Raises:
            TemplateError: the template refuses it.
        """
        more = body.get("chat_template_kwargs")
        messages = [self._message(each) for each in body.get("messages") or ()]
        try:
            return self._template.render(
                {
                    **self._special,
                    "messages": messages,
                    "tools": body.get("tools") or None,
                    "documents": body.get("documents"),
                    "add_generation_prompt": body.get("add_generation_prompt", True),
                    **(more if isinstance(more, dict) else {}),
                }
            )
        except Exception as error:  # what a template computes from a request can fail in any way
            raise TemplateError(type(error).__name__) from error

    def _message(self, message: Any) -> Any:
        """Return a message as vLLM hands it on: parts of text joined, unless templates read parts."""
        if not isinstance(message, dict):
            raise TemplateError("a message is no object")
        content = message.get("content")
        if isinstance(content, list) and not self._keeps_parts:
            texts = [part.get("text", "") for part in content if isinstance(part, dict)]
            return {**message, "content": "\n".join(map(str, texts))}
        if isinstance(content, str) and self._keeps_parts:
            return {**message, "content": [{"type": "text", "text": content}]}
        return message


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
