"""Run files of other trainers, read and turned into ours.

A program is a table of its keys in ``keys/``, each with a rule, and a module for what only several
keys say together. Nothing of a file is left unsaid: a key is mapped exactly, mapped nearly, has no
counterpart, or is not known.
"""

from .documents import Document, open_document
from .program import NamedFiles
from .read_run import Epoch, ForeignRun, command_document, in_reading_order, read_foreign

__all__ = [
    "Document",
    "Epoch",
    "ForeignRun",
    "NamedFiles",
    "command_document",
    "in_reading_order",
    "open_document",
    "read_foreign",
]
