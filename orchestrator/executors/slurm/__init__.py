"""Attempts inside allocations of Slurm: one array of batch jobs, the pilots, each of which runs as
many as fit.

================== =================================================================================================
``slurm_backend``  the backend ``slurm``, which combines the other modules
``slurm_executor`` the executor: attempts on pilots
``pilot_registry`` the pilots as they join, hand back and end; ``pilot_slots``: their room; ``handover``: those of an
                   earlier supervisor
``batch_queue``    Slurm's own view of them, and when to submit: ``sbatch``, ``squeue`` and ``scancel`` by
                   ``slurm_commands``; ``batch_script`` is what is submitted
``accounting``     what Slurm's accounting says of the pilots
``pilot``          what runs in an allocation; ``pilot_attempts``: the attempts there
``mailbox``        how both sides talk, by files in the run directory; ``pilot_messages``: what they say;
                   ``session_file``: which supervisor is served
================== =================================================================================================
"""
