"""Who may go, who waits, who is dropped."""
