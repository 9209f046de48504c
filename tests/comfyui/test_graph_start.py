"""What the pack costs ComfyUI's start: the time of its imports, and no library brought along."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from comfyui.conftest import comfy_programs
from comfyui.server import PACK, ROOT

# It starts ComfyUI several times, and measures.
pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

MILLISECONDS = 50
HEAVY = {"torch", "diffusers", "peft", "transformers", "accelerate", "numpy", "PIL", "safetensors"}
ROUNDS, TRIES = 6, 6
_PYDANTIC = ("pydantic", "annotated_types", "typing_inspection")
_LINE = re.compile(r"import time: +(\d+) \| +\d+ \| +(\S+)")
_EAGER = """from comfy_api.latest import ComfyExtension
class Extension(ComfyExtension):
    async def get_node_list(self):
        return []
async def comfy_entrypoint():
    import diffusers
    return Extension()
"""


class Loads:
    """Several first loads of a pack: the modules, and each one's fastest import in milliseconds.

    A busy machine makes an import slow and never fast, and seldom the same one each time.
    """

    def __init__(self):
        self.modules, self.fastest = set(), {}

    def add(self, facts, report):
        assert facts["done"]
        self.modules.update(facts["modules"])
        for microseconds, name in _LINE.findall(report):
            time = int(microseconds) / 1000
            self.fastest[name] = min(time, self.fastest.get(name, time))

    @property
    def share(self):
        """Milliseconds of all imports, pydantic's own apart."""
        found = self.fastest.items()
        return sum(time for name, time in found if not name.startswith(_PYDANTIC))

    @property
    def libraries(self):
        """Top-level packages that were not there before; the pack's own are named by its path."""
        return {name.split(".")[0] for name in self.modules if not name.startswith(os.sep)}


class Starts:
    """Starts ComfyUI as far as its packs, and loads ours and one that imports at once."""

    def __init__(self, place):
        self.folder, self.python = comfy_programs()
        self.place, self.eager = place, place / "eager"
        (place / PACK).symlink_to(ROOT, target_is_directory=True)
        self.eager.mkdir()
        (self.eager / "__init__.py").write_text(_EAGER)
        self.script = Path(__file__).with_name("start_process.py").read_text(encoding="utf-8")

    def load(self, *rounds):
        """Load packs one after the other from one start: a pack and its loads for each round."""
        result = self.place / "result"
        result.unlink(missing_ok=True)
        words = [
            str(self.python),
            "-X",
            "importtime",
            "-",
            str(result),
            *(str(pack) for pack, _ in rounds),
        ]
        done = subprocess.run(
            words,
            input=self.script,
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        facts = [json.loads(line) for line in result.read_text().splitlines()]
        reports = re.split(r"^begin .*$", done.stderr, flags=re.MULTILINE)[1:]
        for (_, loads), fact, report in zip(rounds, facts, reports, strict=True):
            loads.add(fact, report)


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    if not hasattr(os, "fork"):
        pytest.skip("a process cannot be forked here")
    return Starts(tmp_path_factory.mktemp("packs"))


@pytest.fixture(scope="module")
def loads(starts):
    """Those of our pack, and those of one that does not wait with its imports."""
    ours, eager = Loads(), Loads()
    starts.load(*[(starts.place / PACK, ours)] * ROUNDS, (starts.eager, eager))
    return ours, eager


def test_the_pack_costs_little_of_comfyuis_start(starts, loads):
    ours, _ = loads
    assert any(name.endswith(".nodes.definitions.train_adapter") for name in ours.fastest)
    assert len(ours.fastest) > 20
    for _ in range(TRIES):
        if ours.share <= MILLISECONDS:
            break
        starts.load(*[(starts.place / PACK, ours)] * ROUNDS)
    slowest = sorted(ours.fastest.items(), key=lambda found: -found[1])[:10]
    assert ours.share <= MILLISECONDS, slowest


def test_the_pack_brings_no_library_into_the_start(loads):
    ours, eager = loads
    assert not ours.libraries & HEAVY
    # The same look at a pack that does not wait sees it.
    assert "diffusers" in eager.libraries
    assert eager.share > MILLISECONDS
