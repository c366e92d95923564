"""Trained policies in the process of a user: loaded, played, evaluated."""
