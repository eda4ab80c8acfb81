"""Loads the hot statements from their files."""

from __future__ import annotations

from importlib.resources import files


def _read_all() -> dict[str, str]:
    """Texts of all statements by name, without their comments."""
    texts: dict[str, str] = {}
    for file in files(__package__).joinpath("sql").iterdir():
        if file.name.endswith(".sql"):
            lines = file.read_text("utf-8").splitlines()
            text = "\n".join(line for line in lines if not line.startswith("--")).strip()
            texts[file.name.removesuffix(".sql")] = text
    return texts


#: Read at once: at the first use of one of them there may be no descriptor left to open it with.
_TEXTS = _read_all()


def statement(name: str) -> str:
    """Text of ``sql/<name>.sql`` without its comments."""
    return _TEXTS[name]
