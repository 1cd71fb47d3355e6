"""An engine's feed of events: which to take in, what to ask for, and how far to believe it."""
