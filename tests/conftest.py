"""Lets tests import the helper modules beside them (pytest's importlib mode does not)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
