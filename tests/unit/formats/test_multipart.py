"""Form uploads: the model is found wherever it stands, whatever the size."""

from __future__ import annotations

import random
import time

import pytest

from epp.formats.multipart import WINDOW_BYTES
from epp.model import InferenceRequest
from tests.support.arrivals import parsed

PATH = "/v1/audio/transcriptions"
MODEL = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
END = b"--XX--\r\n"


def file(data: bytes) -> bytes:
    head = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    return head + b"Content-Type: audio/wav\r\n\r\n" + data + b"\r\n"


def upload(body: bytes, kind: str = "multipart/form-data; boundary=XX") -> InferenceRequest:
    return parsed(PATH, body, content_type=kind)


@pytest.mark.parametrize("size", [10, WINDOW_BYTES, 100_000], ids=str)
@pytest.mark.parametrize("first", [True, False], ids=["model first", "file first"])
def test_the_model_is_found(size: int, first: bool) -> None:
    sound = file(random.Random(1).randbytes(size))
    body = (MODEL + sound if first else sound + MODEL) + END
    request = upload(body)
    assert (request.model, request.format, request.unread) == ("whisper-1", "multipart", "")
    assert request.body == body


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param('Multipart/Form-Data; boundary="XX"', id="quoted, capitals"),
        pytest.param("multipart/form-data; charset=utf-8; boundary=XX", id="after a charset"),
    ],
)
def test_ways_to_write_the_type(kind: str) -> None:
    assert upload(MODEL + END, kind).model == "whisper-1"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param(file(b"x") + END, "multipart/form-data; boundary=XX", id="no model"),
        pytest.param(MODEL + END, "multipart/form-data", id="no boundary"),
        pytest.param(MODEL + END, "multipart/form-data; boundary=YY", id="other boundary"),
        pytest.param(b"\xff" * 50, "multipart/form-data; boundary=XX", id="noise"),
        pytest.param(MODEL + END, "multipart/form-data; boundary=\u20ac", id="odd boundary"),
        pytest.param(
            MODEL.replace(b"whisper-1", b"\xff") + END,
            "multipart/form-data; boundary=XX",
            id="model is no text",
        ),
        pytest.param(
            MODEL.replace(b"whisper-1", b"w" * 2_000) + END,
            "multipart/form-data; boundary=XX",
            id="model is a novel",
        ),
        pytest.param(
            MODEL.replace(
                b"\r\n\r\n", b"\r\nContent-Type: multipart/mixed; boundary=Z\r\n\r\n--Z\r\n\r\n"
            )
            + END,
            "multipart/form-data; boundary=XX",
            id="model is a form",
        ),
    ],
)
def test_a_form_without_a_readable_model_is_routed(body: bytes, kind: str) -> None:
    request = upload(body, kind)
    assert (request.model, request.unread, request.format) == ("", "no-model", "multipart")


def test_a_name_cut_off_by_the_window_is_not_taken() -> None:
    head = MODEL.removesuffix(b"whisper-1\r\n")
    filler = file(b"x" * (WINDOW_BYTES - len(file(b"")) - len(head) - 3))
    body = filler + MODEL + file(b"y" * 2 * WINDOW_BYTES) + END
    assert body[:WINDOW_BYTES].endswith(b"\r\n\r\nwhi")
    assert upload(body).model == ""


def test_forms_nested_without_end_do_no_harm() -> None:
    body = b"".join(
        b"--X%d\r\nContent-Type: multipart/mixed; boundary=X%d\r\n\r\n" % (i, i + 1)
        for i in range(5_000)
    )
    assert upload(body, "multipart/form-data; boundary=X0").unread == "no-model"


def test_an_upload_of_20_mb_takes_no_longer_than_a_small_one() -> None:
    body = file(random.Random(2).randbytes(20_000_000)) + MODEL + END
    start = time.process_time()
    request = upload(body)
    assert time.process_time() - start < 0.2
    assert request.model == "whisper-1"
    assert request.body is not None
    assert len(request.body) == len(body)


def test_empty_and_encoded_forms_are_routed() -> None:
    assert upload(b"").unread == "empty"
    request = parsed(
        PATH,
        MODEL + END,
        content_type="multipart/form-data; boundary=XX",
        headers={"content-encoding": "gzip"},
    )
    assert request.unread == "encoded"
