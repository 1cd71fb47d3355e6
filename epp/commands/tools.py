"""The verbs of ``epp`` beside ``serve``: their flags. Each imports what it runs when it runs."""

from __future__ import annotations

import argparse
from typing import Any

from epp.terminal.arguments import positive


def add_tools(verbs: Any) -> None:
    """Add their parsers, in the order of the help."""
    _check(verbs)
    _sidecar(verbs)
    _engine(verbs)
    _gateway(verbs)
    _demo(verbs)
    _bench(verbs)
    _soak(verbs)
    _top(verbs)
    _explain(verbs)
    _traffic(verbs)
    _sim(verbs)


def _check(verbs: Any) -> None:
    check = verbs.add_parser(
        "check",
        help="check configuration files",
        description="Check configuration files: errors with their place, warnings, the "
        "configuration as it will be used, and what each profile does. Exit status 1 if any is wrong.",
    )
    check.add_argument("files", nargs="+", metavar="FILE", help="an EndpointPickerConfig")
    check.add_argument(
        "--output", choices=("text", "json"), default="text", help="for people, or scripts"
    )
    check.add_argument(
        "--allow-experimental-plugins", action="store_true", help="allow alpha plugins"
    )
    check.add_argument(
        "--plugin-path", action="append", default=[], metavar="FILE.py", help="plugins of your own"
    )
    check.set_defaults(run=_run_check)


def _run_check(parsed: argparse.Namespace) -> int:
    from epp.commands.check import check  # noqa: PLC0415

    return check(
        parsed.files,
        allow_experimental=parsed.allow_experimental_plugins,
        plugin_paths=parsed.plugin_path,
        output=parsed.output,
    )


def _sidecar(verbs: Any) -> None:
    from epp.sidecar.arguments import add_arguments, run  # noqa: PLC0415

    sidecar = verbs.add_parser(
        "sidecar",
        help="run the prefill/decode sidecar of an engine",
        description="Stand before a decode engine: have prompts computed by the prefill endpoint "
        "that the picker names in a header, and everything else by the engine. Flags are those of "
        "the Go sidecar where it has them; durations like 200ms or 30s, sizes like 32Mi.",
    )
    add_arguments(sidecar)
    sidecar.set_defaults(run=run)


def _engine(verbs: Any) -> None:
    from epp.sim.arguments import add_arguments, run  # noqa: PLC0415

    engine = verbs.add_parser(
        "engine",
        help="run a simulated vLLM server",
        description="A simulated vLLM server on real HTTP: batches, prefix cache, metrics, no GPU.",
    )
    add_arguments(engine)
    engine.set_defaults(run=run)


def _gateway(verbs: Any) -> None:
    from epp.gateway.arguments import add_arguments, run  # noqa: PLC0415

    gateway = verbs.add_parser(
        "gateway",
        help="print an Envoy bootstrap",
        description="Print an Envoy bootstrap that sends requests where the picker says.",
    )
    add_arguments(gateway)
    gateway.set_defaults(run=run)


def _demo(verbs: Any) -> None:
    demo = verbs.add_parser(
        "demo",
        help="Envoy, engines and picker on this machine, compared",
        description="Send the same traffic through a real Envoy to simulated engines, by round "
        "robin and by the picker, and compare hit rate and TTFT. Needs epp[gateway]; takes about "
        "a minute and a half.",
    )
    demo.add_argument(
        "--keep", action="store_true", help="leave it running until Ctrl-C; print curls"
    )
    demo.add_argument("--mode", choices=("lean", "stock"), default="lean", help="Envoy's mode")
    demo.add_argument("--engines", type=positive, default=3, help="simulated engines")
    demo.add_argument("--sessions", type=positive, default=48, help="conversations in the workload")
    demo.add_argument("--seed", type=int, default=1, help="same seed, same traffic")
    demo.add_argument("--output", default="build/demo.json", help="where the figures go")
    demo.set_defaults(run=_run_demo)


def _run_demo(parsed: argparse.Namespace) -> int:
    from epp.commands import demo  # noqa: PLC0415

    return demo.run(parsed)


def _bench(verbs: Any) -> None:
    bench = verbs.add_parser(
        "bench",
        help="CPU per request and latency, picker against Envoy",
        description="Measure CPU per request and latency of the picker beside a real Envoy. "
        "Needs epp[gateway].",
    )
    bench.add_argument("--seconds", type=float, default=6.0, help="load time of each case")
    bench.add_argument(
        "--only", default="", metavar="CASE,...", help="run only these; kv is all of KV events"
    )
    bench.add_argument("--output", default="build/bench.json", help="where the figures go")
    bench.set_defaults(run=_run_bench)


