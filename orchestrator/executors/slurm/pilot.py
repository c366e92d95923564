"""Batch scripts that the version before has submitted start this module. It goes with the next
version.
"""

import runpy

runpy.run_module("orchestrator.features.slurm.pilot", run_name="__main__", alter_sys=True)
