"""Lines between pickers: who is trusted, found, and hung up on. In: real sockets, TLS, names."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from epp.errors import ConfigError
from epp.feedback.entry import Entry
from epp.local.fleet import free_port
from epp.model import EndpointId, Outcome
from epp.peers import sharing, wire
from epp.peers.news import Batch, Sent
from epp.peers.places import Target, look_up
from epp.peers.sharing import Settings
from epp.peers.v1 import peers_pb2 as pb
from epp.rpc.call import Call
from epp.rpc.server import RpcServer
from tests.support.certificates import Authority
from tests.support.peers import Picker, pickers, until


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


SENT = Sent(1, 1.0, EndpointId("a"), 100, 100)


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (b"\xff\xff\xff", "no news"),
        (wire.heartbeat("another", 1.0), "another picker's news"),
        (pb.News(instance="liar", events=[pb.Event(sent=pb.Sent())]).SerializeToString(), "name 0"),
    ],
    ids=["garbage", "somebody else", "an event that cannot be"],
)
def test_a_picker_that_sends_what_cannot_be_is_hung_up_on_and_its_requests_are_dropped(
    then: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    asked = 0

    async def main() -> None:
        port, go_on = free_port(), asyncio.Event()

        async def follow(call: Call) -> None:
            nonlocal asked
            asked += 1
            await call.read()
            for message in wire.pack("liar", Batch(1.0, (SENT,))):
                await call.write(message)
            await go_on.wait()
            await call.write(then)
            await asyncio.Event().wait()

        liar = RpcServer({wire.FOLLOW: follow}, most_bytes=(2**20, 2**20))
        liar.bind("127.0.0.1", port)
        await liar.start()
        one = Picker(free_port(), (port,))
        await one.start()
        try:
            await until(lambda: one.lane.booked() == {"a": (1, 100)})
            go_on.set()
            await until(lambda: not one.lane.booked() and words in caplog.text)
            await until(lambda: asked == 2)  # it may have come to its senses
            (await one.lane.send()).complete()
        finally:
            await one.stop()
            await liar.stop(None)

    run(main())


class Way:
    """Between a picker and its peer: it may forget connections, as networks do, without a word."""

    def __init__(self, to: int) -> None:
        self.port = 0
        self._to = to
        self._lost: set[int] = set()
        self._flows = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._flows += 1
            self._tasks.add(asyncio.create_task(self._carry(self._flows, reader, writer)))

        self._server = await asyncio.start_server(met, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def forget(self) -> None:
        """Carry nothing any more of what is open."""
        self._lost |= set(range(1, self._flows + 1))

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(
        self, flow: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)

        async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(65_536):
                if flow not in self._lost:
                    to.write(data)
            if flow not in self._lost:
                to.close()

        try:
            await asyncio.gather(pump(reader, back), pump(there, writer))
        finally:
            writer.transport.abort()
            back.transport.abort()


def test_a_connection_that_the_network_forgot_is_not_waited_for() -> None:
    """Neither end is told; and what is for a follower takes its new line, not the dead one."""

    async def main() -> None:
        ports = [free_port() for _ in range(2)]
        way = Way(ports[1])
        await way.start()
        one, other = Picker(ports[0], (way.port,)), Picker(ports[1], ())
        await one.start()
        await other.start()
        try:
            await one.hears(other)
            way.forget()
            await until(lambda: not one.circle.followed)
            await one.hears(other)
            exchange = await other.lane.send()
            await until(lambda: bool(one.lane.booked()))
            exchange.complete()
            assert len(other.circle.followers) == 2  # one of which is dead
            entry = Entry("", Outcome.COMPLETED, name=f"{one.sharing.instance}{1:012x}")
            assert other.sharing.entries.tell(entry)
            await until(lambda: one.circle.counts.heard_entries == 1)
        finally:
            await one.stop()
            await other.stop()
            await way.stop()

    run(main())


# --- TLS -----------------------------------------------------------------------------------


def certificates(folder: Path, name: str, authority: Authority) -> Path:
    """A directory as a secret of cert-manager has it."""
    made = folder / name
    made.mkdir()
    certificate, key = authority.issue(name)
    (made / "tls.crt").write_bytes(certificate.read_bytes())
    (made / "tls.key").write_bytes(key.read_bytes())
    (made / "ca.crt").write_bytes(authority.path.read_bytes())
    return made


def test_pickers_tell_each_other_by_mutual_tls_and_nobody_of_another_authority(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    right, wrong = (certificates(tmp_path, *each) for each in (("a", ours), ("b", theirs)))
    half = tmp_path / "half"  # it trusts us, and is not trusted
    shutil.copytree(wrong, half)
    shutil.copy(right / "ca.crt", half)

    async def main() -> None:
        async with pickers(2, certificates=right) as (one, other):
            exchange = await one.lane.send()
            await until(lambda: bool(other.lane.booked()))
            exchange.complete()
            ports = [free_port() for _ in range(3)]
            strangers = [
                Picker(port, (one.port, other.port), certificates=folder)
                for port, folder in zip(ports, (wrong, half, None), strict=True)
            ]
            for each in strangers:
                await each.start()
            said = "is not heard"
            await until(lambda: caplog.text.count(said) >= 2 * len(strangers))
            for each in strangers:
                assert not each.circle.followed
                await each.stop()
            assert len(one.circle.followers) == len(other.circle.followers) == 1
            assert caplog.text.count(said) == 2 * len(
                strangers
            )  # each once, however often it tries

    run(main())


def test_certificates_are_read_again_when_they_have_changed(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    folders = [certificates(tmp_path, name, first) for name in ("a", "b")]

    async def main() -> None:
        ports = [free_port() for _ in range(2)]
        one, other = (
            Picker(port, ports, certificates=folder)
            for port, folder in zip(ports, folders, strict=True)
        )
        await one.start()
        await other.start()
        try:
            await one.hears(other)
            for number, folder in enumerate(folders):
                newer = certificates(tmp_path, f"newer-{number}", second)
                for name in ("ca.crt", "tls.key", "tls.crt"):
                    shutil.copy(newer / name, folder)
            await other.stop()
            await until(lambda: not one.circle.followed)
            await other.start()
            await one.hears(other)
            await other.hears(one)
        finally:
            await one.stop()
            await other.stop()

    run(main())


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_of_the_certificate_that_is_missing_ends_the_start(
    tmp_path: Path, missing: str
) -> None:
    folder = certificates(tmp_path, "a", Authority(tmp_path))
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        Picker(0, (1,), certificates=folder)


# --- names ---------------------------------------------------------------------------------


def test_pickers_come_and_go_with_the_addresses_of_a_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(sharing, "LOOK_UP_SECONDS", 0.05)
    port = free_port()
    answers: list[frozenset[str] | None] = [None]

    async def look_up(target: Target) -> frozenset[str] | None:
        assert target == Target("pickers", port)
        return answers[0]

    monkeypatch.setattr(sharing, "look_up", look_up)

    async def main() -> None:
        old, new, far = (Picker(port, (), listens=f"127.0.0.{i}") for i in (1, 2, 3))
        for each in (old, new, far):
            each.sharing._settings = Settings(
                (Target("pickers", port),), each.sharing._settings.host, port
            )
            await each.start()
        try:
            answers[0] = frozenset(f"127.0.0.{i}:{port}" for i in (1, 2))
            await old.hears(new)
            words = "the name pickers cannot be looked up"
            before, answers[0] = caplog.text.count(words), None  # the name server has a bad moment
            await until(lambda: caplog.text.count(words) == before + 3)  # once each
            exchange = await new.lane.send()
            await until(lambda: bool(old.lane.booked()))
            answers[0] = frozenset(f"127.0.0.{i}:{port}" for i in (1, 3))
            await old.hears(far)
            assert not old.lane.booked()
            exchange.complete()
            assert f"peer at 127.0.0.2:{port} is gone" in caplog.text
        finally:
            for each in (old, new, far):
                await each.stop()

    run(main())


def test_a_host_stands_for_all_of_its_addresses() -> None:
    async def main() -> None:
        assert await look_up(Target("127.0.0.1", 5)) == {"127.0.0.1:5"}
        assert await look_up(Target("::1", 5)) == {"[::1]:5"}
        assert await look_up(Target("nobody.invalid", 5)) is None
        assert (await look_up(Target("localhost", 5)) or frozenset()) & {"127.0.0.1:5", "[::1]:5"}

    run(main())
