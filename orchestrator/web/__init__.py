"""`serve`: a page in the browser that lives while experiments run. It reads run directories, and
nothing else.
"""
