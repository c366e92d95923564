"""What a key of a job file is: the types of its values, the names that users give, and problems
with their place, what was expected and what to do.

Tables of keys are made of these by :mod:`orchestrator.jobfile` and by whatever else has keys.
"""
