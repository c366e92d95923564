"""``cluster up``, ``join``, ``status`` and ``down``: a Ray cluster made of ``ray start`` on each
machine.

``cluster_token`` says who may use a cluster, ``node_settings`` what a machine offers,
``node_state`` what was started on this machine. Only ``query_child``, a child process started by
``query``, connects to Ray.
"""
