"""One experiment in one run directory: plan, reconcile, supervise, finish, and what others do
with it.
"""
