"""The console script and `python -m easysteer_data`: finds the stages in a wheel or beside the package."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec


def main() -> None:
    """Run the stage that the command line names; see pipelines/cli.py."""
    # A wheel carries the stages inside the package, an editable install beside it.
    home = "easysteer_data.pipelines" if find_spec("easysteer_data.pipelines") else "pipelines"
    import_module(f"{home}.cli").main()


if __name__ == "__main__":
    main()
