"""Ledger and job directories of earlier runs are brought in line with the job file."""
