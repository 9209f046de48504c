"""Another kind or optimizer brings its own defaults, and leaves out those of the one before."""

import pytest

from tests.fixtures.combinations import rarely
from trainer_core.errors import ConfigError
from trainer_core.families.run_files import load_config, run_file_template, templates


@pytest.mark.parametrize(
    ("family", "purpose", "kind"),
    [
        *((family, next(iter(each)), "loha") for family, each in templates().items()),
        *rarely(
            (family, purpose, "loha")
            for family, each in templates().items()
            for purpose in [*each][1:]
            if purpose != "tiny"
        ),
        *(("qwen_image", "tiny", kind) for kind in ("lora", "loha", "lokr")),
    ],
)
def test_every_template_takes_every_kind(family, purpose, kind, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(run_file_template(family, purpose), encoding="utf-8")
    said = []
    config = load_config(file, [f"adapter.kind={kind}"], said.append)
    assert config.adapter.kind == kind
    assert (config.adapter.factor == 4) == (purpose.startswith("tiny") and kind == "lokr")
    assert bool(said) == (kind != "lokr")
    assert all("adapter.factor" in text and f"adapter.kind is {kind}" in text for text in said)


@pytest.mark.parametrize(
    ("values", "overrides"),
    [
        ({"kind": "lora", "factor": 4}, []),
        ({"kind": "lora", "factor": 4}, ["adapter.kind=lora"]),
        ({"kind": "lora", "factor": 4}, ["adapter.kind=loha"]),
        ({"factor": 4}, ["adapter.kind=lora", "adapter.factor=4"]),
        ({}, ["adapter={kind: lora, factor: 4}"]),
    ],
)
def test_what_the_user_wrote_beside_the_kind_is_refused(values, overrides):
    with pytest.raises(ConfigError, match=r"adapter\.factor"):
        load_config({"adapter": values}, overrides)


def test_the_last_kind_counts_and_settings_of_a_lora_go_too():
    values = {
        "adapter": {"kind": "lora", "init": "pissa"},
        "training": {"optimizer": {"lora_plus_ratio": 4.0}},
    }
    said = []
    config = load_config(values, ["adapter.kind=loha", "adapter.kind=lokr"], said.append)
    assert (config.adapter.kind, config.adapter.init) == ("lokr", "default")
    assert config.training.optimizer.lora_plus_ratio == 1.0
    assert "adapter.init (pissa)" in said[0]
    assert "lora_plus_ratio (4.0)" in said[0]
    kept = load_config({"adapter": {"init": "lycoris"}}, ["adapter.kind=lora"])
    assert kept.adapter.init == "lycoris"


def test_the_librarys_words_of_the_design():
    from trainer_core import adapters

    assert {"AdapterConfig", "attach"} <= set(adapters.__all__)
    assert adapters.AdapterConfig(kind="lora", rank=4).rank == 4
    assert callable(adapters.attach)
