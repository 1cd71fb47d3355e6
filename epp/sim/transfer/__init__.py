"""KV handed from one simulated engine to another: what a prefill keeps and a decode fetches."""
