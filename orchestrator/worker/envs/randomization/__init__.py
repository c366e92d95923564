"""Domain randomisation: properties of the robot that are drawn anew at every episode, for each
environment.
"""
