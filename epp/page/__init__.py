"""What the picker does at this moment, for a person's eyes: a page and its numbers."""
