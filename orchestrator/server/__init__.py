"""The supervisor's process: the only writer of an experiment's ledger. Everything else is a client."""
