"""Whether a prompt is computed elsewhere, and by which pair of endpoints: what costs the least."""
