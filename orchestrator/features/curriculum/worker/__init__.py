"""Its part in the worker."""
