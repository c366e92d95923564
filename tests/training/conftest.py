"""Trainings in the test's process have one thread, as workers have."""

from __future__ import annotations

import torch

# More would mostly wait for each other: networks are tiny, and as many tests as CPUs run at once.
torch.set_num_threads(1)
