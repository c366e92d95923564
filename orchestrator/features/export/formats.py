"""The formats of exported policies, by the ends of their names."""

READABLE = (".onnx", ".npz")
FORMATS = (*READABLE, ".h")
