"""Parts of searches that need MuJoCo."""
