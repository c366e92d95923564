"""Processes beside a supervisor, and the command that becomes one."""
