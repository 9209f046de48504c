"""``python -m trainer_core``: the same as the console script ``adapter-trainer``."""

from .cli import main

raise SystemExit(main())
