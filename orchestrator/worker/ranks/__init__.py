"""Ranks: processes that train one job together."""
