"""KV events over ZMQ: sockets of engines' feeds, as endpoints come and go."""
