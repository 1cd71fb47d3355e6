"""Flags of ``epp traffic``, and its verbs. Each verb imports what it runs when it runs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from epp.arguments import positive
from epp.traffic.files import READERS, WRITERS, Reading, read_trace, told, write_trace
from epp.traffic.trace import Trace


def add_arguments(traffic: argparse.ArgumentParser) -> None:
    """Add the verbs of ``epp traffic``."""
    verbs = traffic.add_subparsers(
        title="verbs", metavar="VERB", required=True, parser_class=type(traffic)
    )
    _convert(verbs)


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
    trace = read(parsed)
    write_trace(trace, parsed.output, parsed.to)
    print(f"{len(trace.records)} requests in {trace.seconds:.0f} s to {parsed.output}")  # noqa: T201
    return 0


def add_input(verb: argparse.ArgumentParser) -> None:
    """Add the flags that say which trace to read."""
    verb.add_argument("files", nargs="+", metavar="FILE", help="a trace, or a folder of its files")
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
    pairs = [pair.partition("=") for pair in parsed.columns.split(",") if pair]
    reading = Reading(
        format=parsed.format,
        columns={theirs.strip(): ours.strip() for theirs, _, ours in pairs},
        skip_bad=parsed.skip_bad,
        block_tokens=parsed.block_tokens,
    )
    trace = read_trace(parsed.files, reading)
    if trace.bad:
        print(told(trace.bad), file=sys.stderr)  # noqa: T201
    return trace
