"""Stages of a training in its worker."""
