"""The worker as a process: its connection to the supervisor, threads, failures."""
