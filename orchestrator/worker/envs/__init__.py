"""Environments in batches, over one simulation."""
