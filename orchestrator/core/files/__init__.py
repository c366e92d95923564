"""Files that are written whole, read without waiting, kept secret, or removed with their
process.
"""