def _run_bench(parsed: argparse.Namespace) -> int:
    from epp.bench import run as bench  # noqa: PLC0415

    return bench.run(parsed)


def _soak(verbs: Any) -> None:
    soak = verbs.add_parser(
        "soak",
        help="a picker that follows a hundred engines' KV events, and faults",
        description="Send conversations through a real Envoy to many simulated engines that publish "
        "KV events, while the picker follows them: does it know what they hold, does its memory stay "
        "flat, does it recover from what is lost? Prints a line now and then. Exit status 1 if "
        "requests failed or engines are not trusted at the end. Needs epp[gateway,precise].",
    )
    soak.add_argument("--pods", type=positive, default=100, help="simulated engines")
    soak.add_argument("--seconds", type=float, default=60.0, help="of traffic")
    soak.add_argument("--rate", type=float, default=20.0, help="requests a second")
    soak.add_argument("--every", type=float, default=10.0, help="seconds between two lines")
    soak.add_argument("--drop", type=float, default=0.0, help="fraction of messages that are lost")
    soak.add_argument("--buffer", type=positive, default=10_000, help="messages kept for who asks")
    soak.add_argument("--mute", type=int, default=0, help="engines that tell nothing at all")
    soak.add_argument(
        "--restart-every", type=float, default=0.0, help="seconds between restarts; 0 is never"
    )
    soak.add_argument("--kv-blocks", type=positive, default=3000, help="of each engine")
    soak.add_argument("--mode", choices=("lean", "stock"), default="lean", help="Envoy's mode")
    soak.add_argument("--seed", type=int, default=1, help="same seed, same conversations")
    soak.add_argument("--output", default="build/soak.json", help="where the figures go")
    soak.set_defaults(run=_run_soak)


def _run_soak(parsed: argparse.Namespace) -> int:
    from epp.soak import run  # noqa: PLC0415

    return run.run(parsed)


def _top(verbs: Any) -> None:
    top = verbs.add_parser("top", help="show what a running picker does, each second")
    _add_admin(top)
    top.add_argument("--pool", default="", metavar="NAME", help="which one, of a picker of many")
    top.add_argument("--once", action="store_true", help="print once, all pods, and exit")
    top.add_argument(
        "--sort", default="name", metavar="COLUMN",
        choices=("name", "state", "running", "waiting", "kv_usage", "in_flight",
                 "in_flight_tokens", "requests_per_second", "error_share", "hit_rate", "age"),
        help="name, state, or a number, largest first: %(choices)s",
    )  # fmt: skip
    top.set_defaults(run=_run_top)


def _run_top(parsed: argparse.Namespace) -> int:
    from epp.commands import top  # noqa: PLC0415

    return top.run(parsed)


def _explain(verbs: Any) -> None:
    explain = verbs.add_parser("explain", help="say why a request went where it went")
    explain.add_argument("id", metavar="ID", help="its x-request-id")
    _add_admin(explain)
    explain.set_defaults(run=_run_explain)


def _run_explain(parsed: argparse.Namespace) -> int:
    from epp.commands.explain import run  # noqa: PLC0415

    return run(parsed)


def _add_admin(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `asking.admin_of` reads."""
    parser.add_argument(
        "--admin", default="http://127.0.0.1:9090", metavar="URL", help="the picker's metrics port"
    )
    parser.add_argument(
        "--token-file", default="", metavar="FILE",
        help="holds a token that may read the port (kubectl create token NAME > FILE)",
    )  # fmt: skip
    parser.add_argument("--ca-file", default="", metavar="FILE", help="who signed its certificate")
    parser.add_argument("--cert-file", default="", metavar="FILE", help="our certificate")
    parser.add_argument("--key-file", default="", metavar="FILE", help="the key of --cert-file")
    parser.add_argument(
        "--insecure", action="store_true", help="believe whatever certificate the picker shows"
    )


def _traffic(verbs: Any) -> None:
    from epp.traffic.arguments import add_arguments  # noqa: PLC0415

    traffic = verbs.add_parser(
        "traffic",
        help="traces of traffic, without its content",
        description="Traces without content: convert, study, imitate and replay them. "
        "`epp serve --record-file` records them.",
    )
    add_arguments(traffic)


def _sim(verbs: Any) -> None:
    from epp.sim.report.arguments import add_arguments  # noqa: PLC0415

    sim = verbs.add_parser(
        "sim",
        help="simulate a fleet and its pickers",
        description="Simulate a fleet and its pickers in virtual time: what a policy, a rollout or "
        "a new model does to latencies, before production.",
    )
    add_arguments(sim)
