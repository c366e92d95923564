"""What processes inherit and how they are started, seen and ended."""
