"""Executors run attempts of jobs and report what happens to them.

=================== ================================================================================
``executor``        the interface, and the events
``slotted``         an executor that gives attempts slots, and lets a ``launcher`` start them there
``local``           the executor of this machine: ``processes``, memory, and the ``cpu_mover``
``processes``       the launcher of this machine: ``rank_group``, ``worker_process``, ``worker_template``
``cluster_slots``   the slots of a cluster's nodes
``kinds``           what ``--executor`` can name
=================== ================================================================================
"""
