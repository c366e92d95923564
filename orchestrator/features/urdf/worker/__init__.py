"""URDF robots: read, checked, completed by the table ``urdf`` of a job, and written as MJCF."""
