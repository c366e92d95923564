"""Clients of a supervisor: they start it, leave requests, and follow its stream of events."""
