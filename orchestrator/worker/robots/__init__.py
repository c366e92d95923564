"""Robots are copied, compiled and examined."""
