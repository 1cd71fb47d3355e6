"""A fleet of engines and its pickers in virtual time: what a policy does, before production."""
