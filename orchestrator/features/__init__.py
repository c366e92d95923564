"""Capabilities that some runs need, each in a folder of its own that can be taken away.

Nothing of the program imports them: it asks :mod:`orchestrator.core.feature`.
"""
