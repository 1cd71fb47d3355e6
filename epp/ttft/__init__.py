"""The time to first token: what it is made of, expected at the pick and measured at the end."""
