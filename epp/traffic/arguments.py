"""Flags of ``epp traffic``, and its verbs. Each verb imports what it runs when it runs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from epp.terminal.arguments import count, port, positive
from epp.traffic.files import READERS, WRITERS, Reading, read_trace, told, write_trace
from epp.traffic.formats import aiperf
from epp.traffic.trace import Trace, TraceError


def add_arguments(traffic: argparse.ArgumentParser) -> None:
    """Add the verbs of ``epp traffic``."""
    verbs = traffic.add_subparsers(
        title="verbs", metavar="VERB", required=True, parser_class=type(traffic)
    )
    _convert(verbs)
    _fit(verbs)
    _synth(verbs)
    _compare(verbs)
    _replay(verbs)
    _mirror(verbs)


def _convert(verbs: Any) -> None:
    convert = verbs.add_parser(
        "convert",
        help="read traces, write them for another tool",
        description="Read traces and write them as one, from 0 on. A line that cannot be read is "
        "an error that names it.",
    )
    add_input(convert)
    convert.add_argument("--to", choices=WRITERS, default="mooncake", help="what to write")
    convert.add_argument(
        "--output", required=True, metavar="FILE", help="compressed if it ends in .gz"
    )
    convert.set_defaults(run=_run_convert)


def _run_convert(parsed: argparse.Namespace) -> int:
    return _written(read(parsed), parsed)


def _written(trace: Trace, parsed: argparse.Namespace) -> int:
    """Write what was asked for; say how much it is, and how aiperf is told what its file cannot."""
    write_trace(trace, parsed.output, parsed.to)
    print(f"{len(trace.records)} requests in {trace.seconds:.0f} s to {parsed.output}")  # noqa: T201
    if parsed.to == "aiperf":
        print(aiperf.command(trace, parsed.output))  # noqa: T201
    return 0


def _fit(verbs: Any) -> None:
    fit = verbs.add_parser(
        "fit",
        help="make a model of a trace",
        description="Make a model of a trace: what its arrivals, lengths, turns and repetitions "
        "are like, by class of business.",
    )
    add_input(fit)
    fit.add_argument("--output", required=True, metavar="FILE", help="the model, YAML")
    fit.add_argument(
        "--keep", choices=("shapes", "tables", "mixtures"), default="shapes",
        help="shapes of conversations as they were, which is closest; tables of quantiles; "
        "mixtures of lognormals, which are short",
    )  # fmt: skip
    fit.add_argument(
        "--check", action="store_true", help="imitate the trace by the model, and compare"
    )
    fit.set_defaults(run=_run_fit)


def _run_fit(parsed: argparse.Namespace) -> int:
    from epp.traffic.model.files import read_model, write_model  # noqa: PLC0415
    from epp.traffic.model.fit import fit  # noqa: PLC0415
    from epp.traffic.model.synth import like  # noqa: PLC0415
    from epp.traffic.study.compare import compare  # noqa: PLC0415
    from epp.traffic.study.shown import shown  # noqa: PLC0415

    trace = read(parsed)
    write_model(fit(trace, keep=parsed.keep, source=", ".join(parsed.files)), parsed.output)
    print(f"{len(trace.records)} requests in {trace.seconds:.0f} s to {parsed.output}")  # noqa: T201
    if parsed.check:
        made = like(read_model(parsed.output), trace.seconds)
        print(shown(compare(trace, made), ("trace", "model")))  # noqa: T201
    return 0


def _synth(verbs: Any) -> None:
    from epp.traffic.model.files import presets  # noqa: PLC0415

    synth = verbs.add_parser("synth", help="make a trace of a model")
    model = synth.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", metavar="FILE", help="a model, fitted or written by hand")
    model.add_argument("--preset", choices=presets(), help="one of `epp`'s own")
    synth.add_argument("--seconds", type=float, default=600.0, help="of traffic")
    synth.add_argument("--rate", type=float, default=1.0, help="times as many conversations")
    synth.add_argument("--seed", type=int, default=1, help="same seed, same trace")
    synth.add_argument(
        "--finish", action="store_true", help="let conversations end that have begun"
    )
    synth.add_argument("--to", choices=WRITERS, default="mooncake", help="what to write")
    synth.add_argument("--output", required=True, metavar="FILE", help="the trace")
    synth.set_defaults(run=_run_synth)


def _run_synth(parsed: argparse.Namespace) -> int:
    from epp.traffic.model.files import preset, read_model  # noqa: PLC0415
    from epp.traffic.model.synth import Wanted, synthesize  # noqa: PLC0415

    model = preset(parsed.preset) if parsed.preset else read_model(parsed.model)
    wanted = Wanted(
        seconds=parsed.seconds, rate=parsed.rate, seed=parsed.seed, finish=parsed.finish
    )
    return _written(synthesize(model, wanted), parsed)


def _compare(verbs: Any) -> None:
    compare = verbs.add_parser(
        "compare",
        help="do two traces agree?",
        description="Compare two traces: lengths and gaps, what caches of any size find in them, "
        "and times to the first token, with intervals.",
    )
    add_input(compare)
    compare.add_argument("--with", required=True, dest="other", metavar="FILE", help="the second")
    compare.add_argument(
        "--output", choices=("text", "json"), default="text", help="for people, or scripts"
    )
    compare.set_defaults(run=_run_compare)


def _run_compare(parsed: argparse.Namespace) -> int:
    import msgspec  # noqa: PLC0415

    from epp.traffic.study.compare import compare  # noqa: PLC0415
    from epp.traffic.study.shown import shown  # noqa: PLC0415

    found = compare(read(parsed), read_trace([parsed.other]))
    if parsed.output == "json":
        print(msgspec.json.format(msgspec.json.encode(found)).decode())  # noqa: T201
    else:
        print(shown(found, ("first", "second")))  # noqa: T201
    return 0


def _replay(verbs: Any) -> None:
    replay = verbs.add_parser(
        "replay",
        help="send a trace's requests to a gateway",
        description="Send a trace's requests to an OpenAI endpoint or gateway, with made-up text "
        "that shares exactly what they share. A later turn waits for the answer before it. "
        "Exit status 1 if any request failed.",
    )
    add_input(replay)
    replay.add_argument("--url", required=True, help="such as http://127.0.0.1:8080")
    replay.add_argument("--model", required=True, help="to ask for")
    replay.add_argument("--api", choices=("completions", "chat"), default="completions")
    replay.add_argument(
        "--prompt", choices=("text", "tokens"), default="text",
        help="tokens: ids, exactly as many as the trace says; completions only",
    )  # fmt: skip
    replay.add_argument(
        "--concurrency", type=count, default=0, metavar="N",
        help="closed loop: N conversations at a time. 0: open loop, each begins at its time",
    )  # fmt: skip
    replay.add_argument("--speed", type=above_zero, default=1.0, help="times as many beginnings")
    replay.add_argument(
        "--think-speed", type=above_zero, default=1.0, help="think times are so many times shorter"
    )
    replay.add_argument(
        "--keep-ticks", action="store_true",
        help="send all requests of one tick of the trace's clock at once",
    )  # fmt: skip
    replay.add_argument("--requests", type=count, default=0, metavar="N", help="at most; 0: all")
    replay.add_argument("--seed", type=int, default=1, help="another one finds no cached prompt")
    replay.add_argument("--timeout", type=above_zero, default=600.0, help="seconds of an answer")
    replay.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    replay.add_argument("--output", default="", metavar="FILE", help="what came, as a trace")
    replay.set_defaults(run=_run_replay)


def above_zero(text: str) -> float:
    """Read a number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _run_replay(parsed: argparse.Namespace) -> int:
    from epp.traffic.replay.run import run  # noqa: PLC0415

    if parsed.prompt == "tokens" and parsed.api != "completions":
        raise TraceError("--prompt tokens needs --api completions")
    return run(parsed, read(parsed))


