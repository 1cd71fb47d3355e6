"""Everything a simulated model server is started with."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epp.errors import ConfigError
from epp.sim import profiles
from epp.sim.kv_events import LAYOUTS
from epp.sim.model import Config
from epp.sim.offload.tiers import CPU_RATE, DISK_RATE, Offload
from epp.sim.transfer.faults import FAULTS
from epp.sim.transfer.params import ROLES, Role


class EngineOptions(msgspec.Struct, frozen=True):
    """Options of `epp engine`, named as vLLM's flags where it has them."""

    host: str = "127.0.0.1"
    port: int = 0  #: 0 takes a free one
    name: str = "engine"  #: sent back in the response header ``x-engine-name``
    models: tuple[str, ...] = ("sim",)  #: served names; the first labels the metrics
    adapters: tuple[str, ...] = ()  #: LoRA adapters served too
    max_adapters: int = 4  #: adapters in one batch
    block_size: int = 16  #: tokens per KV block
    kv_blocks: int | None = None  #: None takes the profile's capacity
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131_072  #: tokens; lowered to what the KV cache holds
    max_num_queued_reqs: int | None = None  #: more get 503; None is unbounded
    profile: str = profiles.DEFAULT
    speed: float = 1.0  #: > 1 runs faster than life
    jitter: float = 0.0  #: standard deviation of step times, as a fraction
    seed: int = 0
    shutdown_timeout: float = 0.0  #: seconds to finish what is under way on SIGTERM; 0 aborts it
    prompt_tokens_details: bool = True  #: tell ``cached_tokens`` in usage
    max_body_bytes: int = 64 * 1024 * 1024
    fail_rate: float = 0.0  #: fraction of inference requests answered 500; for tests of routers
    hang_metrics: bool = False  #: ``/metrics`` never answers; for tests of routers
    kv_events_port: int | None = None  #: publish KV events here, plus the rank; None: nowhere
    kv_events_connect: str = ""  #: or connect there, as ``tcp://picker:5557``, to publish
    kv_events_replay_port: int | None = None  #: answer replays here, plus the rank
    kv_events_topic: str = "kv@sim"
    kv_events_layout: str = "map"  #: of an event: "map" as vLLM since 0.24, "array" as before
    kv_events_buffer: int = 10_000  #: messages kept for replays
    kv_events_drop: float = 0.0  #: fraction of messages numbered and never sent; for tests
    kv_cpu_blocks: int = 0  #: blocks that outlive the GPU's in the memory of the CPU
    kv_disk_blocks: int = 0  #: and on a disk
    kv_cpu_rate: float = CPU_RATE  #: tokens per second of the engine's, to the GPU
    kv_disk_rate: float = DISK_RATE  #: and from the disk to the CPU
    data_parallel_rank: int = 0
    role: Role = ""  #: with one, KV is given to other engines or fetched from them
    kv_side_channel_port: int = 0  #: where other engines fetch KV; 0 takes a free one
    kv_lease_duration: float = 30.0  #: engine's seconds for which KV is kept for others
    kv_load_failure_policy: str = "fail"  #: or "recompute": of KV that cannot be fetched
    kv_connect_timeout: float = 5.0  #: engine's seconds, for an engine that has KV to answer
    kv_transfer_latency: float = 0.005  #: engine's seconds that each transfer takes
    kv_transfer_rate: float = 100_000.0  #: and tokens per second; 13 GB/s for an 8B model
    kv_faults: tuple[str, ...] = ()  #: what goes wrong with prefills, drawn by chance; for tests
    kv_fault_rate: float = 1.0  #: fraction of prefills with which one of them does

    def config(self) -> Config:
        """Return the engine's configuration.

        Raises:
            ConfigError: an option is out of range; the message names it.
        """
        self._check()
        profile = profiles.by_name(self.profile)
        return Config(
            timing=profile.timing(),
            kv_blocks=self.kv_blocks or profile.kv_tokens // self.block_size,
            block_tokens=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_adapters=self.max_adapters,
            jitter=self.jitter,
            journal=self.publishes,
            lease_seconds=self.kv_lease_duration,
            offload=Offload(
                self.kv_cpu_blocks, self.kv_disk_blocks, self.kv_cpu_rate, self.kv_disk_rate
            ),
        )

    @property
    def publishes(self) -> bool:
        """Whether KV events are published."""
        return self.kv_events_port is not None or bool(self.kv_events_connect)

    def _check(self) -> None:
        if not self.models:
            raise ConfigError("an engine needs at least one model name")
        least = {
            "block_size": self.block_size,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "kv_blocks": 2 if self.kv_blocks is None else self.kv_blocks - 1,
            "kv_cpu_blocks": self.kv_cpu_blocks + 1 - bool(self.kv_disk_blocks),
            "kv_disk_blocks": self.kv_disk_blocks + 1,
        }
        for field, value in least.items():
            if value < 1:
                raise ConfigError(f"engine option {field} is too small: {getattr(self, field)}")
        positive = ("speed", "kv_lease_duration", "kv_connect_timeout", "kv_transfer_rate")
        for field in (*positive, "kv_cpu_rate", "kv_disk_rate"):
            if (number := getattr(self, field)) <= 0:
                raise ConfigError(f"engine option {field} must be > 0, not {number}")
        for field in ("fail_rate", "kv_events_drop", "kv_fault_rate"):
            if not 0.0 <= (share := getattr(self, field)) <= 1.0:
                raise ConfigError(f"engine option {field} must be within 0..1, not {share}")
        self._check_words()

    def _check_words(self) -> None:
        words: dict[str, Sequence[str]] = {
            "kv_events_layout": LAYOUTS,
            "kv_load_failure_policy": ("fail", "recompute"),
            "role": ROLES,
        }
        given = [(field, getattr(self, field), known) for field, known in words.items()]
        given += [("kv_faults", fault, tuple(FAULTS)) for fault in self.kv_faults]
        for field, value, known in given:
            if value not in known:
                names = ", ".join(filter(None, known))
                raise ConfigError(f"engine option {field} is one of {names}, not {value!r}")
