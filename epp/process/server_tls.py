"""TLS of every port that we open: a self-signed certificate, or one from a directory.

Gateways do not verify the picker's certificate, they only speak TLS, so that a certificate made
at the start serves. ECDSA P-256, since an RSA key of like strength takes seconds to make.
A certificate from files is read again at the first handshake after they changed (a Kubernetes
secret is swapped by a symbolic link): no watcher, no delay. A pair that does not belong
together, as in the middle of a swap, is not taken; the one before goes on.
"""

from __future__ import annotations

import datetime as dt
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epp.errors import ConfigError

log = logging.getLogger(__name__)

CERTIFICATE, KEY = "tls.crt", "tls.key"
VALID_DAYS = 3650

Pair = tuple[bytes, bytes]  #: private key and certificate chain, PEM
Tune = Callable[[ssl.SSLContext], None]
Taken = TypeVar("Taken")


def self_signed() -> Pair:
    """Make a key and a certificate for it. About 1 ms."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "epp")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(encoding)


def server_context(
    directory: Path | None = None, tune: Tune = lambda context: None, *, port: str = "TLS"
) -> ssl.SSLContext:
    """Return a server's TLS.

    Args:
        directory: holds ``tls.crt`` and ``tls.key``, PEM; None makes a self-signed pair.
        tune: sets what else is to be set, also on those made for renewed pairs.
        port: whose it is, in the log.

    Raises:
        ConfigError: the files cannot be read, or are not a certificate and its key.
    """
    if directory is None:
        return _context(self_signed(), tune)
    context = _context(read_pair(directory), tune)
    files = PairFiles(directory, port)
    renewed = [context]

    def look(handshake: ssl.SSLObject, _name: object, _context_now: object) -> None:
        newer = files.changed(lambda pair: _context(pair, tune))
        if newer is not None:
            log.info("read the %s certificate in %s again", port, directory)
            renewed[0] = newer
        handshake.context = renewed[0]

    context.sni_callback = look  # it is called without a name, too
    return context


def _context(pair: Pair, tune: Tune) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tune(context)
    _load(context, pair)
    return context


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """Have ``context`` show this pair.

    The ssl module reads files only, and the root file system may be read-only.
    """
    key, chain = pair
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a private folder in it
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        (Path(folder) / KEY).write_bytes(key)
        (Path(folder) / CERTIFICATE).write_bytes(chain)
        context.load_cert_chain(Path(folder) / CERTIFICATE, Path(folder) / KEY)


def read_pair(directory: Path) -> Pair:
    """Read the pair in ``directory``.

    Raises:
        ConfigError: see `server_context`. The message never holds a part of the key.
    """
    try:
        chain, key = (directory / CERTIFICATE).read_bytes(), (directory / KEY).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the TLS certificate: {error}") from error
    try:
        public = x509.load_pem_x509_certificate(chain).public_key()
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{directory}: {CERTIFICATE} or {KEY} is not valid PEM") from error
    if private.public_key() != public:
        raise ConfigError(f"{directory}: {KEY} is not the key of {CERTIFICATE}")
    return key, chain


def pair_stamp(directory: Path) -> tuple[object, ...]:
    """Return what differs once the pair's files have changed; () if one is missing."""
    try:
        stats = [(directory / name).stat() for name in (CERTIFICATE, KEY)]
    except OSError:
        return ()
    return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)


class PairFiles:
    """A pair on disk, taken again once its files changed. Also for servers' own threads.

    Args:
        directory: holds ``tls.crt`` and ``tls.key``, which are in use.
        port: whose pair it is, in warnings.
    """

    def __init__(self, directory: Path, port: str) -> None:
        self._directory = directory
        self._port = port
        self._seen = self._refused = pair_stamp(directory)

    def changed(self, take: Callable[[Pair], Taken]) -> Taken | None:
        """Return what ``take`` makes of the pair, or None if it is the same or is not one.

        ``take`` may refuse it, too, by an OSError, which an SSLError is.
        """
        stamp = pair_stamp(self._directory)
        if stamp == self._seen:
            return None
        try:
            taken = take(read_pair(self._directory))
        except (ConfigError, OSError) as error:
            if stamp != self._refused:  # once, not for everybody who shakes hands
                log.warning("keeping the %s certificate in use: %s", self._port, error)
            self._refused = stamp
            return None
        self._seen = stamp
        return taken
