"""The loop that launches, watches and retries jobs, and its decisions."""