def _mirror(verbs: Any) -> None:
    mirror = verbs.add_parser(
        "mirror",
        help="ask a shadow gateway what clients ask",
        description="Take the copies of an Envoy's request mirror (epp gateway --mirror), and send "
        "those of some conversations to another gateway, whose picker chooses for itself. "
        "Its answers are dropped.",
    )
    mirror.add_argument("--to", required=True, metavar="URL", help="the shadow gateway")
    mirror.add_argument(
        "--tenants", required=True, metavar="A,B,...",
        help="fairness ids whose requests may be copied; '*': everybody's",
    )  # fmt: skip
    mirror.add_argument("--share", type=float, default=0.1, help="of conversations, up to 1")
    mirror.add_argument("--listen-host", default="127.0.0.1", help="for Envoy")
    mirror.add_argument("--listen-port", type=port, default=9300, help="for Envoy; 0: any")
    mirror.add_argument("--in-flight", type=positive, default=64, help="copies; more are dropped")
    mirror.add_argument(
        "--body-bytes", type=int, default=4 * 2**20, help="of a copy; larger ones are dropped"
    )
    mirror.add_argument("--timeout", type=above_zero, default=300.0, help="seconds of a copy")
    mirror.add_argument(
        "--key-file", default="", help="32 bytes or more: mirrors that share it choose alike"
    )
    mirror.set_defaults(run=_run_mirror)


def _run_mirror(parsed: argparse.Namespace) -> int:
    from epp.traffic.mirror.run import run  # noqa: PLC0415

    return run(parsed)


def add_input(verb: argparse.ArgumentParser) -> None:
    """Add the flags that say which trace to read."""
    verb.add_argument("files", nargs="+", metavar="FILE", help="a trace, or a folder of its files")
    add_reading(verb)


def add_reading(verb: argparse.ArgumentParser) -> None:
    """Add the flags that say how to read traces."""
    verb.add_argument("--format", choices=("auto", *READERS), default="auto", help="of the files")
    verb.add_argument(
        "--columns", default="", metavar="THEIRS=OURS,...", help="columns that have other names"
    )
    verb.add_argument(
        "--block-tokens", type=positive, metavar="N", help="per block, if the files do not say"
    )
    verb.add_argument(
        "--skip-bad", action="store_true",
        help="go on without lines that cannot be read; they are named on stderr",
    )  # fmt: skip


def read(parsed: argparse.Namespace) -> Trace:
    """Read the trace that the flags of `add_input` say; name what was left out of it."""
    trace = read_trace(parsed.files, reading_of(parsed))
    if trace.bad:
        print(told(trace.bad), file=sys.stderr)  # noqa: T201
    return trace


def reading_of(parsed: argparse.Namespace) -> Reading:
    """Return what the flags of `add_reading` say."""
    pairs = [pair.partition("=") for pair in parsed.columns.split(",") if pair]
    return Reading(
        format=parsed.format,
        columns={theirs.strip(): ours.strip() for theirs, _, ours in pairs},
        skip_bad=parsed.skip_bad,
        block_tokens=parsed.block_tokens,
    )
