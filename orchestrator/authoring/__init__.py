"""Writes job files: from robots (``init``), and from hyperparameter files of RL Baselines3 Zoo
(``import-zoo``).
"""
