"""A Ray cluster from nothing: a head, more nodes, what they do, a clean end. Thin over ``ray start``.

``access`` holds who may talk to it (the token), ``settings`` what a machine offers, ``state`` what was started here;
``start``, ``end`` and ``status`` with its ``view`` are the commands. ``question`` starts ``inside``, the child process
that speaks to Ray: nothing else of this package imports it.
"""
