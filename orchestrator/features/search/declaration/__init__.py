"""What ``[search]`` and ``[scheduler]`` declare."""
