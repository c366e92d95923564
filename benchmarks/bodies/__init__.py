"""Two tables of trained bodies, and a simulator that compares samplers of searches on them."""
