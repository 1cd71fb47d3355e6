"""Pickers that tell each other what they sent."""
