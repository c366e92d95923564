"""The formats of exported policies, by the ends of their names."""

READABLE = (".onnx", ".pt", ".npz")
FORMATS = (*READABLE, ".h")
