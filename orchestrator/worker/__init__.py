"""One training of one job, in a process of its own."""
