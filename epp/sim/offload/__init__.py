"""KV blocks of a simulated engine that lie below its GPU: in the memory of its CPU, and on a disk."""
