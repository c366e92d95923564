"""What every part of this program knows: jobs, messages, paths, errors, and the plug points of
features.
"""
