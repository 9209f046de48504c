"""The programs whose run files are read, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from .ai_toolkit import PROGRAM as AI_TOOLKIT
from .diffusion_pipe import PROGRAM as DIFFUSION_PIPE
from .flymyai import PROGRAM as FLYMYAI
from .musubi import PROGRAM as MUSUBI
from .one_trainer import PROGRAM as ONE_TRAINER
from .program import Program
from .sd_scripts import PROGRAM as SD_SCRIPTS
from .tsiendragon import PROGRAM as TSIENDRAGON

PROGRAMS: Sequence[Program] = (
    AI_TOOLKIT,
    MUSUBI,
    SD_SCRIPTS,
    ONE_TRAINER,
    TSIENDRAGON,
    FLYMYAI,
    DIFFUSION_PIPE,
)
