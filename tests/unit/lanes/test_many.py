"""The lanes of a process, without a cluster: opened, changed, closed, configured anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from epp.catalog import Catalog
from epp.clock import ManualClock
from epp.collect.kube.configs import NONE, Config
from epp.collect.parse.inference_pools import PoolSpec
from epp.errors import ConfigError
from epp.lanes.lane import Shared, Told
from epp.lanes.many import Many
from epp.serve.options import ServeOptions
from epp.telemetry.log import Seldom
from epp.telemetry.metrics import Metrics
from tests.support import build
from tests.support.pages import running, until

RANDOM = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{name: {name}, type: random-picker}}
schedulingProfiles:
- {{name: default, plugins: [{{pluginRef: {name}}}]}}
"""
GRPC = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: vllmgrpc-parser}, {type: random-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}
"""
OPTIONS = ServeOptions(all_pools=True, pool_namespace="models")


class Process:
    """Many lanes, and the process's configuration."""

    def __init__(self, options: ServeOptions = OPTIONS) -> None:
        self.text: str | None = RANDOM.format(name="first")
        self.warned: list[str] = []
        clock = ManualClock()
        self.many = Many(
            Shared(options, clock, Catalog(()), Seldom(clock, self.warned.append)),
            Metrics(process=False),
            self._read,
        )

    def _read(self) -> Told:
        return self.text, "file"

    def plugins(self, pool: str) -> list[str]:
        names = ("first", "second", "own")
        return [name for name in self.many.lanes[pool].plugins if name in names]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """As in a cluster that cannot be reached."""
        async with running(self.many._run()):
            await asyncio.sleep(0)
            yield


def spec(name: str, **more: Any) -> PoolSpec:
    return PoolSpec((8000,), {"app": name}, name=name, **more)


def test_a_wrong_configuration_of_the_process_fails_the_start() -> None:
    process = Process()
    process.text = "plugins: 7"
    with pytest.raises(ConfigError):
        Many(process.many._shared, Metrics(process=False), process._read)


def test_pools_that_would_record_into_one_file_fail_the_start() -> None:
    options = ServeOptions(all_pools=True, pool_namespace="models", record_file="/tmp/traffic")
    with pytest.raises(ConfigError, match=r"\{pool\} in its name"):
        Process(options)


def test_a_reload_reaches_the_pools_without_a_configuration_of_their_own() -> None:
    async def main() -> None:
        process = Process()
        many = process.many
        async with process.running():
            many.open(spec("chat"), NONE)
            many.open(spec("code"), Config(RANDOM.format(name="own"), "ConfigMap x/y"))
            process.text = RANDOM.format(name="second")
            many.reload("SIGHUP")
            await until(lambda: process.plugins("chat") == ["second"])
            assert process.plugins("code") == ["own"]
            process.text = "plugins: 7"
            many.reload("SIGHUP")
            await asyncio.sleep(0)
            assert process.plugins("chat") == ["second"]
            many.open(spec("late"), NONE)  # while the file is wrong
            assert process.plugins("late") == ["second"]

    asyncio.run(main())


def test_a_wrong_configuration_of_its_own_leaves_a_new_pool_with_the_processs() -> None:
    process = Process()
    lane = process.many.open(spec("chat"), Config("plugins: 7", "ConfigMap x/y"))
    assert process.plugins("chat") == ["first"]
    assert "ConfigMap x/y" in lane.last_error
    right = Config(RANDOM.format(name="own"), "ConfigMap x/y")
    process.many.change(spec("chat"), right)
    assert (process.plugins("chat"), lane.last_error) == (["own"], "")


@pytest.mark.parametrize(
    "own", [Config("plugins: 7", "ConfigMap x/y"), Config(problem="there is no ConfigMap x")]
)
def test_a_pool_that_fell_back_to_the_processs_follows_its_changes_and_goes_on_saying_so(
    own: Config,
) -> None:
    async def main() -> None:
        process = Process()
        many = process.many
        async with process.running():
            lane = many.open(spec("chat"), own)
            why = lane.last_error
            assert why
            process.text = RANDOM.format(name="second")
            many.reload("SIGHUP")
            await until(lambda: process.plugins("chat") == ["second"])
            assert lane.last_error == why
            many.change(spec("chat"), Config(RANDOM.format(name="own"), "ConfigMap x/y"))
            assert (process.plugins("chat"), lane.last_error) == (["own"], "")
            process.text = RANDOM.format(name="first")
            many.open(spec("other"), NONE)
            many.reload("SIGHUP")
            await until(lambda: process.plugins("other") == ["first"])
            assert process.plugins("chat") == ["own"]

    asyncio.run(main())


def test_a_pool_whose_bad_reference_is_taken_away_has_the_processs_and_no_error() -> None:
    process = Process()
    lane = process.many.open(spec("chat"), Config("plugins: 7", "ConfigMap x/y"))
    process.many.change(spec("chat"), NONE)
    assert (process.plugins("chat"), lane.last_error) == (["first"], "")


def test_a_pool_is_ready_when_its_pods_are_known_and_its_parsers_read_what_they_speak(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process()
    lane = process.many.open(spec("chat", protocol="kubernetes.io/h2c"), NONE)
    other = process.many.open(spec("code", protocol="http"), NONE)
    pages = process.many.pages_by_pool()
    assert [pages[name].ready() for name in ("chat", "code")] == [False, False]
    lane.pool.synced = other.pool.synced = True
    assert [pages[name].ready() for name in ("chat", "code")] == [True, True]
    process.many.change(spec("chat", protocol="http"), Config(GRPC, "ConfigMap x/y"))
    assert [pages[name].ready() for name in ("chat", "code")] == [False, True]
    assert caplog.text.count("its appProtocol is http, which vllmgrpc-parser cannot be") == 1
    process.many.change(
        spec("chat", protocol="kubernetes.io/h2c"), lane_config := Config(GRPC, "x")
    )
    assert pages["chat"].ready()
    process.many.change(spec("chat", protocol="http"), lane_config)
    assert not pages["chat"].ready()


def test_an_endpoint_is_found_in_whatever_pool_it_is() -> None:
    process = Process()
    many = process.many
    chat, code = many.open(spec("chat"), NONE), many.open(spec("code"), NONE)
    endpoint = build.endpoint("a")
    code.pool.put(endpoint)
    assert many.get(endpoint.id) is endpoint
    chat.pool.put(endpoint)
    many.close("code")
    assert many.get(endpoint.id) is endpoint  # in the other one
    chat.pool.remove(endpoint.id)
    assert many.get(endpoint.id) is None
    assert many._homes == {}


def test_only_a_port_that_one_pool_alone_names_is_its_own() -> None:
    options = ServeOptions(all_pools=True, pool_namespace="models", pool_ports=True)
    many = Process(options).many
    many.open(spec("chat", picker_port=9012), NONE)
    many.open(spec("code", picker_port=9012), NONE)
    many.open(spec("more", picker_port=9013), NONE)
    many.open(spec("none"), NONE)
    assert many.ports == {9013: "more"}
    many.change(spec("code", picker_port=9014), NONE)
    assert many.ports == {9012: "chat", 9013: "more", 9014: "code"}
    many.close("chat")
    assert many.ports == {9013: "more", 9014: "code"}
    without = Process().many
    without.open(spec("chat", picker_port=9012), NONE)
    assert without.ports == {}
