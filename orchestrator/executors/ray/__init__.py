"""Attempts on the nodes of a Ray cluster: Ray finds the machines, places the work and notices deaths.

What runs there is what runs on one machine: the local executor's own processes, on CPUs of their own.

========== =========================================================================================
connection Ray loaded late, a cluster started or joined, its log noise kept out; whether its head is there
versions   what every node must have in common with the driver
keeper     one small actor a node: CPU sets, orders to attempts, what the node is
nodes      the nodes of the cluster as they come and go, each with its keeper
pool       the room that they have, handed out as slots
fleet      nodes and pool together: who is used, and what the user is told
transport  how files travel: ``--storage``
user_code  how Python code of the user's own does
attempt    what runs as one Ray task for each attempt
task       such a task, as the driver knows it
groups     room for ranks on several nodes
remote     an attempt, of one task or of one a rank
executor   the executor
engine     all of it put together, for ``run --executor ray``
========== =========================================================================================

Nothing here imports Ray when it is imported itself.
"""
