"""Advice on physics: what changes to a robot would bring in speed, and what they would change in
its motion.
"""
