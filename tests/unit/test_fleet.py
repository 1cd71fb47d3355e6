"""Ports for the processes that demo, bench and tests start."""

from __future__ import annotations

import socket

from epp.fleet import free_port

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
