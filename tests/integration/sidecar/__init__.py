"""The sidecar through real sockets, between simulated engines."""
