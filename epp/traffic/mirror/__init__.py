"""``epp traffic mirror``: whole conversations of real traffic, asked again of a shadow pool."""
