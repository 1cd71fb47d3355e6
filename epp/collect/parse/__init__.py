"""What collectors read, understood: exposition pages and endpoint lists. Pure."""
