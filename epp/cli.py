"""The command line: arguments only, no logic. Each verb imports what it runs when it runs."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import epp
from epp import ciphers, go_flags
from epp.arguments import count, port, truth
from epp.config.units import parse_duration, parse_quantity
from epp.errors import ConfigError
from epp.options import ServeOptions

VERBS = ("serve", "check", "engine", "gateway", "demo", "bench", "top", "explain")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest flag there is."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``epp``; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if (
        arguments
        and arguments[0].startswith("-")
        and arguments[0] not in ("-h", "--help", "--version")
    ):
        arguments.insert(0, "serve")  # the Go picker's image is started with flags alone
    parser = _parser()
    parsed = parser.parse_args(_kebab(arguments) if arguments[:1] == ["serve"] else arguments)
    if not hasattr(parsed, "run"):
        parser.print_help()
        return 2
    try:
        return int(parsed.run(parsed))
    except (ConfigError, OSError) as error:
        print(f"{parser.prog} {arguments[0]}: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="epp",
        allow_abbrev=False,
        description="An endpoint picker for LLM inference, and the tools around it.",
    )
    parser.add_argument("--version", action="version", version=f"epp {epp.__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    _serve(verbs)
    _check(verbs)
    _engine(verbs)
    _gateway(verbs)
    _demo(verbs)
    _bench(verbs)
    _top(verbs)
    _explain(verbs)
    return parser


def _serve(verbs: Any) -> None:
    serve = verbs.add_parser(
        "serve",
        allow_abbrev=False,
        help="run the endpoint picker",
        description="Run the endpoint picker: an ext_proc server for Envoy. Flags are those of "
        "the Go picker where it has them; durations like 200ms or 30s, sizes like 32Mi.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    default = ServeOptions()
    _serve_endpoints(serve, default)

    config = serve.add_argument_group("configuration")
    config.add_argument("--config-file", default="", metavar="FILE", help="EndpointPickerConfig")
    config.add_argument("--config-text", default="", metavar="YAML", help="the same as text")
    _boolean(config, "--allow-experimental-plugins", default=False, help="allow alpha plugins")
    config.add_argument(
        "--plugin-path", action="append", default=[], metavar="FILE.py", help="plugins of your own"
    )

    ports = serve.add_argument_group("ports (0 takes a free one; all are printed at start)")
    ports.add_argument("--host", default=default.host, help="address to listen on")
    ports.add_argument("--grpc-port", type=port, default=default.grpc_port, help="ext_proc")
    ports.add_argument("--grpc-health-port", type=port, default=default.grpc_health_port)
    ports.add_argument("--metrics-port", type=port, default=default.metrics_port, help="admin")
    _boolean(
        ports, "--metrics-endpoint-auth", default=False,
        help="with true, the metrics port listens on 127.0.0.1 only, since there is no cluster "
        "to ask who may read it; with false, guard it by a network policy",
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
        "--max-body-bytes", type=_size, default=default.max_body_bytes, help="413 beyond"
    )
    proc.add_argument(
        "--max-buffered-bytes", type=_size, default=default.max_buffered_bytes,
        help="request bytes held at once, over all requests; 503 beyond",
    )  # fmt: skip
    for flag in ("--grpc-max-recv-msg-size", "--grpc-max-send-msg-size"):
        proc.add_argument(flag, type=_size, default=0, help="0: as large as a body may be")
    proc.add_argument(
        "--error-format", choices=("openai", "text"), default="openai", help="shape of our errors"
    )
    proc.add_argument("--drain-timeout", type=_seconds, default=30.0, help="grace at SIGTERM")

    scrape = serve.add_argument_group("scraping")
    scrape.add_argument(
        "--refresh-metrics-interval", type=_seconds, default=default.refresh_metrics_interval,
        help="how often a loaded endpoint is scraped, idle ones less often; what the picker itself "
        "sends it knows at once",
    )  # fmt: skip
    scrape.add_argument(
        "--metrics-staleness-threshold", type=_seconds, default=default.metrics_staleness_threshold
    )

    process = serve.add_argument_group("the process")
    _boolean(
        process, "--one-cpu", default=True,
        help="keep all threads on one CPU, the least busy one: less CPU per request",
    )  # fmt: skip

    answers = serve.add_argument_group("answers")
    _boolean(answers, "--emit-endpoint-scores", default=False, help="scores as dynamic metadata")
    _boolean(answers, "--disable-endpoint-subset-filter", default=False, help="ignore the hint")
    _boolean(
        answers, "--decision-header", default=False,
        help="say in x-epp-decision why the endpoint was picked, where answers pass through the "
        "picker; it names addresses: for trusted callers",
    )  # fmt: skip

    logs = serve.add_argument_group("logs and traces")
    logs.add_argument("-v", "--v", type=int, default=2, dest="verbosity", help="klog verbosity")
    logs.add_argument("--log-format", choices=("json", "console"), default="json")
    logs.add_argument("--zap-log-level", default="", help=argparse.SUPPRESS)
    logs.add_argument("--zap-encoder", choices=("json", "console"), help=argparse.SUPPRESS)

    logs.add_argument(
        "--tracing", type=truth, nargs="?", const=True, default=None,
        help="trace by OpenTelemetry, as its OTEL_* variables say; needs epp[tracing]. Not given: "
        "only if OTEL_TRACES_EXPORTER or an OTLP endpoint is set",
    )  # fmt: skip

    logs.add_argument(
        "--receipts", type=count, default=default.receipts, metavar="N",
        help="last decisions kept for `epp explain`, some 3 kB each; 0 keeps none",
    )  # fmt: skip

    go_flags.add_ignored(serve)
    go_flags.add_moved(serve, {
        "model-server-metrics-scheme": {"choices": ("http", "https")},
        "model-server-metrics-port": {"type": port},
        "model-server-metrics-https-insecure-skip-verify": {
            "type": truth, "nargs": "?", "const": True
        },
    })  # fmt: skip
    serve.set_defaults(run=_run_serve)


def _serve_endpoints(serve: argparse.ArgumentParser, default: ServeOptions) -> None:
    where = serve.add_argument_group("endpoints (one of)")
    where.add_argument("--endpoints", default="", metavar="HOST:PORT,...", help="a fixed list")
    where.add_argument("--endpoints-file", default="", metavar="FILE", help="a watched YAML file")
    where.add_argument(
        "--pool-name",
        default="",
        help="an InferencePool of a cluster; with --endpoints, only its name in metrics",
    )
    where.add_argument(
        "--endpoint-selector", default="", metavar="LABELS",
        help="pods of a cluster, without a pool; needs --endpoint-target-ports",
    )  # fmt: skip
    where.add_argument("--endpoint-target-ports", default="", metavar="PORT,...", help="of each")

    cluster = serve.add_argument_group("the cluster")
    cluster.add_argument(
        "--pool-namespace", default=os.environ.get("NAMESPACE", ""),
        help="of the pool and its pods; by default $NAMESPACE, or the service account's",
    )  # fmt: skip
    cluster.add_argument("--pool-group", default=default.pool_group, help="API group of the pool")
    cluster.add_argument(
        "--kubeconfig", default="", metavar="FILE",
        help="by default $KUBECONFIG, the service account, or ~/.kube/config",
    )  # fmt: skip
    cluster.add_argument(
        "--pod-ip-family", choices=("", "ipv4", "ipv6"), default="", help="of dual-stack pods"
    )
    _boolean(
        cluster, "--ha-enable-leader-election", default=False,
        help="of several replicas only one is ready, by a Lease",
    )  # fmt: skip


def _run_serve(parsed: argparse.Namespace) -> int:
    options = serve_options(parsed)
    if options.secure_serving:
        ciphers.apply(options.tls_min_version, options.tls_cipher_suites)

    # gRPC's older listener wakes fewer threads per message: 8 to 10 % less CPU a request.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

    from epp import app  # noqa: PLC0415 - each verb loads only what it needs, and gRPC comes last

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
    named = {"debug": 4, "info": 2, "warn": 1, "error": 0, "panic": 0}
    if level in named:
        return named[level]
    return abs(int(level)) if re.fullmatch(r"-?\d+", level) else 2


def _check(verbs: Any) -> None:
    check = verbs.add_parser(
        "check",
        help="check configuration files",
        description="Check configuration files: errors with their place, warnings, the "
        "configuration as it will be used, and what each profile does. Exit status 1 if any is wrong.",
    )
    check.add_argument("files", nargs="+", metavar="FILE")
    check.add_argument("--output", choices=("text", "json"), default="text")
    check.add_argument("--allow-experimental-plugins", action="store_true")
    check.add_argument("--plugin-path", action="append", default=[], metavar="FILE.py")
    check.set_defaults(run=_run_check)


def _run_check(parsed: argparse.Namespace) -> int:
    from epp.check import check  # noqa: PLC0415

    return check(
        parsed.files,
        allow_experimental=parsed.allow_experimental_plugins,
        plugin_paths=parsed.plugin_path,
        output=parsed.output,
    )


def _engine(verbs: Any) -> None:
    from epp.sim.arguments import add_arguments, run  # noqa: PLC0415

    engine = verbs.add_parser(
        "engine",
        help="run a simulated vLLM server",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="A simulated vLLM server on real HTTP: batches, prefix cache, metrics, no GPU.",
    )
    add_arguments(engine)
    engine.set_defaults(run=run)


def _gateway(verbs: Any) -> None:
    from epp.gateway.arguments import add_arguments, run  # noqa: PLC0415

    gateway = verbs.add_parser(
        "gateway",
        help="print an Envoy bootstrap",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Print an Envoy bootstrap that sends requests where the picker says.",
    )
    add_arguments(gateway)
    gateway.set_defaults(run=run)


def _demo(verbs: Any) -> None:
    demo = verbs.add_parser("demo", help="Envoy, engines and picker on this machine, compared")
    demo.add_argument("--keep", action="store_true", help="leave everything running; print curls")
    demo.add_argument("--mode", choices=("lean", "stock"), default="lean", help="Envoy's mode")
    demo.add_argument("--engines", type=int, default=3, help="simulated engines")
    demo.add_argument("--sessions", type=int, default=48, help="conversations in the workload")
    demo.add_argument("--seed", type=int, default=1)
    demo.add_argument("--output", default="build/demo.json", help="where the figures go")
    demo.set_defaults(run=_run_demo)


def _run_demo(parsed: argparse.Namespace) -> int:
    from epp import demo  # noqa: PLC0415

    return demo.run(parsed)


def _bench(verbs: Any) -> None:
    bench = verbs.add_parser("bench", help="CPU per request and latency, picker against Envoy")
    bench.add_argument("--seconds", type=float, default=6.0, help="load time of each case")
    bench.add_argument("--only", default="", metavar="CASE,...", help="run only these cases")
    bench.add_argument("--output", default="build/bench.json", help="where the figures go")
    bench.set_defaults(run=_run_bench)


def _run_bench(parsed: argparse.Namespace) -> int:
    from epp.bench import run as bench  # noqa: PLC0415

    return bench.run(parsed)


def _top(verbs: Any) -> None:
    top = verbs.add_parser("top", help="show what a running picker does, each second")
    top.add_argument(
        "--admin", default="http://127.0.0.1:9090", metavar="URL", help="its metrics port"
    )
    top.add_argument("--once", action="store_true", help="print once, all pods, and exit")
    top.add_argument(
        "--sort", default="name", metavar="COLUMN",
        choices=("name", "state", "running", "waiting", "kv_usage", "in_flight",
                 "in_flight_tokens", "requests_per_second", "error_share", "hit_rate", "age"),
        help="name, state, or a number, largest first: %(choices)s",
    )  # fmt: skip
    top.set_defaults(run=_run_top)


def _run_top(parsed: argparse.Namespace) -> int:
    from epp import top  # noqa: PLC0415

    return top.run(parsed)


def _explain(verbs: Any) -> None:
    explain = verbs.add_parser("explain", help="say why a request went where it went")
    explain.add_argument("id", metavar="ID", help="its x-request-id")
    explain.add_argument(
        "--admin", default="http://127.0.0.1:9090", metavar="URL", help="the picker's metrics port"
    )
    explain.set_defaults(run=_run_explain)


def _run_explain(parsed: argparse.Namespace) -> int:
    from epp.explain import run  # noqa: PLC0415

    return run(parsed.id, parsed.admin)


# --- argument types ----------------------------------------------------------------


def _boolean(group: Any, flag: str, *, default: bool, help: str) -> None:
    """Add a Go-style boolean: ``--flag``, ``--flag=false``."""
    group.add_argument(flag, type=truth, nargs="?", const=True, default=default, help=help)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> int:
    try:
        return parse_quantity(text) if text else 0
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _kebab(arguments: list[str]) -> list[str]:
    """Accept the spelling of the first Go pickers: ``-poolName`` for ``--pool-name``."""

    def one(argument: str) -> str:
        match = re.match(r"^-([a-z][A-Za-z-]{2,})(=.*)?$", argument)
        if match is None:
            return argument
        name = re.sub(r"[A-Z]", lambda letter: "-" + letter.group().lower(), match[1])
        return f"--{name}{match[2] or ''}"

    return [one(argument) for argument in arguments]
