"""The process that makes the trials of a search, and decides which of them go on."""
