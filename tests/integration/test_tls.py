"""TLS of a real picker process: certificates, their renewal, versions, suites.

**Source:** the TLS flags of llm-d-router and the names of Go's ``crypto/tls``; RFC 7301 (ALPN).
"""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from epp.errors import ConfigError
from epp.process.ciphers import apply, suites_of
from tests.support.certificates import Authority
from tests.support.handshake import Agreed, shake_hands
from tests.support.process import eventually
from tests.support.served import LOCAL, Health, Served, serving

V = ssl.TLSVersion
WHERE = "--endpoints=127.0.0.1:9"
RELOAD_SECONDS = 10.0  #: a chart expects 60 at most
ENDS_SECONDS = 10.0


def agreed(picker: Served, **options: object) -> Agreed:
    result = shake_hands(picker.ports["grpc"], **options)  # type: ignore[arg-type]
    assert result is not None, "the server will not shake hands"
    return result


# --- the certificate of its own ----------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("own"), WHERE) as picker:
        yield picker


def test_without_a_certificate_it_signs_one_with_an_elliptic_curve(own: Served) -> None:
    certificate = x509.load_der_x509_certificate(agreed(own).certificate)
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert certificate.issuer == certificate.subject
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days >= 3650


@pytest.mark.parametrize("version", [V.TLSv1_2, V.TLSv1_3], ids=str)
def test_http2_is_agreed_on_by_alpn(version: ssl.TLSVersion, own: Served) -> None:
    assert agreed(own, version=version).protocol == "h2"


def test_nothing_below_tls_1_2_is_spoken(own: Served) -> None:
    assert shake_hands(own.ports["grpc"], version=V.TLSv1_1) is None


def test_plain_text_is_spoken_if_told(tmp_path: Path) -> None:
    with serving(tmp_path, WHERE, "--secure-serving=false") as picker:
        assert shake_hands(picker.ports["grpc"]) is None
        with Health(picker.ports["grpc"]) as envoy:
            assert envoy.check("readiness") == "SERVING"


# --- a certificate from files ------------------------------------------------------


class Secret:
    """A Kubernetes secret mounted as a volume: ``..data`` is swapped, the files are links."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "secret"
        self.folder.mkdir()
        self._authority = Authority(folder)
        self._count = 0

    def renew(self) -> str:
        """Put a new pair in place; return its fingerprint."""
        self._count += 1
        certificate, key = self._authority.issue(f"pair-{self._count}")
        version = self.folder / f"..version-{self._count}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate.read_bytes())
        (version / "tls.key").write_bytes(key.read_bytes())
        self._swap(version)
        pem = x509.load_pem_x509_certificate(certificate.read_bytes())
        return pem.fingerprint(pem.signature_hash_algorithm).hex()  # type: ignore[arg-type]

    def _swap(self, version: Path) -> None:
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.folder / "..data")
        for name in ("tls.crt", "tls.key"):
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")


def test_a_renewed_secret_is_used_without_a_restart(tmp_path: Path) -> None:
    secret = Secret(tmp_path)
    first = secret.renew()
    with serving(tmp_path, WHERE, f"--cert-path={secret.folder}") as picker:
        assert agreed(picker).fingerprint == first
        second = secret.renew()
        eventually(lambda: agreed(picker).fingerprint == second, RELOAD_SECONDS)
        (secret.folder / "..data" / "tls.key").write_text("half a file")
        for _ in range(3):
            assert agreed(picker).fingerprint == second, "a broken pair is not taken"
        (warning,) = [each for each in picker.entries("warn") if "TLS" in each]
        assert warning.startswith("keeping the TLS certificate in use: ")
        third = secret.renew()
        eventually(lambda: agreed(picker).fingerprint == third, RELOAD_SECONDS)


def test_half_a_pair_ends_the_start(tmp_path: Path) -> None:
    secret = Secret(tmp_path)
    secret.renew()
    (secret.folder / "tls.key").unlink()
    said = last_words(f"--cert-path={secret.folder}")
    assert "cannot read the TLS certificate" in said
    assert "tls.key" in said


# --- versions and suites -----------------------------------------------------------


def last_words(*flags: str) -> str:
    """What a picker says that does not start."""
    ended = subprocess.run(
        [sys.executable, "-m", "epp", *LOCAL, WHERE, *flags], capture_output=True, text=True,
        timeout=ENDS_SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    return ended.stderr.splitlines()[-1]


def test_tls_1_3_can_be_demanded(tmp_path: Path) -> None:
    with serving(tmp_path, WHERE, "--tls-min-version=VersionTLS13") as picker:
        assert shake_hands(picker.ports["grpc"], version=V.TLSv1_2) is None
        assert agreed(picker).version == "TLSv1.3"
        assert agreed(picker).protocol == "h2"


def test_the_suites_of_tls_1_2_are_those_told(tmp_path: Path) -> None:
    told = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_RC4_128_SHA,TLS_AES_128_GCM_SHA256"
    flags = ("--tls-min-version=VersionTLS12", f"--tls-cipher-suites={told}")
    with serving(tmp_path, WHERE, *flags) as picker:
        assert agreed(picker, version=V.TLSv1_2).suite == "ECDHE-ECDSA-AES128-GCM-SHA256"
        other = "ECDHE-ECDSA-AES256-GCM-SHA384"
        assert shake_hands(picker.ports["grpc"], version=V.TLSv1_2, suites=other) is None
        assert agreed(picker).version == "TLSv1.3"


def test_a_suite_that_go_does_not_have_ends_the_start() -> None:
    said = last_words("--tls-cipher-suites=TLS_NO_SUCH")
    assert "no cipher suite is called 'TLS_NO_SUCH'" in said


def told(least: str, names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    apply(context, least, names)
    return context


@pytest.mark.parametrize(
    ("least", "names", "version"),
    [
        ("", "", V.TLSv1_2),
        ("VersionTLS10", "", V.TLSv1_2),
        ("VersionTLS12", "", V.TLSv1_2),
        ("VersionTLS13", "", V.TLSv1_3),
        ("VersionTLS13", "TLS_RSA_WITH_AES_128_CBC_SHA", V.TLSv1_3),
        ("", "TLS_AES_128_GCM_SHA256", V.TLSv1_3),
        ("", "TLS_RSA_WITH_RC4_128_SHA,TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA", V.TLSv1_3),
        ("", "TLS_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_256_CBC_SHA", V.TLSv1_2),
    ],
)
def test_the_least_version_is_the_one_told_or_that_of_the_suites(
    least: str, names: str, version: ssl.TLSVersion
) -> None:
    assert told(least, names).minimum_version == version


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (" TLS_RSA_WITH_AES_256_CBC_SHA , ,", ["AES256-SHA"]),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", ["AES128-GCM-SHA256"]),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", ["ECDHE-RSA-AES128-SHA256"]),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            ["ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES256-GCM-SHA384"],
        ),
    ],
)
def test_openssl_has_go_s_suites_by_names_of_its_own(names: str, known: list[str]) -> None:
    of_tls_1_2 = [suite["name"] for suite in told("", names).get_ciphers()]
    assert [name for name in of_tls_1_2 if not name.startswith("TLS_")] == known
    assert list(suites_of(names)) == known


@pytest.mark.parametrize("least", ["TLS13", "VersionTLS14"])
def test_an_unknown_version_is_refused(least: str) -> None:
    with pytest.raises(ConfigError, match="VersionTLS13"):
        told(least, "")
