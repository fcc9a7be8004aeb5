"""litefuse improves finished `.tflite` models: the same answers from fewer operators and less memory traffic."""

__version__ = "0.1.0"
