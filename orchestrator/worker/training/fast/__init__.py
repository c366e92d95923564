"""The fast learner: PPO of Stable-Baselines3 without its overhead on small networks.

Nothing is imported here, because :mod:`.qualify` is used where torch is not loaded.
"""
