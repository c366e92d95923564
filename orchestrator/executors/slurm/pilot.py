"""Batch scripts that were submitted before 24 November 2026 start this module. It goes after the
first release (docs/development.md).
"""

import runpy

runpy.run_module("orchestrator.features.slurm.pilot", run_name="__main__", alter_sys=True)
