"""Requests with media over the protocol, and what the metrics page says of encoders' caches."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from tests.support import ext_proc
from tests.support.serving import Serving, answer, serving

CONFIG = "plugins: [{type: mm-embeddings-cache-scorer}]"
PLUGIN = 'plugin_name="mm-embeddings-cache-producer",plugin_type="mm-embeddings-cache-producer"'
IMAGE = {"type": "image_url", "image_url": {"url": "http://a/1.png"}}
VIDEO = {"type": "video_url", "video_url": {"url": "http://a/1.mp4"}}


async def show(picker: Serving, *parts: object) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    head = {":path": "/v1/chat/completions", "content-type": "application/json"}
    async with picker.gateway.stream() as stream:
        await stream.send(
            ext_proc.request_head(head),
            ext_proc.request_body(msgspec.json.encode(body), ends=True),
        )
        destination = ext_proc.destination(await stream.read())
        await stream.read()
        await answer(stream)
    return destination


async def page(picker: Serving) -> dict[str, float]:
    """The values of our three metrics, by series, each with its labels in order."""
    found = dict[str, float]()
    for line in (await picker.get("/metrics"))[1].splitlines():
        if line.startswith("llm_d_epp_encoder_cache_") and "_bucket{" not in line:
            series, _, value = line.removeprefix("llm_d_epp_encoder_cache_").rpartition(" ")
            name, _, labels = series.rstrip("}").partition("{")
            found[f"{name}{{{','.join(sorted(labels.split(',')))}}}"] = float(value)
    return found


def test_an_image_shown_twice_and_a_video_once_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, f"--config-text={CONFIG}") as picker:
            first = await show(picker, IMAGE)
            assert await show(picker, IMAGE, VIDEO) == first
            counts = await page(picker)
            created = {name for name in counts if "_created" in name}
            assert {name: counts[name] for name in counts.keys() - created} == {
                f'queries_total{{modality="image",{PLUGIN}}}': 2.0,
                f'queries_total{{modality="video",{PLUGIN}}}': 1.0,
                f'hits_total{{modality="image",{PLUGIN},pod="{first}"}}': 1.0,
                # Two endpoints each time: nothing of one; then half of two at the first.
                f"hit_ratio_count{{{PLUGIN}}}": 4.0,
                f"hit_ratio_sum{{{PLUGIN}}}": 0.5,
            }

    asyncio.run(main())
