"""The configuration changes under a running picker: the real process, over real gRPC."""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path

import pytest

from epp.config.watch import watch_file
from tests.support.serving import Serving, Step, answer, ask, complete, eventually, serving

ENDPOINTS = """
endpoints:
- {name: a, address: 127.0.0.1, port: 1, labels: {zone: x}}
- {name: b, address: 127.0.0.1, port: 2, labels: {zone: y}}
"""
A, B = "127.0.0.1:1", "127.0.0.1:2"

ZONE = """
plugins:
- {type: label-selector-filter, name: zone, parameters: {matchLabels: {zone: %s}}}
- {type: prefix-cache-scorer}
"""
BAD = "plugins: [{type: quue-scorer}]\n"


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.endpoints = folder / "endpoints.yaml"
        self.endpoints.write_text(ENDPOINTS)
        self.config.write_text(ZONE % "x")

    def run(self, step: Step, config: Path | None = None) -> None:
        async def main() -> None:
            async with serving(
                self.folder,
                f"--config-file={config or self.config}",
                endpoints=f"--endpoints-file={self.endpoints}",
            ) as picker:
                await eventually(lambda: nobody_answers(picker))
                await step(picker)

        asyncio.run(main())


async def nobody_answers(picker: Serving) -> bool:
    """Whether both endpoints were scraped: from then on both are candidates for every request."""
    return not any(each["reachable"] for each in await picker.json("/debug/pool"))


async def reloads(picker: Serving, result: str) -> float:
    return await picker.metric(f'epp_config_reloads_total{{result="{result}"}}') or 0.0


async def reloaded(picker: Serving, count: int = 1, result: str = "success") -> None:
    async def enough() -> bool:
        return await reloads(picker, result) >= count

    await eventually(enough)


def test_a_file_that_is_rewritten_in_place_is_used(tmp_path: Path) -> None:
    files = Files(tmp_path)

    async def step(picker: Serving) -> None:
        assert await complete(picker.gateway) == A
        files.config.write_text(ZONE % "y")
        await reloaded(picker)
        assert await complete(picker.gateway) == B
        shown = await picker.json("/debug/config")
        assert shown["config"]["plugins"][0]["parameters"] == {"matchLabels": {"zone": "y"}}
        assert (shown["current"], shown["lastError"]) == (True, "")
        assert await picker.metric("epp_config_current") == 1.0

    files.run(step)


def test_the_symlink_swap_of_a_mounted_config_map_is_used(tmp_path: Path) -> None:
    files = Files(tmp_path)
    mount = tmp_path / "mount"
    for zone in "xy":
        (mount / f"..{zone}").mkdir(parents=True)
        (mount / f"..{zone}" / "config.yaml").write_text(ZONE % zone)
    (mount / "..data").symlink_to("..x")
    (mount / "config.yaml").symlink_to("..data/config.yaml")

    async def step(picker: Serving) -> None:
        assert await complete(picker.gateway) == A
        (mount / "..data_tmp").symlink_to("..y")
        (mount / "..data_tmp").replace(mount / "..data")
        await reloaded(picker)
        assert await complete(picker.gateway) == B

    files.run(step, mount / "config.yaml")


def test_sighup_reads_the_file_at_once_changed_or_not(tmp_path: Path) -> None:
    async def step(picker: Serving) -> None:
        picker.signal(signal.SIGHUP)
        await reloaded(picker)
        assert await complete(picker.gateway) == A
        assert "the configuration was read again (SIGHUP)" in picker.log()

    Files(tmp_path).run(step)


def spoil(file: Path, text: str | None) -> None:
    if text is None:
        file.unlink()
    else:
        file.write_text(text)


def test_a_bad_file_changes_nothing_and_is_told_everywhere(tmp_path: Path) -> None:
    files = Files(tmp_path)

    async def step(picker: Serving) -> None:
        assert await complete(picker.gateway) == A
        before = (await picker.json("/debug/config"))["config"]
        for text, said in (
            (BAD, "did you mean 'queue-scorer'? - at `$.plugins[0].type`"),
            ("a: [b", "is not YAML"),
            (None, "cannot read the configuration"),
        ):
            failures = await reloads(picker, "failure")
            spoil(files.config, text)
            picker.signal(signal.SIGHUP)
            await reloaded(picker, int(failures) + 1, result="failure")

            assert await complete(picker.gateway) == A
            assert await picker.metric("epp_config_current") == 0.0
            shown = await picker.json("/debug/config")
            assert (shown["config"], shown["current"]) == (before, False)
            assert said in shown["lastError"]
            assert (await picker.get("/readyz"))[0] == 200
            complaint = picker.log().splitlines()[-1]
            assert "stays as it was" in complaint
            assert '"level":"error"' in complaint
            assert said in complaint
        assert await reloads(picker, "success") == 0.0

        files.config.write_text(ZONE % "y")
        await reloaded(picker)
        assert await complete(picker.gateway) == B
        assert await picker.metric("epp_config_current") == 1.0
        assert (await picker.json("/debug/config"))["lastError"] == ""

    files.run(step)


