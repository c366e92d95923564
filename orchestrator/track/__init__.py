"""Experiment trackers (TensorBoard, W&B, MLflow, Trackio), told from the run directory alone."""
