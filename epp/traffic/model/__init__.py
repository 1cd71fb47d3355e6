"""Models of traffic by class of business: fitted to traces, or written by hand; and traces of them."""
