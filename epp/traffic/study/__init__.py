"""What a trace is like: its arrivals, its lengths, what it repeats; and how two traces differ."""
