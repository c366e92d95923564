"""Policies as files for other programs: ONNX, TorchScript, NumPy and a C header. ``docs/export.md``
describes them.
"""
