"""Numbers of a job file that are drawn, change with the training, or stand in a grid."""
