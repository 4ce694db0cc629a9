"""Doctests import every module; leave out framework interfaces whose distribution is not installed."""

from importlib.util import find_spec

_FACES = {
    "src/checkmate/torch.py": ("checkmate_torch",),
    "src/checkmate/tf2.py": ("checkmate_tf", "tensorflow"),
}

collect_ignore = [face for face, needs in _FACES.items() if not all(find_spec(name) for name in needs)]
