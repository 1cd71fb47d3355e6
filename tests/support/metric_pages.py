"""Model servers of which only ``/metrics`` is there, in threads: they outlive any event loop."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STOP_SECONDS = 5.0


class QuietServer(ThreadingHTTPServer):
    """Says nothing of a picker that was killed in the middle of a request."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class MetricPage:
    """One model server's page; change it while it runs."""

    def __init__(self) -> None:
        self.text = ""
        self.asked: list[str] = []  #: paths
        page = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                page.asked.append(self.path)
                body = page.text.encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def show(self, queue: int, usage: float, adapters: Sequence[str] = ()) -> None:
        """Be a vLLM server with these numbers and running LoRA adapters."""
        lines = [
            f"vllm:num_requests_waiting {queue}",
            "vllm:num_requests_running 0",
            f"vllm:kv_cache_usage_perc {usage}",
        ]
        if adapters:
            lines.append(
                f'vllm:lora_requests_info{{running_lora_adapters="{",".join(adapters)}",'
                'waiting_lora_adapters="",max_lora="2"} 1.0'
            )
        self.text = "\n".join([*lines, ""])

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOP_SECONDS)


@contextlib.contextmanager
def metric_pages(count: int) -> Iterator[list[MetricPage]]:
    """Serve ``count`` pages; none is left behind."""
    pages: list[MetricPage] = []
    try:
        pages.extend(MetricPage() for _ in range(count))
        yield pages
    finally:
        for page in pages:
            page.stop()
