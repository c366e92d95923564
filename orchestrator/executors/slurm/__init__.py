"""Where the pilot of Slurm was in the version before: see :mod:`orchestrator.features.slurm`."""
