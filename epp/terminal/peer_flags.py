"""The flags that tell of other pickers."""

from __future__ import annotations

import argparse

from epp.terminal.arguments import port


def add_peers(serve: argparse.ArgumentParser, default_port: int) -> None:
    """Add them."""
    peers = serve.add_argument_group("other pickers of the same pools (docs/peers.md)")
    peers.add_argument(
        "--peers", default="", metavar="HOST:PORT,...",
        help="tell them what is sent where, and hear it of them; a host stands for all of its "
        "addresses, looked up again and again, as those of a headless Service",
    )  # fmt: skip
    peers.add_argument(
        "--peers-port", type=port, default=default_port, help="where they hear this one"
    )
    peers.add_argument(
        "--peers-cert-dir", default="", metavar="DIR",
        help="holds tls.crt, tls.key and ca.crt: mutual TLS between pickers",
    )  # fmt: skip
