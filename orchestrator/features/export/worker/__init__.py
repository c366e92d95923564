"""Policies as files for other programs: ONNX, NumPy and a C header. ``docs/export.md``
describes them.
"""
