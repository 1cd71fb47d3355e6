"""What the stock path costs with gRPC's own Python server: a picker that decides nothing.

It speaks the protocol with the same session and messages as the picker, and sends all to one endpoint.
``python -m epp.bench.baseline.usual HOST:PORT``; prints its ports as a picker does.
"""

from __future__ import annotations

import argparse
import json
import uuid
from typing import Any

import uvloop
from grpc import aio, method_handlers_generic_handler, stream_stream_rpc_method_handler

from epp.extproc import wire
from epp.extproc.budget import BodyBudget
from epp.extproc.messages import RequestReady
from epp.extproc.session import Session
from epp.model import Endpoint, EndpointId, Pick
from epp.process import garbage
from epp.process.placement import stay_together

MOST_BYTES = 2**25  #: of a body, and of all of them


async def serve(address: str) -> None:
    """Serve until killed."""
    host, _, port = address.rpartition(":")
    pick = Pick((Endpoint(EndpointId(address), host, int(port), "engine"),))
    budget = BodyBudget(MOST_BYTES)

    async def process(_messages: Any, context: Any) -> None:
        session = Session(
            max_body_bytes=MOST_BYTES, budget=budget, new_id=lambda: str(uuid.uuid4())
        )
        while (data := await context.read()) is not aio.EOF:
            message = wire.decode(data)
            event = None if message is None else session.receive(message)
            if type(event) is RequestReady:
                session.accept(pick, event.arrival.body)
                session.free()
            for reply in session.replies():
                await context.write(wire.encode(reply))

    server = aio.server()
    methods = {"Process": stream_stream_rpc_method_handler(process)}
    server.add_generic_rpc_handlers((method_handlers_generic_handler(wire.SERVICE, methods),))
    bound = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    garbage.settle()
    print(json.dumps({"grpc": bound, "health": 0, "admin": 0}), flush=True)  # noqa: T201
    await stay_together()
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    uvloop.run(serve(parser.parse_args().address))