def test_what_a_reload_does_not_reach_is_warned_of(tmp_path: Path) -> None:
    files = Files(tmp_path)

    async def step(picker: Serving) -> None:
        files.config.write_text(ZONE % "y")
        await reloaded(picker, 1)
        assert "restart the picker" not in picker.log()
        more = "- {type: core-metrics-extractor, parameters: {defaultEngine: sglang}}\n"
        files.config.write_text(ZONE % "y" + more)
        await reloaded(picker, 2)
        assert "the data layer is configured at start only: restart the picker" in picker.log()

    files.run(step)


def test_a_request_under_way_ends_as_it_began(tmp_path: Path) -> None:
    """Its booking is released by the exchange it was made by, whatever was reloaded since."""
    files = Files(tmp_path)

    async def step(picker: Serving) -> None:
        async with picker.gateway.stream() as stream:
            assert await ask(stream) == A
            files.config.write_text(ZONE % "y")
            await reloaded(picker)
            assert await complete(picker.gateway) == B
            await answer(stream)
        pool = await picker.json("/debug/pool")
        assert [each["in_flight_requests"] for each in pool] == [0, 0]

    files.run(step)


# --- under load --------------------------------------------------------------------

SPREAD = """
plugins:
- {type: prefix-cache-scorer}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: %d}
"""
RATE, SECONDS, AT_ONCE = 300, 5, 64
SLOWEST = 3.0  #: times as long as the load should take, on a machine that has other work
PROMPTS = [f"{index:04} " * 300 for index in range(24)]  # 1500 bytes: 5 blocks of 256 bytes


def test_reloads_under_load_fail_no_request_and_lose_nothing_learned(tmp_path: Path) -> None:
    """300 requests/s, each begun when its time has come, and a reload every second."""
    files = Files(tmp_path)
    files.config.write_text(SPREAD % 1)

    async def step(picker: Serving) -> None:
        homes = {prompt: await complete(picker.gateway, prompt) for prompt in PROMPTS}
        assert set(homes.values()) == {A, B}
        assert await picker.blocks() == 5 * len(PROMPTS)
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)
        strayed: list[tuple[str, str]] = []
        began, asked = loop.time(), RATE * SECONDS

        async def caller(number: int) -> None:
            prompt = PROMPTS[number % len(PROMPTS)]
            async with room:
                destination = await complete(picker.gateway, prompt, name=f"r-{number}")
            if destination != homes[prompt]:
                strayed.append((homes[prompt], destination))

        async def operator() -> None:
            for weight in itertools.count(2):
                files.config.write_text(SPREAD % weight)
                picker.signal(signal.SIGHUP)
                await asyncio.sleep(1.0)

        reloading = asyncio.create_task(operator())
        async with asyncio.TaskGroup() as group:
            for number in range(asked):
                await asyncio.sleep(max(began + number / RATE - loop.time(), 0))
                group.create_task(caller(number))
        took = loop.time() - began
        reloading.cancel()

        assert took < SECONDS * SLOWEST
        assert strayed == []
        assert await reloads(picker, "success") >= 4
        assert await reloads(picker, "failure") == 0
        assert await picker.blocks() == 5 * len(PROMPTS)
        total = asked + len(PROMPTS)
        assert await picker.metric('epp_ended_requests_total{outcome="completed"}') == total
        pool = await picker.json("/debug/pool")
        assert [each["in_flight_requests"] for each in pool] == [0, 0]
        assert '"level":"error"' not in picker.log()

    files.run(step)


# --- the watch ---------------------------------------------------------------------


def test_a_file_that_is_being_written_is_not_read_half(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("old")
    seen: list[str] = []
    done = asyncio.Event()

    async def changed() -> None:
        seen.append(path.read_text())
        done.set()

    async def main() -> None:
        watch = asyncio.create_task(watch_file(str(path), changed, interval=0.01))
        await asyncio.sleep(0)
        with path.open("w") as file:
            for _ in range(30):
                file.write("new ")
                file.flush()
                await asyncio.sleep(0.01)
        await asyncio.wait_for(done.wait(), 5.0)
        watch.cancel()

    asyncio.run(main())
    assert seen == ["new " * 30]


def test_the_watch_outlives_a_missing_file_and_a_failing_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config"
    path.write_text("one")
    seen: list[str] = []

    async def changed() -> None:
        seen.append(path.read_text())
        if seen[-1] == "two":
            raise RuntimeError("reload failed")

    async def main() -> None:
        watch = asyncio.create_task(watch_file(str(path), changed, interval=0.01))
        await asyncio.sleep(0)
        for text in ("two", "three"):
            path.unlink()
            await asyncio.sleep(0.05)
            path.write_text(text)

            async def told(text: str = text) -> bool:
                return seen[-1:] == [text]

            await eventually(told)
        watch.cancel()

    asyncio.run(main())
    assert seen == ["two", "three"]
    assert "reloading after a change" in caplog.text
