"""A small gRPC server: HTTP/2 on the event loop's own sockets (ADR 0011)."""
