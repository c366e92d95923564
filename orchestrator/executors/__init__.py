"""Executors start attempts of jobs and tell of their ends: the interface, the local one and a
fake.
"""
