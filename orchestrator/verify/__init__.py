"""The ``verify`` command: proof that a job's training depends on nothing but its seed."""
