"""A referee for the speed of PPO implementations: ``python -m benchmarks.contenders``."""
