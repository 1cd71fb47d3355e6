"""Ports for the processes that demo, bench and tests start."""

from __future__ import annotations

import socket

import pytest

from epp.local.fleet import FREE_PORTS, free_port, ports_of

EPHEMERAL = 32_768  #: Linux gives ports from here on to outgoing connections


def test_a_free_port_is_none_that_an_outgoing_connection_may_get() -> None:
    assert all(1024 < free_port() < EPHEMERAL for _ in range(50))


def test_no_port_is_given_twice_though_nobody_listens_on_it_yet() -> None:
    # Of 500 drawn from 20,000 by chance about six would come twice.
    assert len({free_port() for _ in range(500)}) == 500


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()


def test_from_which_ports_to_choose_can_be_said() -> None:
    assert ports_of("20000-20009") == range(20_000, 20_010)
    assert ports_of(None) == ports_of("") == range(FREE_PORTS[0], FREE_PORTS[1] + 1)


@pytest.mark.parametrize("text", ["20000", "a-b", "0-10", "20-10", "60000-65536", "1-2-3", "-"])
def test_what_is_no_range_of_ports_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(OSError, match=f"EPP_DEMO_PORTS: '{text}'"):
        ports_of(text)
