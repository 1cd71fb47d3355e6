"""What serves each pool of a process, and which of them a request is for."""
