"""Which engines there are: those of the beginning, and how they come, go, die and are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from epp.errors import ConfigError
from epp.model import EndpointId
from epp.sim.fleet.pod import Around, Pod, config_of
from epp.sim.fleet.replica import REFUSED, Replica
from epp.sim.fleet.scenario import Add, Crash, Pods, Remove, Rollout, Scenario
from epp.sim.fleet.timeline import Timeline
from epp.sim.model import Config


class Members:
    """The fleet, and what the pickers are told of it.

    Args:
        scenario: tells the fleet and what changes.
        configs: of the engines of each group.
        around: what the engines live in.
    """

    def __init__(
        self,
        scenario: Scenario,
        configs: Sequence[Config],
        timeline: Timeline,
        replicas: Sequence[Replica],
        *,
        around: Around,
        seed: int,
    ) -> None:
        self.pods: dict[EndpointId, Pod] = {}  #: that serve, draining ones included
        self._scenario = scenario
        self._timeline = timeline
        self._replicas = replicas
        self._around = around
        self._seed = seed
        self._made = 0
        self._configs = configs
        self.block_tokens = configs[0].block_tokens  #: the same everywhere
        self.kv_tokens = sum(
            pods.count * config.kv_blocks * config.block_tokens
            for pods, config in zip(scenario.fleet, self._configs, strict=True)
        )
        """Of the fleet as it begins."""

    def start(self) -> None:
        """Have all engines serve, and plan what changes."""
        for group, pods in enumerate(self._scenario.fleet):
            for _ in range(pods.count):
                self._join(group)
        for change in self._scenario.changes:
            self._timeline.at(change.at, self._change, change)

    def emptied(self, pod: Pod) -> None:
        """A request there is over: one that drains leaves with its last."""
        if pod.draining and not pod.sent:
            self._leave(pod)

    def _change(self, change: Crash | Add | Remove | Rollout) -> None:
        if isinstance(change, Crash):
            for pod in self._staying()[: change.pods]:
                self._crash(pod)
        elif isinstance(change, Add):
            pods = self._scenario.fleet[change.group]
            for _ in range(change.pods):
                self._after(pods, lambda: self._join(change.group))
        elif isinstance(change, Remove):
            for pod in self._staying()[-change.pods :]:
                self._drain(pod)
        else:
            self._roll(self._staying(), change.surge)

    def _crash(self, pod: Pod) -> None:
        lost, group = pod.crash(), pod.group
        for request_id in lost:
            self._around.fail(request_id)
        noticed = REFUSED * self._scenario.pickers.scrape_seconds
        self._timeline.at(self._timeline.now() + noticed, self._notice, pod)

        def back() -> None:
            self._leave(pod)
            self._join(group)

        self._after(pod.pods, back)

    def _notice(self, pod: Pod) -> None:
        for replica in self._replicas:
            replica.unreachable(pod)

    def _roll(self, left: list[Pod], surge: int) -> None:
        """Replace the first of ``left``, then the others."""
        now, rest = left[:surge], left[surge:]
        if not now:
            return

        def ready() -> None:
            for pod in now:
                self._join(pod.group)
                if pod.alive:
                    self._drain(pod)
            self._roll(rest, surge)

        self._after(now[0].pods, ready)

    def _after(self, pods: Pods, what: Callable[[], None]) -> None:
        """Do ``what`` when an engine that is started now would be ready."""
        self._timeline.at(self._timeline.now() + pods.start_seconds, what)

    def _staying(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.alive and not pod.draining]

    def _join(self, group: int) -> None:
        pod = Pod(
            self._made, self._scenario.fleet[group], self._configs[group],
            timeline=self._timeline, around=self._around,
            seed=self._seed * 1000 + self._made,
        )  # fmt: skip
        pod.group = group
        self._made += 1
        self.pods[pod.endpoint_id] = pod
        for replica in self._replicas:
            replica.join(pod)

    def _drain(self, pod: Pod) -> None:
        pod.draining = True
        for replica in self._replicas:
            replica.drain(pod)
        self.emptied(pod)

    def _leave(self, pod: Pod) -> None:
        if self.pods.pop(pod.endpoint_id, None) is None:
            return
        for replica in self._replicas:
            replica.leave(pod)


def configs_of(scenario: Scenario, trace_block: int) -> list[Config]:
    """Return what the engines of each group are started with.

    Args:
        scenario: tells the groups.
        trace_block: tokens of a block of the traffic.

    Raises:
        ConfigError: a profile or a size is wrong, or blocks are not of one size.
    """
    lease = scenario.transfers.lease_seconds
    found = [
        msgspec.structs.replace(config_of(pods, trace_block), lease_seconds=lease)
        for pods in scenario.fleet
    ]
    sizes = {config.block_tokens for config in found}
    if len(sizes) > 1:
        raise ConfigError(f"all engines of a fleet have blocks of one size, not {sorted(sizes)}")
    return found
