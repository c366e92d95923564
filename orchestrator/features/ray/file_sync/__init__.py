"""File synchronisation between the run directory on the driver's machine and job directories on
nodes.

::

    driver                                         node
    outgoing_chunks(job_dir) ──── chunks ────▶ Receiver(scratch).apply(chunk)
                                                   sender = Sender.of_copy(scratch); the worker starts
    Receiver(job_dir).apply(chunk) ◀── chunks ──── sender.scan(), repeatedly, and once after the worker's end

A chunk holds at most 1 MiB before compression, so memory is bounded on both sides whatever the size
of the files. Chunks are applied in the order in which they were made. After each of them a worker
can resume from the driver's directory: it has the replay buffer of its newest checkpoint, and at
least that checkpoint's rows of the tables. Nothing here knows how chunks are transmitted. Files of
more than a few KiB can go through a shared file system (:class:`Storage`) instead; their chunks
then hold only a name in it.
"""
