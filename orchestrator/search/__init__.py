"""Search over bodies and hyperparameters: which points are tried, and which trials go on."""
