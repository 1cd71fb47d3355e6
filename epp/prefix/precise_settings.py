"""What ``precise-prefix-cache-producer`` can be told.

**Source:** names and defaults are those of llm-d's ``precise-prefix-cache-producer``.
"""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from epp import plugin
from epp.prefix.exact.events import Tier
from epp.prefix.exact.index import MOST_BYTES
from epp.prefix.exact.keys import Keys

Port = Annotated[int, Meta(ge=0, le=65_535)]
Positive = Annotated[int, Meta(gt=0)]
TIERS: Mapping[str, Tier] = {
    "gpu": Tier.GPU, "cpu": Tier.CPU, "disk": Tier.DISK, "shared": Tier.SHARED,
}  # fmt: skip


class TokenProcessorConfig(plugin.Params, frozen=True):
    """How blocks are cut and named."""

    block_size_tokens: Positive = 16  #: tokens per block; the engines' own size is the best
    hash_seed: str = ""  #: secret of the names of blocks, equal in all replicas; "": random
    hash_seed_file: str = ""
    """Ours: a file with secrets instead, one a line, the newest first; it is read again as it changes."""
    hash_algorithm: Literal["", "cbor-fnv", "xxh64", "xxhash"] = ""  #: accepted; ours is XXH3


class BlockIndexConfig(plugin.Params, frozen=True):
    """Where blocks are kept: in memory, whatever is asked for."""

    in_memory_config: dict[str, Any] | None = None  #: accepted; `max_bytes` is the bound
    cost_aware_memory_config: dict[str, Any] | None = None  #: likewise
    redis_config: dict[str, Any] | None = None  #: refused: replicas read the engines themselves
    enable_metrics: bool = True  #: accepted: metrics cost nothing
    metrics_logging_interval: int | str = 0  #: accepted; nothing is logged
    max_bytes: Positive = MOST_BYTES  #: ours: memory of the index, a hard bound


class Backend(plugin.Params, frozen=True):
    """What a block is worth where it lies."""

    name: str  #: gpu, cpu, disk or shared
    weight: Annotated[float, Meta(ge=0, le=1)] = 1.0  #: 1 is a block that is computed already


_BACKENDS = (Backend(name="gpu"), Backend(name="cpu", weight=0.8))


class IndexerConfig(plugin.Params, frozen=True):
    """Of the index."""

    kv_block_index_config: BlockIndexConfig = BlockIndexConfig()
    kv_cache_backend_configs: tuple[Backend, ...] = _BACKENDS  #: others are worth 0.8


class PodDiscoveryConfig(plugin.Params, frozen=True):
    """Where an endpoint publishes."""

    socket_port: Port = 5557  #: plus the rank
    replay_socket_port: Port = 0  #: answers who asks for old events, plus the rank; 0 is none
    ask_sources: bool = True  #: ours: read both from the engine's ``/kv_event_sources``, if told
    pod_label_selector: str = ""  #: accepted; the pool's endpoints count
    pod_namespace: str = ""  #: likewise


class CurveConfig(plugin.Params, frozen=True):
    """Files with keys of CURVE, in ZMQ's Z85 text."""

    server_key_file: str  #: the engines' public key
    public_key_file: str  #: ours
    secret_key_file: str


class KVEventsConfig(plugin.Params, frozen=True):
    """How events come."""

    topic_filter: str = "kv@"  #: beginning of topics, at `zmq_endpoint`; elsewhere all are read
    concurrency: int = 4  #: accepted; events are read on the event loop, in small slices
    engine_type: Literal["vllm", "sglang"] = "vllm"  #: accepted; both are understood at once
    discover_pods: bool = True  #: connect to every endpoint of the pool
    pod_discovery_config: PodDiscoveryConfig = PodDiscoveryConfig()
    zmq_endpoint: str = ""  #: listen here instead, as ``tcp://*:5557``, for engines that connect
    curve: CurveConfig | None = None  #: ours: encrypt, and trust nobody else


class PreciseParams(plugin.Params, frozen=True):
    """Parameters of ``precise-prefix-cache-producer``."""

    token_processor_config: TokenProcessorConfig = TokenProcessorConfig()
    indexer_config: IndexerConfig = IndexerConfig()
    kv_events_config: KVEventsConfig = KVEventsConfig()
    speculative_indexing: bool = False  #: accepted: what is picked is expected in any case
    speculative_ttl: str = msgspec.field(default="", name="speculativeTTL")
    """How long that is believed without an event; "" is 2s, and 2m of engines without events."""
    rank_header: bool = True
    """Ours: of an endpoint with several ranks, name the one that holds most of a prompt to it."""
    tokenizers_pool_config: dict[str, Any] | None = None  #: refused; see ``token-producer``


def keys_of(config: TokenProcessorConfig) -> Keys:
    """Return the secrets that name blocks.

    Raises:
        ValueError: the file cannot be read, or has none or too many.
    """
    if not config.hash_seed_file:
        return Keys((config.hash_seed.encode() or secrets.token_bytes(32),))
    try:
        lines = Path(config.hash_seed_file).read_bytes().splitlines()
        return Keys(tuple(line.strip() for line in lines if line.strip()))
    except (OSError, ValueError) as error:
        raise ValueError(f"hashSeedFile {config.hash_seed_file!r}: {error}") from error


def weights_of(backends: Sequence[Backend]) -> tuple[float, ...]:
    """Return what a block is worth, by tier."""
    told = {TIERS[each.name.lower()]: each.weight for each in backends}
    gpu = told.get(Tier.GPU, 1.0)
    return tuple(gpu if tier is Tier.EXPECTED else told.get(tier, 0.8) for tier in Tier)


def check(params: PreciseParams) -> None:
    """Refuse what cannot be done.

    Raises:
        ValueError: and why.
    """
    if importlib.util.find_spec("zmq") is None:
        raise ValueError("KV events need pyzmq: pip install '.[precise]' in the folder of epp's "
                         "sources")  # fmt: skip
    if params.tokenizers_pool_config:
        raise ValueError("tokenizersPoolConfig is refused: use a token-producer with a tokenizer")
    if params.indexer_config.kv_block_index_config.redis_config:
        raise ValueError("redisConfig is refused: every replica reads the engines' events itself")
    for backend in params.indexer_config.kv_cache_backend_configs:
        if backend.name.lower() not in TIERS:
            raise ValueError(f"kvCacheBackendConfigs: {backend.name!r} is none of {list(TIERS)}")
    named = params.token_processor_config
    if named.hash_seed and named.hash_seed_file:
        raise ValueError("hashSeed and hashSeedFile are two sources of secrets: leave out one")
    curve = params.kv_events_config.curve
    if curve is not None and params.kv_events_config.zmq_endpoint:
        raise ValueError("kvEventsConfig.curve: engines that connect to zmqEndpoint would not be "
                         "encrypted; leave out one of them")  # fmt: skip
    for path in () if curve is None else msgspec.structs.astuple(curve):
        if not Path(path).is_file():
            raise ValueError(f"kvEventsConfig.curve: there is no file {path!r}")
