"""The two legs of a request: to a prefill endpoint, and to the engine next door."""
