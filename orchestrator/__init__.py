"""Train many reinforcement-learning policies at once, each in a process of its own."""
