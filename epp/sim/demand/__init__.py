"""What is asked of a simulated fleet: traffic as conversations, requests as blocks."""
