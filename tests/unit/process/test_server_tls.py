"""Certificates as files and made up; the handshake itself is in the integration tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from epp.errors import ConfigError
from epp.process.server_tls import PairFiles, read_pair, self_signed, server_context


def write(directory: Path, pair: tuple[bytes, bytes]) -> None:
    (directory / "tls.key").write_bytes(pair[0])
    (directory / "tls.crt").write_bytes(pair[1])


def test_a_self_signed_certificate_is_p_256_and_fits_its_key(tmp_path: Path) -> None:
    pair = self_signed()
    write(tmp_path, pair)
    assert read_pair(tmp_path) == pair
    public = x509.load_pem_x509_certificate(pair[1]).public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert public.curve.name == "secp256r1"


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.crt"):
        server_context(tmp_path)


def test_files_that_are_not_pem_are_refused(tmp_path: Path) -> None:
    write(tmp_path, (b"no", b"no"))
    with pytest.raises(ConfigError, match="not valid PEM"):
        server_context(tmp_path)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    write(tmp_path, (self_signed()[0], self_signed()[1]))
    with pytest.raises(ConfigError, match="not the key"):
        server_context(tmp_path)


def test_changed_files_are_read_once_and_a_broken_pair_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path, self_signed())
    files = PairFiles(tmp_path, "TLS")
    assert files.changed(bool) is None
    (tmp_path / "tls.key").write_bytes(b"half written")
    assert files.changed(bool) is None
    write(tmp_path, self_signed())
    assert files.changed(bool) is not None
    assert files.changed(bool) is None
