"""Changes to models before they are compiled (``mujoco.MjSpec``)."""
