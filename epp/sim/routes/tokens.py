"""The part of a model server's API that is about tokens only: nothing is computed."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from epp.sim import tokenizer
from epp.sim.asked import chat, missing, read, read_json, texts
from epp.sim.calls import Room


def answered(value: Any, status: int = 200) -> web.Response:
    """Return an answer in JSON; bytes are JSON already."""
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json")


def add(app: web.Application, room: Room) -> None:
    """Add the paths to a server with these limits."""

    async def tokenize(request: web.Request) -> web.Response:
        body = await _body(request)
        if "messages" in body:
            ids = chat(body, generation=bool(body.get("add_generation_prompt", True)))
        else:
            ids = texts("prompt", body)[0]
        strings = None
        if body.get("return_token_strs"):
            strings = [tokenizer.decode(ids[i : i + 1]) for i in range(len(ids))]
        counted = {"count": len(ids), "max_model_len": room.max_model_len}
        return answered({**counted, "tokens": ids.tolist(), "token_strs": strings})

    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/detokenize", _detokenize)
    for path in ("/v1/chat/completions", "/v1/completions"):
        app.router.add_post(f"{path}/render", _render)


async def _detokenize(request: web.Request) -> web.Response:
    body = await _body(request)
    if "tokens" not in body:
        raise missing("tokens", body)
    return answered({"prompt": tokenizer.decode(texts("tokens", body)[0])})


async def _render(request: web.Request) -> web.Response:
    """The token ids that an inference request's prompt has."""
    api = "chat" if "chat" in request.path else "completions"
    asked = read(api, await _body(request))
    told = [{"token_ids": ids.tolist()} for ids in asked.prompts]
    return answered(told[0] if api == "chat" else told)


async def _body(request: web.Request) -> dict[str, Any]:
    return read_json(request.headers.get("content-type", ""), await request.read())
