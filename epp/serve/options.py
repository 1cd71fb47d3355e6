"""What `epp serve` can be told on the command line, as one record."""

from __future__ import annotations

from typing import Literal

import msgspec


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the running picker. Durations in seconds, sizes in bytes."""

    # where endpoints come from
    endpoints: str = ""  #: ``host:port,...``
    endpoints_file: str = ""  #: a watched YAML file, the shape of file-discovery
    pool_name: str = ""  #: an InferencePool, several with commas, or just the name in metrics
    all_pools: bool = False  #: every InferencePool of the namespace
    pool_ports: bool = False  #: listen on the port that each pool's endpointPickerRef names
    pool_namespace: str = ""  #: "": that of our service account or kubeconfig
    pool_group: str = "inference.networking.k8s.io"
    endpoint_selector: str = ""  #: labels of pods, instead of an InferencePool
    endpoint_target_ports: str = ""
    pod_ip_family: Literal["", "ipv4", "ipv6"] = ""  #: of dual-stack pods; "": the first address
    kubeconfig: str = ""  #: a file; "": KUBECONFIG, the service account, ~/.kube/config
    ha_enable_leader_election: bool = False  #: only one replica is ready, by a Lease

    # configuration
    config_file: str = ""
    config_text: str = ""
    preset: str = ""  #: name of a configuration of `epp`'s own
    allow_experimental_plugins: bool = False
    plugin_paths: tuple[str, ...] = ()

    # ports; 0 takes a free one
    host: str = "0.0.0.0"
    grpc_port: int = 9002
    grpc_health_port: int = 9003
    metrics_port: int = 9090
    metrics_endpoint_auth: bool | None = None
    """Ask the cluster who may read the metrics port; without one, listen on 127.0.0.1 only. None
    asks if a cluster tells the endpoints."""
    metrics_cert_dir: str = ""  #: holds tls.crt and tls.key; "": plain HTTP
    metrics_client_ca_file: str = ""  #: who must have signed a client's certificate

    # other pickers of the same pools
    peers: str = ""  #: ``host:port,...``; a host stands for all of its addresses; "": none
    peers_port: int = 9005
    peers_cert_dir: str = ""  #: holds tls.crt, tls.key and ca.crt; "": plain text

    # the ext_proc port
    secure_serving: bool = True
    cert_path: str = ""
    tls_min_version: str = ""  #: a Go name, such as VersionTLS13
    tls_cipher_suites: str = ""  #: Go names, with commas
    health_checking: bool = True
    max_body_bytes: int = 32 * 2**20
    max_buffered_bytes: int = 512 * 2**20
    body_timeout: float = 60.0  #: from a request's head to the end of its body; 0: no bound
    grpc_max_recv_msg_size: int = 0  #: 0: as large as `max_body_bytes` needs
    grpc_max_send_msg_size: int = 0
    error_format: Literal["openai", "text"] = "openai"  #: text: as the Go router answers
    only_hosts: tuple[str, ...] = ()  #: requests for other hosts go on without a pick
    drain_timeout: float = 30.0

    # scraping
    refresh_metrics_interval: float = 0.2
    metrics_staleness_threshold: float = 2.0

    # scraping, by older flags that the configuration has taken over; None or "" is not given
    model_server_metrics_scheme: Literal["http", "https"] | None = None
    model_server_metrics_path: str | None = None
    model_server_metrics_port: int | None = None
    model_server_metrics_https_insecure_skip_verify: bool | None = None
    total_queued_requests_metric: str = ""
    total_running_requests_metric: str = ""
    kv_cache_usage_percentage_metric: str = ""
    lora_info_metric: str = ""
    cache_info_metric: str = ""

    # the process
    one_cpu: bool = True  #: keep its threads on one CPU, see `placement`

    # answers
    emit_endpoint_scores: bool = False
    disable_endpoint_subset_filter: bool = False
    inject_usage: bool = False  #: ask engines for a stream's usage, and keep it from the client
    decision_header: bool = False  #: say on the answer why it was picked; names addresses
    decision_key_file: str = ""  #: say it, but only to requests that carry this file's key

    # telemetry
    enable_grpc_stream_metrics: bool = False  #: how long streams live, and how they end
    verbosity: int = 2  #: klog's -v; 4 and above log decisions
    log_format: Literal["json", "console"] = "json"
    receipts: int = 200  #: last decisions kept to be explained; 0 keeps none
    tracing: bool | None = None  #: None traces if OpenTelemetry's variables name an exporter

    # recording, without content
    record_file: str = ""  #: "": nothing is recorded
    record_file_size: int = 64 * 2**20  #: of a file, before it is put aside
    record_files: int = 8  #: files put aside
    record_key_file: str = ""  #: holds the key of names; "": a random one
    record_key_period: float = 86_400.0  #: after which the key changes
    record_least_sharers: int = 5  #: conversations that share a block before that is told
    record_classes: tuple[str, ...] = ()  #: objectives written by their own name

    warnings: tuple[str, ...] = ()  #: about the command line itself, to be logged at start

    @property
    def pool_names(self) -> tuple[str, ...]:
        """The pools that are named."""
        return tuple(name.strip() for name in self.pool_name.split(",") if name.strip())

    @property
    def many_pools(self) -> bool:
        """Whether each pool has a lane of its own."""
        return self.all_pools or len(self.pool_names) > 1
