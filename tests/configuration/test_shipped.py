"""The shipped configurations are found from any folder, and never in place of a user's own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.configuration import ConfigError, find_config, load_config, shipped_configs
from vcap_jax.run.config import RunConfig

NAMED = Path("configs/embedded/video.yaml")


def test_a_shipped_file_is_found_by_its_name_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(NAMED) == shipped_configs() / "embedded" / "video.yaml"
    assert load_config(RunConfig, [NAMED]).modality == "video"


def test_a_users_own_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / NAMED
    own.parent.mkdir(parents=True)
    own.write_text("seed: 11\n")
    assert load_config(RunConfig, [NAMED]).seed == 11


def test_what_is_nowhere_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("configs/embedded/image.yml", "embedded/image.yaml", "../configs/embedded/image.yaml"):
        with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
            load_config(RunConfig, [name])
