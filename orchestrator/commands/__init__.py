"""The commands, by theme: arguments to calls, results to output."""
