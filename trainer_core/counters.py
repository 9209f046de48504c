"""Random numbers from counters instead of from a generator's state.

A draw is named by the run's seed and the counters of the place where it is made (step, micro-batch,
sample). The same names give the same draw on any number of processes and after any resume, because
nothing has to be replayed.
"""

from __future__ import annotations

import hashlib
import struct


def counter_seed(seed: int, *names: str | int) -> int:
    """Derive the seed of one draw.

    Args:
        seed: The run's seed, any integer.
        names: What is drawn and where, such as ``("noise", step, sample)``.

    Returns:
        An integer in [0, 2**63) that any generator accepts.
    """
    text = "\x1f".join(str(part) for part in (seed, *names))
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def counter_order(length: int, seed: int, *names: str | int) -> list[int]:
    """Draw an order of 0 to ``length`` - 1: the same on every machine and version of Python."""
    text = "\x1f".join(str(part) for part in (seed, *names))
    bits = hashlib.shake_128(text.encode("utf-8", "surrogatepass")).digest(8 * length)
    keys = struct.unpack(f"<{length}Q", bits)
    return sorted(range(length), key=keys.__getitem__)
