"""What is simulated, as written in YAML: engines, pickers, traffic, and what changes meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from epp.config.decode import decode
from epp.config.hints import with_hint
from epp.errors import ConfigError
from epp.schedule.topology import Level
from epp.sim.offload.tiers import CPU_RATE, DISK_RATE

Positive = Annotated[int, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
AboveZero = Annotated[float, Meta(gt=0, le=1e15)]
Share = Annotated[float, Meta(ge=0, le=1)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all parts: strict."""


class Correction(_Part, frozen=True):
    """How much slower engines are than the table's grids, as `epp sim calibrate` finds."""

    prefill: AboveZero  #: factor of all that prompts cost
    decode: AboveZero  #: factor of all that decoding costs
    step_seconds: Seconds  #: of every step
    sequence_seconds: Seconds = 0.0  #: of every decoding sequence in a step: host work on its token


class Pods(_Part, frozen=True):
    """Engines that are alike."""

    count: Positive = 1
    profile: str = "llama-3.1-8b-h100"  #: of model and GPU, see `epp engine --help`
    speed: Annotated[float, Meta(gt=0, le=1e6)] = 1.0  #: times as fast as the profile
    correction: Correction | None = None
    """None: 1.2, 1.2 and 1 ms on one GPU or 4 ms on several, as published servers are."""
    kv_tokens: Positive | None = None  #: that the KV cache holds; None: as the profile says
    kv_cpu_tokens: Count = 0  #: that outlive the KV cache's in the CPU's memory
    kv_disk_tokens: Count = 0  #: and on a disk, behind that
    kv_cpu_rate: AboveZero = CPU_RATE  #: tokens a second from the CPU to the GPU
    kv_disk_rate: AboveZero = DISK_RATE  #: from the disk to the CPU
    block_tokens: Positive | None = None  #: None: the traffic's blocks, at most 256 tokens
    max_num_seqs: Positive = 256
    max_num_batched_tokens: Positive = 8192
    jitter: Share = 0.0  #: standard deviation of a step's duration, as a part of it
    role: str = ""  #: value of the label ``llm-d.ai/role``
    labels: Mapping[str, str] = {}  #: further ones, such as those of host, rack and zone
    start_seconds: Seconds = 120.0  #: from its creation until it answers
    request_seconds: Seconds = 0.0  #: of each request before the queue: HTTP, tokenizer, gateway


class Events(_Part, frozen=True):
    """KV events on their way from engines to pickers."""

    delay_seconds: Seconds = 0.02
    loss: Share = 0.0  #: of an engine's messages, each picker's on its own
    mute: Annotated[int, Meta(ge=0)] = 0  #: so many of the first engines tell nothing, ever


class Pickers(_Part, frozen=True):
    """Replicas, each with a pool, index and ledger of its own."""

    replicas: Annotated[int, Meta(ge=1, le=32)] = 1
    scrape_seconds: AboveZero = 0.1
    scrape_delay_seconds: Seconds = 0.002
    feedback: Literal["stock", "lean"] = "stock"
    """stock: answers pass through the picker. lean: it is told of them when they are over."""
    peers_seconds: AboveZero | None = 0.05
    """Until replicas know what another one did; None: they tell each other nothing. Those of other
    routers' policies never do."""
    events: Events = Events()


class Transfers(_Part, frozen=True):
    """KV caches on their way from engines that computed a prompt to those that decode it."""

    bytes_per_token: AboveZero = 131072.0  #: of all layers; that of Llama 3.1 8B
    latency_seconds: Seconds = 0.02  #: of each, besides its bytes
    host: AboveZero = 64e9  #: bytes a second that an engine gives to another one of its host
    rack: AboveZero = 25e9  #: of its rack
    zone: AboveZero = 12e9  #: of its zone
    beyond: AboveZero = 12e9  #: farther away, or where labels do not tell
    lease_seconds: AboveZero = 30.0  #: for which a cache waits to be read
    failures: Share = 0.0  #: prefills that answer with an error at once

    def bytes_per_second(self, level: Level | None) -> float:
        """Return how fast a cache goes to an engine that is so near."""
        known = {"host": self.host, "rack": self.rack, "zone": self.zone}
        return known.get(level or "", self.beyond)


class Burst(_Part, frozen=True):
    """A time in which conversations begin more often."""

    at: Seconds
    seconds: AboveZero
    times: AboveZero


