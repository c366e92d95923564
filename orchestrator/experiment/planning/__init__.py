"""What a run would do: its machine and executor, the order of its jobs, and when it ends."""
