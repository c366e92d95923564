"""CPUs of this machine, their limits and who uses them, memory, GPUs, and where jobs are placed."""
