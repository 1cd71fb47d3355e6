"""Everything a sidecar is started with."""

from __future__ import annotations

from typing import Literal

import msgspec

from epp.disagg.connectors import CONNECTORS
from epp.disagg.connectors.base import BOOTSTRAP_PORT
from epp.errors import ConfigError

STAGES = ("prefiller", "decoder", "encoder")
ENCODER_CONNECTORS = ("", "ec-example", "ec-nixl")


class SidecarOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``epp sidecar``, named as the Go sidecar's where it has them.

    Durations in seconds, sizes in bytes.
    """

    # where it listens, and its engine
    host: str = "0.0.0.0"
    port: int = 8000
    model_server_host: str = "127.0.0.1"
    model_server_port: int = 8200
    data_parallel_size: int = 1  #: ranks, each with the port after the one before
    metrics_port: int = 0  #: 0: none

    # the legs
    kv_connector: str = "nixlv2"
    ec_connector: str = ""
    prefill_max_retries: int = 0  #: on one endpoint, of 502, 503 and 504
    prefill_retry_backoff: float = 0.2
    enable_prefiller_sampling: bool = False
    mooncake_bootstrap_port: int = BOOTSTRAP_PORT
    prefill_timeout: float = 60.0  #: for all attempts together
    connect_timeout: float = 2.0
    kv_lease: float = 30.0  #: for which prefill engines keep a cache
    on_prefill_failure: Literal["decode", "error"] = "decode"

    # who may be asked
    enable_ssrf_protection: bool = False
    allowed_prefillers: str = ""  #: ``host:port,...``
    inference_pool: str = ""  #: ``namespace/name``
    pool_group: str = "inference.networking.k8s.io"
    kubeconfig: str = ""

    # TLS
    secure_proxy: bool = True
    cert_path: str = ""
    enable_tls: tuple[str, ...] = ()  #: of `STAGES`: asked over TLS
    tls_insecure_skip_verify: tuple[str, ...] = ()  #: of `STAGES`: any certificate will do
    tls_ca_file: str = ""

    # bounds
    max_requests: int = 4096
    max_body_bytes: int = 32 * 2**20
    max_buffered_bytes: int = 512 * 2**20
    body_timeout: float = 60.0
    idle_timeout: float = 600.0  #: without a byte from the engine
    drain_timeout: float = 30.0

    # logs
    verbosity: int = 2
    log_format: Literal["json", "console"] = "json"

    def check(self) -> None:
        """Check what the flags' own types do not.

        Raises:
            ConfigError: an option is not one of those known; the message names it.
        """
        _one_of("--kv-connector", self.kv_connector, tuple(CONNECTORS))
        _one_of("--ec-connector", self.ec_connector, ENCODER_CONNECTORS)
        for flag in ("enable_tls", "tls_insecure_skip_verify"):
            for stage in getattr(self, flag):
                _one_of("--" + flag.replace("_", "-"), stage, STAGES)
        if self.inference_pool and self.inference_pool.count("/") != 1:
            raise ConfigError(f"--inference-pool is NAMESPACE/NAME, not {self.inference_pool!r}")
        if self.enable_ssrf_protection and not (self.inference_pool or self.allowed_prefillers):
            raise ConfigError(
                "--enable-ssrf-protection needs --inference-pool NAMESPACE/NAME or "
                "--allowed-prefillers HOST:PORT,..."
            )
        if self.data_parallel_size < 1:
            raise ConfigError(f"--data-parallel-size must be >= 1, not {self.data_parallel_size}")


def _one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        names = ", ".join(filter(None, known))
        raise ConfigError(f"{flag} is one of {names}, not {value!r}")
