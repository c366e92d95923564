"""The fast learner: PPO of Stable-Baselines3 without its overhead on small networks.

``FastPPO`` and ``NonFiniteGradient`` are in :mod:`.ppo` and :mod:`.update`; nothing is imported here, because
:mod:`.qualify` is used where torch is not.
"""
