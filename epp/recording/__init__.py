"""Recording: what is kept of each request, so that traffic can be studied without any prompt."""
