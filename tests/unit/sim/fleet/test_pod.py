"""What the metrics of a simulated engine say, and from when on."""

from __future__ import annotations

import math

from epp.model import CacheCounts
from epp.sim.fleet.leap import News
from epp.sim.fleet.pod import Pod
from epp.sim.fleet.scenario import Pods
from epp.sim.fleet.timeline import Timeline
from epp.sim.model import Config, Request
from epp.sim.profiles import Timing

#: A step takes 10 ms, and 1 ms for each token of a prompt, of which it computes at most 100.
CONFIG = Config(
    timing=Timing(base=0.01, per_decode=0.0, per_context=0.0, per_prefill=0.001, per_attention=0.0),
    kv_blocks=101,
    block_tokens=10,
    max_num_seqs=100,
    max_num_batched_tokens=100,
)


class Alone:
    """Surroundings that do nothing."""

    def news(self, pod: Pod, news: News) -> None: ...

    def fetch(self, pod: Pod, request_id: str) -> None: ...

    def fail(self, request_id: str) -> None: ...


def gauges(pod: Pod, at: float) -> tuple[float, float]:
    load = pod.load(at, at)
    return load.running, load.queued


def started() -> tuple[Timeline, Pod]:
    timeline = Timeline()
    return timeline, Pod(0, Pods(), CONFIG, timeline=timeline, around=Alone())


def play(timeline: Timeline) -> None:
    while timeline.next_at < math.inf:
        timeline.step()


def test_metrics_tell_of_a_request_at_the_end_of_the_first_step_that_began_after_it_came():
    timeline, pod = started()
    for at, name in [(0.0, "a"), (0.05, "b"), (0.12, "c"), (0.121, "d")]:
        timeline.at(at, pod.submit, Request(name, prompt_tokens=100, output_tokens=100))
    play(timeline)
    assert gauges(pod, 0.109) == (0, 0)  # the first step computes a and ends at 0.110
    assert gauges(pod, 0.111) == (1, 0)  # b came while it ran
    assert gauges(pod, 0.218) == (1, 0)  # the second computes b but for one token, until 0.219
    assert gauges(pod, 0.220) == (2, 0)  # c and d came while it ran
    assert gauges(pod, 0.327) == (2, 0)  # the third computes that token and 98 of c, until 0.328
    assert gauges(pod, 0.329) == (3, 1)


def test_metrics_tell_of_a_prompt_that_was_admitted_at_the_end_of_its_first_step():
    timeline, pod = started()
    blocks = tuple(range(1, 26))
    for at, name in [(0.0, "a"), (1.0, "b")]:
        request = Request(name, prompt_tokens=250, output_tokens=1, blocks=blocks)
        timeline.at(at, pod.submit, request)
    play(timeline)
    assert pod.load(0.109, 0.109).counts == CacheCounts(0, 0, admitted=True)
    assert pod.load(0.111, 0.111).counts == CacheCounts(
        250, 0, admitted=True
    )  # 150 of them are still to come
    assert pod.load(0.9, 0.9).counts == CacheCounts(250, 0, admitted=True)
    assert pod.load(2.0, 2.0).counts == CacheCounts(
        500, 240, admitted=True
    )  # the last block is computed again


def test_metrics_tell_how_the_cache_fills_while_sequences_only_decode():
    timeline, pod = started()
    timeline.at(0.0, pod.submit, Request("a", prompt_tokens=100, output_tokens=100))
    play(timeline)
    early, late = pod.load(0.2, 0.2).kv_usage, pod.load(1.0, 1.0).kv_usage
    assert 0.10 < early < 0.13  # 10 blocks of the prompt, then a block every 100 ms
    assert 0.18 < late < 0.21
    assert gauges(pod, 1.2) == (0, 0)
