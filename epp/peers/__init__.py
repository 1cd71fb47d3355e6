"""Replicas of the picker that tell each other what they sent where."""