class Traffic(_Part, frozen=True):
    """What is asked. One of `files`, `preset` and `model`."""

    files: tuple[str, ...] = ()  #: a trace, in any format that `epp traffic convert` reads
    format: str = "auto"
    preset: str = ""  #: of `epp traffic synth`
    model: str = ""  #: file of a model, as `epp traffic fit` writes
    seconds: Annotated[float, Meta(gt=0, le=1e9)] = (
        600.0  #: of traffic that is made; of traces, those of all that is there
    )
    rate: AboveZero = 1.0  #: times as many conversations a second
    think_rate: AboveZero = 1.0  #: think times are so many times shorter
    requests: Annotated[int, Meta(ge=0)] = 0  #: at most; 0: all
    conversations_at_once: Annotated[int, Meta(ge=0)] = 0
    """Closed loop of so many conversations; 0: open loop, each begins at its time."""
    bursts: tuple[Burst, ...] = ()


class Change(_Part, frozen=True, tag_field="do"):
    """Something that happens to the fleet."""

    at: Seconds


class Crash(Change, frozen=True, tag="crash"):
    """Engines die with all they hold; as many come back, empty, after their start."""

    pods: Positive = 1


class Add(Change, frozen=True, tag="add"):
    """More engines, like those of a group."""

    pods: Positive = 1
    group: Annotated[int, Meta(ge=0)] = 0  #: position in `fleet`


class Remove(Change, frozen=True, tag="remove"):
    """The newest engines get nothing more and end when they have answered."""

    pods: Positive = 1


class Rollout(Change, frozen=True, tag="rollout"):
    """Every engine is replaced by a new one, some at a time; the old one drains meanwhile."""

    surge: Positive = 1  #: engines replaced at a time


class Goals(_Part, frozen=True):
    """What a good answer is; `goodput` counts those that reach both."""

    ttft_seconds: AboveZero = 2.0
    tpot_seconds: AboveZero = 0.1


class Scenario(_Part, frozen=True):
    """All of it."""

    fleet: tuple[Pods, ...] = (Pods(count=8),)
    pickers: Pickers = Pickers()
    transfers: Transfers = Transfers()
    policy: str = "default"  #: a name that `epp sim policies` shows, or a file of configuration
    traffic: Traffic = Traffic(preset="chat")
    changes: tuple[Crash | Add | Remove | Rollout, ...] = ()
    goals: Goals = Goals()
    warm_up_seconds: Seconds = 0.0  #: requests that arrive before count for nothing
    client_timeout_seconds: AboveZero = 3600.0  #: after which a client gives up
    gateway_requests: Annotated[int, Meta(ge=0)] = 0
    """Under way at once; those beyond are refused when they have been routed. 0: any number.

    **Source:** Envoy's circuit breaker ``max_requests`` of a cluster, 1024 unless told.
    """
    seed: int = 1
    seeds: Positive = 1  #: runs, with seeds one apart


def read_scenario(path: str) -> Scenario:
    """Return the scenario in a file.

    Raises:
        ConfigError: it is none; the message says where and why.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return scenario_of(text, path)


def scenario_of(text: str, source: str = "scenario") -> Scenario:
    """Return the scenario that ``text`` describes.

    Raises:
        ConfigError: it describes none; ``source`` is named.
    """
    try:
        found = msgspec.convert(decode(text), Scenario, strict=True)
        _check(found)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {with_hint(str(error), Scenario)}") from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    return found


def _check(scenario: Scenario) -> None:
    """Refuse what no field alone can tell.

    Raises:
        ConfigError: and where, and why.
    """
    if not scenario.fleet:
        raise ConfigError("there is no engine - at `$.fleet`")
    traffic = scenario.traffic
    named = [name for name in ("files", "preset", "model") if getattr(traffic, name)]
    if len(named) != 1:
        raise ConfigError(
            f"traffic comes from one of files, preset and model, not {named or 'none'} "
            "- at `$.traffic`"
        )
    for i, pods in enumerate(scenario.fleet):
        if pods.max_num_seqs > pods.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs {pods.max_num_seqs} is more than max_num_batched_tokens "
                f"{pods.max_num_batched_tokens} - at `$.fleet[{i}]`"
            )
    for i, change in enumerate(scenario.changes):
        if isinstance(change, Add) and change.group >= len(scenario.fleet):
            raise ConfigError(
                f"group {change.group} is none of the {len(scenario.fleet)} of the fleet "
                f"- at `$.changes[{i}].group`"
            )
