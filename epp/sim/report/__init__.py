"""What a simulated run adds up to: figures, comparisons, pages."""
