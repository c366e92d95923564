"""The ``selftest`` command: a campaign of faults against real trainings, on the user's machine and
file system.
"""
