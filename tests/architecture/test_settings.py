"""Every setting is explained and used."""

import ast

from architecture.source import sources

from trainer_core.config.run import walk_settings
from trainer_core.config.section import section_of

_SETTINGS = list(walk_settings())


def test_every_setting_has_help_text():
    texts = {path: field.description or "" for path, field in _SETTINGS}
    wrong = {
        path: text
        for path, text in texts.items()
        if len(text) < 10 or not text.endswith(".") or not text.isascii()
    }
    assert wrong == {}


def test_every_setting_is_read_somewhere():
    nodes = [
        node
        for source in sources("trainer_core")
        if source.package != "config"
        for node in source.nodes
    ]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant)}
    leaves = {path for path, field in _SETTINGS if section_of(field) is None}
    unread = {path for path in leaves if path.rsplit(".", 1)[-1] not in read}
    # The version is looked at while a file is read, before there are settings.
    assert unread <= {"config_version"}
